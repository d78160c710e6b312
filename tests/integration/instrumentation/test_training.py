"""Real ranks under torchrun, their rings read back: against the script's own log and PyTorch's own counters."""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rootwalk.examples
import rootwalk.instrumentation
from rootwalk.instrumentation.shared_ring import Record, RecordFlag, RecordKind, RingReader

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow]

EXAMPLE = Path(next(iter(rootwalk.examples.__path__))) / "train_ddp.py"
BOOTSTRAP = Path(next(iter(rootwalk.instrumentation.__path__))) / "bootstrap"
SMALL = ["--width", "32", "--layers", "1", "--heads", "2", "--window", "32", "--batch", "2"]

SEQUENCES = """
import json, os, sys, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json
dist.init_process_group()  # no backend named: gloo for the host's tensors, NCCL for a GPU's
tensor = torch.ones(4)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pair = dist.new_group([0, 1])
for step in range(5):
    model(tensor).sum().backward()
    optimizer.step()
    dist.all_reduce(tensor, group=pair)
dist.barrier()
status = json.loads(_dump_fr_trace_json())["pg_status"]
last = {name: int(group["last_enqueued_collective"]) for name, group in status.items()}
open(sys.argv[1] + f"/{dist.get_rank()}.json", "w").write(json.dumps(last))
# PyTorch lets gloo's sends take a number that no entry has, so they come after its own count was read.
if dist.get_rank() == 0:
    dist.send(tensor, 1)
else:
    dist.recv(tensor, 0)
dist.destroy_process_group()
"""

QUIET, LOUD, STEPS = 3, 7, 11
# Each rank asks itself, through its own ring, where an agent would.
LEVELS = f"""
import json, os, pathlib, sys, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json
from rootwalk.instrumentation.shared_ring import RingReader
dist.init_process_group("gloo")
tensor = torch.ones(4)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pair = dist.new_group([0, 1])
(path,) = pathlib.Path(os.environ["ROOTWALK_RING_DIRECTORY"]).glob(str(os.getpid()) + "-*.ring")
reader = RingReader(path)
for step in range({STEPS}):
    if step in ({QUIET}, {LOUD}):
        reader.ask_level(0 if step == {QUIET} else 1)
    model(tensor).sum().backward()
    optimizer.step()
    dist.all_reduce(tensor, group=pair)
dist.barrier()
status = json.loads(_dump_fr_trace_json())["pg_status"]
last = {{name: int(group["last_enqueued_collective"]) for name, group in status.items()}}
open(sys.argv[1] + f"/{{dist.get_rank()}}.json", "w").write(json.dumps(last))
reader.close()
dist.destroy_process_group()
"""

