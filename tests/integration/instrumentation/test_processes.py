"""Real processes that exec, fork and spawn, and what each of them writes. No PyTorch: the hooks are called by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import rootwalk.instrumentation
from rootwalk.instrumentation.shared_ring import RankException, Record, RecordKind, RingReader
from support.otlp_sink import attributes, otlp_sink

pytestmark = pytest.mark.slow

BOOTSTRAP = Path(next(iter(rootwalk.instrumentation.__path__))) / "bootstrap"
# What the hooks do in one step of a training loop.
PRELUDE = """
import multiprocessing, os, sys, time
from rootwalk.instrumentation.start import start
runtime = start()
def step(count=1):
    for _ in range(count):
        for phase in ("forward", "backward"):
            runtime.begin_phase(phase)
            runtime.end_phase()
        runtime.begin_phase("optimizer")
        runtime.end_optimizer()
def join(rank, size):  # what the hook of init_process_group does
    runtime.learn_identity(rank, size)
    runtime.ensure_tracker()
"""
EXEC = """
if len(sys.argv) == 1:
    step(3)
    os.execv(sys.executable, [sys.executable, __file__, "again"])
step(2)
"""
FORK = """
step(2)
child = os.fork()
step(4 if child else 7)
if child:
    os.waitpid(child, 0)
"""
FORKED_RANKS = """
import gc
step(1)
children = []
for rank in (1, 2):
    child = os.fork()
    if not child:
        step(5)  # of nobody: it has not joined
        join(rank, 3)
        step(rank + 1)
        assert sum("GcWatch" in repr(one) for one in gc.callbacks) == 1
        sys.exit()
    children.append(child)
for child in children:
    os.waitpid(child, 0)
join(0, 3)
step(1)
"""
SPAWN = """
def train(rank):
    join(rank, 2)
    step(rank + 1)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=train, args=(rank,)) for rank in (0, 1)]
    [rank.start() for rank in ranks]
    [rank.join() for rank in ranks]
    sys.exit(max(rank.exitcode for rank in ranks))
"""
FORKED_BY_MULTIPROCESSING = """
def train(rank):
    join(rank, 2)
    step(rank + 1)
