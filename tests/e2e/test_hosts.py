"""Two hosts, one receiver: the verdict names rank and host, whatever their clocks say; and a receiver that is away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.command import EXAMPLE, processes_mentioning, query, run_rootwalk, torchrun
from support.namespaces import (
    INTERFACE,
    Machine,
    list_members,
    require_namespaces,
    two_machines,
)
from support.otlp_relay import Request, read_recording, running_relay
from support.otlp_replay import replay, shift_host
from support.ports import free_port
from support.receiver_process import running_receiver
from support.workloads import named_burn

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow]
# Whatever else runs on the machine is contention too, and is found: one quiet try of two decides.
quiet_machine = pytest.mark.flaky(reruns=1)

JOB = "two-hosts"
NEIGHBOUR = "noisy-neighbour"
HEALTHY_STEPS, STEPS = 60, 95
# Steps of about 70 ms: long beside a scheduler slice, short enough for a test.
SIZE = ("--batch", "3", "--layers", "3")
MS = 1_000_000
RINGS = Path("/dev/shm")  # noqa: S108  (where the ranks' rings are)


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_steps(process: subprocess.Popen[bytes], log: Path, steps: int, output: Path) -> None:
    deadline = time.monotonic() + 120
    while count_lines(log) < steps:
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline, f"no progress\n{output.read_text()}"
        time.sleep(0.02)


def start_rank(machine: Machine, node: int, core: int, endpoint: str, cwd: Path) -> Any:
    """Start `rootwalk run` of one host: one rank, on a core of its own."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}"]
    launcher += ["--nproc-per-node=1", "--master-addr=10.77.0.1", "--master-port=29533"]
    script = [str(EXAMPLE), "--steps", str(STEPS), "--step-log", str(cwd / "log"), *SIZE]
    run = [sys.executable, "-m", "rootwalk.graph", "run", "--endpoint", endpoint, "--job", JOB]
    pinned = ["taskset", "--cpu-list", str(core), *launcher, *script]
    environment = {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    return machine.start(
        *run, "--", *pinned, cwd=cwd, log=cwd / f"{machine.name}.out", environment=environment
    )


@contextmanager
def neighbour(machine: Machine, core: int, cwd: Path) -> Iterator[int]:
    """Run a process that burns most of one core of a machine; gives its process id."""
    code = named_burn(core, NEIGHBOUR)
    command = ["nice", "--adjustment=-5", sys.executable, "-c", code]
    process = machine.start(*command, cwd=cwd, log=cwd / "neighbour.out")
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def run_two_hosts(one: Machine, other: Machine, endpoint: str, cwd: Path) -> tuple[int, list[str]]:
    """Run the job with a neighbour on the other host; return its pid and what the two `run` said."""
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        runs = [
            start_rank(machine, node, cores[node], endpoint, cwd)
            for node, machine in enumerate((one, other))
        ]
        for process in runs:
            stack.callback(process.wait)
            stack.callback(process.terminate)
        outputs = [cwd / f"{machine.name}.out" for machine in (one, other)]
        wait_for_steps(runs[0], cwd / "log" / "rank0.jsonl", HEALTHY_STEPS, outputs[0])
        pid = stack.enter_context(neighbour(other, cores[1], cwd))
        codes = [process.wait(180) for process in runs]
    texts = [path.read_text() for path in outputs]
    assert codes == [0, 0], texts
    return pid, texts


def diagnose(store: Path) -> dict[str, Any]:
    done = run_rootwalk("diagnose", str(store), "--job", JOB, "--json", cwd=store.parent)
    assert done.returncode == 0, done.stderr
    verdict: dict[str, Any] = json.loads(done.stdout)
    return verdict


def culprit(verdict: dict[str, Any]) -> tuple[Any, ...]:
    """Return reason, rank, host, pid and name of the first finding."""
    assert verdict["findings"], verdict
    finding = verdict["findings"][0]
    subject = finding["subject"]
    aggressor = subject["aggressor"] or {}
    return (
        finding["reason"],
        subject["rank"],
        subject["host"],
        aggressor.get("pid"),
        aggressor.get("name"),
    )


def diagnose_skewed(recording: list[Request], skew_ns: int, cwd: Path) -> dict[str, Any]:
    """Return the verdict on a recording in which host-b's clock is wrong."""
    store = cwd / f"skew{skew_ns // MS}.duckdb"
    with running_receiver(store, "--flush-interval", "60s") as receiver:
        replay(shift_host(recording, "host-b", skew_ns), f"http://{receiver.http}")
        receiver.stop()
    return diagnose(store)


@quiet_machine
@pytest.mark.bpf
@pytest.mark.long
def test_two_hosts_one_verdict_whatever_their_clocks_say(tmp_path: Path) -> None:
    require_namespaces()
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two hosts: needs two cores")
    store = tmp_path / "both.duckdb"
    with two_machines() as (one, other):
        enter = one.command(cwd=tmp_path)
        with (
            running_receiver(store, http=f"{one.address}:0", enter=enter) as receiver,
            running_relay(
                tmp_path / "wire",
                listen=f"{one.address}:0",
                forward=receiver.http,
                enter=enter,
            ) as endpoint,
        ):
            pid, texts = run_two_hosts(one, other, endpoint, tmp_path)
            receiver.stop()
        holders = (one.holder, other.holder)
        assert [list_members(holder) for holder in holders] == [[], []]
    for text in texts:
        assert "Traceback" not in text
        assert f"rootwalk diagnose STORE --job {JOB}" in text

    ranks = query(store, "SELECT rank, host_name, host_id FROM ranks ORDER BY rank", cwd=tmp_path)
    assert [(row["rank"], row["host_name"]) for row in ranks] == [(0, "host-a"), (1, "host-b")]
    assert len({row["host_id"] for row in ranks}) == 2
    check_told_by_its_own_host(store)

    verdict = diagnose(store)
    assert culprit(verdict) == ("CPU_CONTENTION", 1, "host-b", pid, NEIGHBOUR)
    recording = read_recording(tmp_path / "wire")
    share_s = verdict["findings"][0]["seconds"]["share"]
    for skew_ns in (50 * MS, 5_000 * MS):
        skewed = diagnose_skewed(recording, skew_ns, tmp_path)
        assert culprit(skewed) == culprit(verdict)
        assert skewed["findings"][0]["seconds"]["share"] == pytest.approx(share_s, rel=0.1)


def check_told_by_its_own_host(store: Path) -> None:
    """Each rank's telemetry comes from the agent of its own host, once."""
    for view in ("spans", "stalls", "metrics"):
        sources = query(
            store,
            f"SELECT DISTINCT rank, host_name FROM {view} WHERE rank IS NOT NULL ORDER BY ALL",  # noqa: S608
            cwd=store.parent,
        )
        assert sources == [{"rank": 0, "host_name": "host-a"}, {"rank": 1, "host_name": "host-b"}]
    repeated = query(
        store,
        "SELECT rank, stall_key, count(*) AS n FROM (SELECT rank, thread_id || '@' || start_unix_ns"
        " AS stall_key FROM stalls) GROUP BY ALL HAVING n > 1",
        cwd=store.parent,
    )
    assert repeated == []


# Trains until a file appears, and says how many steps that were: what is to happen meanwhile has all the time it needs.
UNTIL_TOLD = """
import pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
folder, steps, stop = pathlib.Path(sys.argv[1]), 0, torch.zeros(1)
log = (folder / f"rank{dist.get_rank()}").open("w", buffering=1)
while not stop.item():
    time.sleep(0.01)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    log.write("step\\n")
    stop.fill_((folder / "stop").exists())
    dist.all_reduce(stop)
dist.destroy_process_group()
"""


def wait_for_text(path: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while text not in path.read_text():
        assert process.poll() is None, path.read_text()
        assert time.monotonic() < deadline, f'no "{text}"\n{path.read_text()}'
        time.sleep(0.05)


def start_training(endpoint: str, job: str, cwd: Path) -> subprocess.Popen[bytes]:
    """Start a job of two ranks that trains until told, under `run --endpoint`."""
    script = cwd / "until_told.py"
    script.write_text(UNTIL_TOLD)
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--endpoint", endpoint]
    command += ["--job", job, "--", *torchrun(2, str(cwd), script=script)]
    with (cwd / "out").open("wb") as output:
        return subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )


@pytest.mark.long
def test_receiver_that_is_away_and_comes_back(tmp_path: Path) -> None:
    store, output, log = tmp_path / "s.duckdb", tmp_path / "out", tmp_path / "rank0"
    address = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        process = start_training(f"http://{address}", "away", tmp_path)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        wait_for_text(output, "nobody answers at", process)
        wait_for_text(output, "nobody takes telemetry at", process)
        receiver = stack.enter_context(running_receiver(store, http=address))
        wait_for_text(output, "answers again after", process)
        receiver.kill()
        wait_for_steps(process, log, count_lines(log) + 50, output)
        receiver = stack.enter_context(running_receiver(store, http=address))
        wait_for_steps(process, log, count_lines(log) + 50, output)
        (tmp_path / "stop").touch()
        assert process.wait(60) == 0, output.read_text()
        receiver.stop()
    text = output.read_text()
    assert "Traceback" not in text
    assert "rootwalk diagnose STORE --job away" in text
    counted = query(
        store, "SELECT count(*) AS n FROM steps WHERE is_complete GROUP BY rank", cwd=tmp_path
    )
    assert counted == [{"n": count_lines(log)}] * 2
    assert processes_mentioning("--job away") == []


@pytest.mark.variant
def test_receiver_that_never_comes(tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    process = start_training(endpoint, "alone", tmp_path)
    wait_for_steps(process, tmp_path / "rank0", 20, tmp_path / "out")
    (tmp_path / "stop").touch()
    assert process.wait(60) == 0
    text = (tmp_path / "out").read_text()
    assert f"nobody answers at {endpoint} (connection refused)" in text
    assert "could not be sent and are lost" in text
    assert "Traceback" not in text
    assert [ring for ring in RINGS.glob("rootwalk-*/*") if b'"alone"' in ring.read_bytes()] == []
    assert processes_mentioning("--job alone") == []


@pytest.mark.parametrize(
    ("arguments", "saw"),
    [
        (("--endpoint", "10.0.0.1:4318"), "no such OTLP/HTTP URL"),
        (("--endpoint", "http://10.0.0.1:none"), "no such OTLP/HTTP URL"),
        (("--endpoint", "http://10.0.0.1:4318", "--json", "v.json"), "--json"),
    ],
)
def test_usage_errors(tmp_path: Path, arguments: tuple[str, ...], saw: str) -> None:
    done = run_rootwalk("run", *arguments, "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert saw in done.stderr
    assert "Traceback" not in done.stderr