# The heap is what makes a collection long; step 3 collects in its forward pass, on the loop's own clock.
COLLECTING = """
import gc, json, sys, time, torch
heap = [[number] for number in range(400_000)]
class Model(torch.nn.Linear):
    step = 0
    def forward(self, batch):
        began = time.thread_time_ns()
        if self.step == 3:
            gc.collect()
            open(sys.argv[1] + "/collected.json", "w").write(str(time.thread_time_ns() - began))
        self.step += 1
        return super().forward(batch)
gc.disable()
model = Model(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    model(torch.ones(4)).sum().backward()
    optimizer.step()
"""
SPAWNED = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def train(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.start_processes(train, (sys.argv[1] + "/store",), nprocs=2, start_method=sys.argv[2])
"""

# The last collective waits for rank 1, so its end is told by the backend's thread: while rank 0 is on its way out.
LATE = """
import sys, time, torch, torch.distributed as dist, torch.multiprocessing as mp
from rootwalk.instrumentation import torch_hooks
tell = torch_hooks._completed
def tell_late(*arguments):
    for _ in range(150):
        time.sleep(0.001)
    tell(*arguments)
def train(rank, store):
    torch_hooks._completed = tell_late
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    time.sleep(0.5 * rank)
    dist.all_reduce(torch.ones(4))
if __name__ == "__main__":
    mp.start_processes(train, (sys.argv[1] + "/store",), nprocs=2, start_method="spawn")
"""

# What gloo gives for a reduce-scatter has no future. Rank 1 comes late to each; one of them is waited for later.
SCATTERED = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
plain = dist.Work.wait
dist.all_reduce(torch.ones(4))
assert dist.Work.wait is plain
for step in range(3):
    time.sleep(0.2 * dist.get_rank())
    dist.reduce_scatter_tensor(torch.ones(4), torch.ones(8))
work = dist.reduce_scatter_tensor(torch.ones(4), torch.ones(8), async_op=True)
assert work.wait() and dist.Work.wait is not plain
try:
    dist.reduce_scatter_tensor(torch.ones(4), torch.ones(9))
except (RuntimeError, ValueError):
    pass
dist.barrier()
dist.destroy_process_group()
"""


def environment(folder: Path) -> dict[str, str]:
    """Return an environment with the instrumentation loaded and nobody to read the rings."""
    return dict(
        os.environ,
        PYTHONPATH=str(BOOTSTRAP),
        ROOTWALK_JOB="test",
        ROOTWALK_RING_DIRECTORY=str(folder / "rings"),
        ROOTWALK_KEEP_RING="1",
        OMP_NUM_THREADS="1",
    )


def launch(
    folder: Path, ranks: int, script: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    """Run a script under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += ["--master-port", "0", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    return subprocess.run(
        [*command, str(script), *options],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def read_rings(folder: Path) -> dict[int, list[Record]]:
    """Return every rank's records."""
    records = {}
    for path in (folder / "rings").glob("*.ring"):
        reader = RingReader(path)
        assert reader.closed
        assert reader.dropped == 0
        records[reader.identity.rank] = reader.read(100_000)
        reader.close()
    return records


def test_every_step_of_the_scripts_own_log_is_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = launch(tmp_path, 2, EXAMPLE, "--steps", "12", "--step-log", str(log), *SMALL)
    assert done.returncode == 0, done.stderr
    unix_less_mono_s = (time.time_ns() - time.monotonic_ns()) / 1e9
    records = read_rings(tmp_path)
    assert sorted(records) == [0, 1]
    for rank, seen in records.items():
        logged = [json.loads(line) for line in (log / f"rank{rank}.jsonl").read_text().splitlines()]
        steps = [record for record in seen if record.kind is RecordKind.STEP and not record.flags]
        assert [step.step for step in steps] == [entry["step"] for entry in logged]
        for step, following in itertools.pairwise(steps):
            assert step.end_mono_ns == following.start_mono_ns  # steps tile time
        # ours ends with its update: after the script's line of the step before and before its own,
        # however long a busy machine lets one of them wait. 1 ms is for the drift of the clocks.
        ends = [step.end_mono_ns / 1e9 + unix_less_mono_s for step in steps]
        lines = [entry["unix_s"] for entry in logged]
        for before, end, line in zip([-math.inf, *lines], ends, lines, strict=False):
            assert before - 0.001 <= end <= line + 0.001
        late = [line - end for end, line in zip(ends, lines, strict=True)]
        assert statistics.median(late) < 0.002  # the line follows the update at once
        assert all(step.gc_ns is not None for step in steps)
        names = {record.name for record in seen if record.kind is RecordKind.PHASE}
        assert names == {"data_load", "forward", "backward", "optimizer"}


@pytest.mark.long
def test_collectives_have_no_gap_up_to_pytorchs_own_last_number(tmp_path: Path) -> None:
    script = tmp_path / "sequences.py"
    script.write_text(SEQUENCES)
    done = launch(tmp_path, 2, script, str(tmp_path))
    assert done.returncode == 0, done.stderr
    for rank, seen in read_rings(tmp_path).items():
        last = json.loads((tmp_path / f"{rank}.json").read_text())
        unknown = {record.name for record in seen if record.flags & RecordFlag.END_UNKNOWN}
        assert unknown <= {"send", "recv"}
        by_group: dict[str, list[int]] = {}
        assert [record.sequence for record in seen if record.name in ("send", "recv")] == [1]
        for record in seen:
            if record.kind is RecordKind.COLLECTIVE and record.name not in ("send", "recv"):
                by_group.setdefault(record.communicator, []).append(record.sequence)
        assert len(by_group) == len(last) == 2
        for sequences in by_group.values():
            assert sorted(sequences) == list(range(1, len(sequences) + 1))
        assert sorted(map(len, by_group.values())) == sorted(last.values())


@pytest.mark.long
def test_collectives_go_unseen_for_a_while_and_are_numbered_rightly_after_it(
    tmp_path: Path,
) -> None:
    script = tmp_path / "levels.py"
    script.write_text(LEVELS)
    done = launch(tmp_path, 2, script, str(tmp_path))
    assert done.returncode == 0, done.stderr
    records = read_rings(tmp_path)
    by_rank = {}
    for rank, seen in records.items():
        last = json.loads((tmp_path / f"{rank}.json").read_text())
        assert sum(one.kind is RecordKind.STEP for one in seen) >= STEPS - 1
        collectives = [one for one in seen if one.kind is RecordKind.COLLECTIVE]
        by_group: dict[str, list[int]] = {}
        for one in collectives:
            by_group.setdefault(one.communicator, []).append(one.sequence)
        # The levels are looked at where an update ends: what follows it in that step is the first to go unseen.
        pair = next(numbers for name, numbers in by_group.items() if max(numbers) == STEPS)
        assert pair == [*range(1, QUIET + 1), *range(LOUD + 1, STEPS + 1)]
        assert sorted(map(max, by_group.values())) == sorted(last.values())
        by_rank[rank] = {(one.communicator, one.sequence, one.name) for one in collectives}
    assert by_rank[0] == by_rank[1]


@pytest.mark.long
def test_error_in_a_hook_does_not_reach_the_job(tmp_path: Path) -> None:
    (tmp_path / "rings").write_text("a file where the folder should be")
    done = launch(tmp_path, 2, EXAMPLE, "--steps", "3", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout
    assert "rootwalk instrumentation is off" in done.stderr


def test_disabled_does_nothing_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOTWALK_DISABLED", "1")
    done = launch(tmp_path, 1, EXAMPLE, "--steps", "2", *SMALL)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "rings").exists()


def run_alone(folder: Path, code: str, *arguments: str) -> None:
    """Run a script without a launcher."""
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script), str(folder), *arguments],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_collection_in_a_step_against_the_loops_own_clock(tmp_path: Path) -> None:
    run_alone(tmp_path, COLLECTING)
    collected_ns = int((tmp_path / "collected.json").read_text())
    seen = read_rings(tmp_path)[0]
    gc_ns = {r.step: r.gc_ns or 0 for r in seen if r.kind is RecordKind.STEP}
    assert gc_ns.keys() == set(range(6))
    assert 0.8 * collected_ns < gc_ns[3] <= collected_ns
    assert all(ns == 0 for step, ns in gc_ns.items() if step != 3)
    (collection,) = [r for r in seen if r.kind is RecordKind.GC]
    assert (collection.step, collection.sequence, collection.flags) == (3, 2, 0)
    assert collection.phase == "forward"