context = multiprocessing.get_context("fork")
ranks = [context.Process(target=train, args=(rank,)) for rank in (0, 1)]
[rank.start() for rank in ranks]
[rank.join() for rank in ranks]
"""
GUESS = """
step(2)  # a warm-up before anybody has said which rank this is
join(1, 2)
step(3)
"""


def run(
    folder: Path, code: str, environment: Mapping[str, str] | None = None, **options: str
) -> Path:
    """Run code as a script to its end; return the folder of its rings."""
    script = folder / "script.py"
    script.write_text(PRELUDE + code)
    rings = folder / "rings"
    base = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("OTEL_", "ROOTWALK_"))
    }
    own = {"ROOTWALK_RING_DIRECTORY": str(rings), "ROOTWALK_JOB": "test"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**base, **own, **(environment or {}), **options},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return rings


def read(rings: Path) -> dict[tuple[int, int], list[Record]]:
    """Return the records of each ring by attempt and rank; no two rings may claim the same."""
    found: dict[tuple[int, int], list[Record]] = {}
    for path in rings.glob("*.ring"):
        reader = RingReader(path)
        key = (reader.identity.attempt, reader.identity.rank)
        assert key not in found
        found[key] = reader.read(10_000) + reader.final_records()
        reader.close()
    return found


def step_numbers(records: list[Record]) -> list[int]:
    return [record.step for record in records if record.kind is RecordKind.STEP]


KEEP = {"ROOTWALK_KEEP_RING": "1", "RANK": "0", "WORLD_SIZE": "1"}


def test_program_that_execs_itself_is_a_new_attempt_in_a_ring_of_its_own(tmp_path: Path) -> None:
    rings = run(tmp_path, EXEC, KEEP)
    found = read(rings)
    assert {key: step_numbers(records) for key, records in found.items()} == {
        (0, 0): [0, 1, 2],
        (1, 0): [0, 1],
    }
    readers = {reader.identity.attempt: reader for reader in map(RingReader, rings.glob("*.ring"))}
    assert (readers[0].is_superseded, readers[0].closed) == (True, False)
    assert (readers[1].is_superseded, readers[1].closed) == (False, True)
    for reader in readers.values():
        reader.close()


def test_exec_before_training_leaves_nothing(tmp_path: Path) -> None:
    code = EXEC.replace("step(3)", "", 1)
    assert {key: step_numbers(r) for key, r in read(run(tmp_path, code, KEEP)).items()} == {
        (0, 0): [0, 1]
    }


def test_ring_that_nobody_read_does_not_outlive_an_exec(tmp_path: Path) -> None:
    rings = run(tmp_path, EXEC, RANK="0", WORLD_SIZE="1")
    assert list(rings.iterdir()) == []


def test_process_that_sends_by_itself_sends_what_it_was_before_an_exec(tmp_path: Path) -> None:
    with otlp_sink() as sink:
        rings = run(tmp_path, EXEC, RANK="0", WORLD_SIZE="1", ROOTWALK_ENDPOINT=sink.endpoint)
        steps = [
            (
                {e.key: e.value.int_value for e in group.resource.attributes}[
                    "training.job.attempt"
                ],
                attributes(span)["training.step.number"],
                attributes(span)["training.step.outcome"],
            )
            for request in sink.traces
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
            if span.name == "training.rank_step"
        ]
    assert sorted(steps) == [
        (a, s, "complete") for a, s in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    ]
    assert list(rings.iterdir()) == []


def test_child_that_a_rank_forks_is_silent(tmp_path: Path) -> None:
    found = read(run(tmp_path, FORK, KEEP))
    assert {key: step_numbers(records) for key, records in found.items()} == {
        (0, 0): [0, 1, 2, 3, 4, 5]
    }


def test_forked_child_that_joins_a_group_is_a_rank(tmp_path: Path) -> None:
    found = read(run(tmp_path, FORKED_RANKS, ROOTWALK_KEEP_RING="1", MASTER_PORT="1"))
    # the parent guessed that it was alone, and began again when it learned that there are three
    assert {key: len(step_numbers(records)) for key, records in found.items()} == {
        (0, 0): 1,
        (0, 1): 2,
        (0, 2): 3,
    }


@pytest.mark.parametrize("code", [SPAWN, FORKED_BY_MULTIPROCESSING], ids=["spawn", "fork"])
def test_ranks_of_multiprocessing_without_a_launcher(tmp_path: Path, code: str) -> None:
    rings = run(tmp_path, code, ROOTWALK_KEEP_RING="1")
    for reader in map(RingReader, rings.glob("*.ring")):
        assert reader.closed  # multiprocessing ends a forked child without exit handlers
        reader.close()
    found = read(rings)
    assert {key: step_numbers(records) for key, records in found.items()} == {
        (0, 0): [0],
        (0, 1): [0, 1],
    }


def test_rank_that_guessed_begins_again_when_it_learns_better(tmp_path: Path) -> None:
    found = read(run(tmp_path, GUESS, ROOTWALK_KEEP_RING="1"))
    assert {key: step_numbers(records) for key, records in found.items()} == {(0, 1): [0, 1, 2]}


OWN_SITECUSTOMIZE = "import sys\nsys.own_sitecustomize_ran = True\n"


def test_users_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(OWN_SITECUSTOMIZE)
    code = "assert sys.own_sitecustomize_ran and runtime is not None\nstep(2)\n"
    path = os.pathsep.join((str(BOOTSTRAP), str(own)))
    assert step_numbers(read(run(tmp_path, code, KEEP, PYTHONPATH=path))[0, 0]) == [0, 1]


def test_opentelemetry_instrument_starts_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    # `start` was called by the instrumentor: the hooks that wait for torch are in place before the script begins
    script.write_text(
        "import sys\nassert any(type(one).__name__ == 'PatchFinder' for one in sys.meta_path)\n"
        + PRELUDE
        + "step(2)\n"
    )
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument"))]
    command += [
        "--traces_exporter",
        "none",
        "--metrics_exporter",
        "none",
        "--logs_exporter",
        "none",
    ]
    rings = tmp_path / "rings"
    done = subprocess.run(
        [*command, sys.executable, str(script)],
        env={**os.environ, **KEEP, "ROOTWALK_RING_DIRECTORY": str(rings), "ROOTWALK_JOB": "test"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert step_numbers(read(rings)[0, 0]) == [0, 1]


# What stands for the hooks where they are off: takes every call.
IDLE = """
class Idle:
    def __getattr__(self, name):
        return lambda *_: None