@pytest.mark.long
def test_exit_waits_for_what_the_backends_thread_still_runs(tmp_path: Path) -> None:
    run_alone(tmp_path, LATE)
    for records in read_rings(tmp_path).values():
        (end,) = [r for r in records if r.kind is RecordKind.COLLECTIVE]
        assert end.flags == 0


@pytest.mark.long
def test_ends_that_only_the_wait_tells(tmp_path: Path) -> None:
    script = tmp_path / "scattered.py"
    script.write_text(SCATTERED)
    done = launch(tmp_path, 2, script)
    assert done.returncode == 0, done.stderr
    rings = read_rings(tmp_path)
    known = {}
    for rank, seen in rings.items():
        scattered = [one for one in seen if one.name == "reduce_scatter_tensor"]
        known[rank] = [one for one in scattered if not one.flags & RecordFlag.END_UNKNOWN]
        assert [one.sequence for one in known[rank]][:3] == [2, 3, 4]
        assert 5 in {one.sequence for one in scattered if one.flags & RecordFlag.END_UNKNOWN}
    for early, late in list(zip(known[0], known[1], strict=True))[:3]:
        assert late.start_mono_ns - early.start_mono_ns > 150_000_000
        assert early.end_mono_ns > late.start_mono_ns
        assert abs(early.end_mono_ns - late.end_mono_ns) < 50_000_000


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_that_a_script_starts_itself(tmp_path: Path, method: str) -> None:
    run_alone(tmp_path, SPAWNED, method)
    seen = read_rings(tmp_path)
    assert sorted(seen) == [0, 1]
    for records in seen.values():
        assert [r.step for r in records if r.kind is RecordKind.STEP] == [0, 1]