runtime = runtime or Idle()
"""
FAILS = """
step(2)
def work(kind):
    if kind == "exit":
        sys.exit(3)
    if kind == "replaced":
        sys.excepthook = lambda *_: None  # somebody else's, which does not chain ours
    if kind == "gone":
        sys.excepthook = lambda *_: os._exit(5)
        from rootwalk.instrumentation.program_end import watch_exceptions
        watch_exceptions(runtime.note_exception)
    raise LookupError("text of an exception")
work(os.environ["FAILS"])
"""
FAILS_BEFORE_TRAINING = """
import no_such_module_of_anybody
"""
FAILS_IN_A_HELPER = """
import subprocess
if os.environ.get("HELPER"):
    raise LookupError
subprocess.run([sys.executable, __file__], env={**os.environ, "HELPER": "1"}, stderr=subprocess.DEVNULL)
"""
FAILS_IN_A_CHILD = """
def train(rank):
    join(rank, 1)
    step(1)
    raise LookupError("text of an exception")
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=train, args=(0,))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


def fail(folder: Path, code: str, **options: str) -> tuple[int, str, list[RankException | None]]:
    """Run code that fails, with the hooks and without; return exit code, stderr and what its rings tell."""
    script, rings = folder / "script.py", folder / "rings"
    script.write_text(PRELUDE + IDLE + code)
    told = []
    for disabled in ("", "1"):
        own = {"ROOTWALK_RING_DIRECTORY": str(rings), "ROOTWALK_JOB": "test"}
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, **KEEP, **options, **own, "ROOTWALK_DISABLED": disabled},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        told.append((done.returncode, done.stderr.splitlines()[-1:]))
    assert told[0] == told[1]  # the hooks change nothing of how a program ends
    readers = [RingReader(path) for path in rings.glob("*.ring")]
    exceptions = [reader.exception() for reader in readers]
    for reader in readers:
        reader.close()
    return told[0][0], "".join(told[0][1]), exceptions


@pytest.mark.parametrize(
    ("kind", "code", "is_told"),
    [("raise", 1, True), ("replaced", 1, True), ("gone", 5, True), ("exit", 3, False)],
)
def test_exception_that_ends_a_rank(tmp_path: Path, kind: str, code: int, is_told: bool) -> None:
    returned, _, (exception,) = fail(tmp_path, FAILS, FAILS=kind)
    assert returned == code
    assert (exception is not None) == is_told
    if exception is not None:
        assert exception.kind == "LookupError"
        assert exception.frames[0].startswith("work (script.py:")


def test_exception_before_the_first_step_of_a_rank(tmp_path: Path) -> None:
    returned, error, (exception,) = fail(tmp_path, FAILS_BEFORE_TRAINING)
    assert returned == 1
    assert error.startswith("ModuleNotFoundError")
    assert exception is not None
    assert exception.kind == "ModuleNotFoundError"


def test_exception_of_a_helper_is_not_its_rank_s(tmp_path: Path) -> None:
    assert fail(tmp_path, FAILS_IN_A_HELPER) == (0, "", [])


def test_exception_of_a_rank_that_multiprocessing_runs(tmp_path: Path) -> None:
    returned, error, exceptions = fail(tmp_path, FAILS_IN_A_CHILD)
    assert returned == 1
    assert error == "LookupError: text of an exception"
    (exception,) = exceptions
    assert exception is not None
    assert exception.frames[0].startswith("train (script.py:")


def test_exception_is_sent_by_the_process_itself_where_no_agent_is(tmp_path: Path) -> None:
    with otlp_sink() as sink:
        returned, *_ = fail(tmp_path, FAILS, FAILS="raise", ROOTWALK_ENDPOINT=sink.endpoint)
        events = [
            (resource, record.event_name, attributes(record)) for resource, record in sink.events()
        ]
    assert returned == 1
    ((resource, name, values),) = events
    assert (resource["training.rank"], name) == (0, "training.process.exception")
    assert values["exception.type"] == "LookupError"
