"""Nothing that a user would call a secret leaves the machine: whole jobs with secrets planted wherever one can be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import rootwalk.instrumentation
from support.command import query, run_rootwalk
from support.otlp_relay import Request, read_recording, running_relay
from support.otlp_sink import otlp_sink
from support.ports import free_port
from support.receiver_process import running_receiver

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.side_by_side]

# Each is unlike anything else, and is planted in one place. Thread names have at most 15 bytes.
SECRETS = {
    "environment": "zqxenvzqx7731",
    "cloud key": "zqxawszqx4410",
    "headers for another endpoint": "zqxhdrzqx2054",
    "argument": "zqxargzqx9027",
    "script": "zqxscrzqx1108",
    "folder": "zqxcwdzqx6642",
    "data set": "zqxdatzqx3359",
    "opened file": "zqxopnzqx8216",
    "main thread": "zqxmthzqx5",
    "other thread": "zqxothzqx8",
    "exception": "zqxexczqx7408",
    "aggressor's argument": "zqxaggzqx6190",
}
RANK_SCRIPT = """
import ctypes, os, pathlib, sys, threading, time, torch, torch.distributed as dist

prctl = lambda name: ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 2000
    def __getitem__(self, index):
        with open(sys.argv[1] + "/{opened file}", "rb") as file:
            return torch.tensor(list(file.read(8)), dtype=torch.float)

def spin():
    prctl("{other thread}")
    while True:
        sum(range(1000))
        time.sleep(0.001)

rank = int(os.environ["RANK"])
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {{cores[rank % len(cores)]}})
torch.set_num_threads(1)
prctl("{main thread}")
threading.Thread(target=spin, daemon=True, name="{other thread}").start()
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in torch.utils.data.DataLoader(Samples(), batch_size=40, num_workers=1):
    try:
        model(torch.ones(3))
    except RuntimeError as error:
        str(error)
    end = time.monotonic() + 0.02
    while time.monotonic() < end:
        pass
    model(batch).sum().backward()
    optimizer.step()
    try:
        raise ValueError("{exception}")
    except ValueError:
        pass
dist.destroy_process_group()
raise RuntimeError("{exception}")
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """Where the jobs run.

    Attributes:
        folder: Working directory, its name a secret.
        script: Training script, its name a secret.
        data: Folder of the data set, its name a secret.
    """

    folder: Path
    script: Path
    data: Path

    def torchrun(self) -> list[str]:
        """Return the job's command line, with a secret in it."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
        command += [f"--master-port={free_port()}", str(self.script), str(self.data)]
        return [*command, f"--api-key={SECRETS['argument']}"]

    def environment(self) -> dict[str, str]:
        """Return the job's environment, with secrets in it."""
        return {
            **os.environ,
            "SERVICE_TOKEN": SECRETS["environment"],
            "AWS_SECRET_ACCESS_KEY": SECRETS["cloud key"],
            # The user's own telemetry goes elsewhere, with a key for there.
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}",
            "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={SECRETS['headers for another endpoint']}",
            "CUDA_VISIBLE_DEVICES": "",
        }


def set_scene(folder: Path) -> Scene:
    inside = folder / SECRETS["folder"]
    inside.mkdir()
    script = inside / f"train_{SECRETS['script']}.py"
    script.write_text(RANK_SCRIPT.format_map(SECRETS))
    data = inside / SECRETS["data set"]
    data.mkdir()
    (data / SECRETS["opened file"]).write_bytes(bytes(64))
    return Scene(inside, script, data)


@contextmanager
def aggressor() -> Iterator[int]:
    """Run a process in every rank's way, a secret on its command line; gives its process id."""
    code = "while True: pass"
    process = subprocess.Popen([sys.executable, "-c", code, SECRETS["aggressor's argument"]])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def run_job(
    scene: Scene, endpoint: str, *options: str, job: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a job under `rootwalk run`; it ends with an exception."""
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--endpoint", endpoint, "--job", job]
    return subprocess.run(
        [*command, *options, "--", *scene.torchrun()],
        cwd=scene.folder,
        env=scene.environment() | environment,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def run_alone(scene: Scene, endpoint: str, job: str) -> subprocess.CompletedProcess[str]:
    """Run a job whose ranks send by themselves, no agent on the host."""
    bootstrap = Path(rootwalk.instrumentation.__path__[0]).resolve() / "bootstrap"
    own = {"PYTHONPATH": str(bootstrap), "ROOTWALK_JOB": job, "ROOTWALK_ENDPOINT": endpoint}
    return subprocess.run(
        scene.torchrun(),
        cwd=scene.folder,
        env=scene.environment() | own,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def find_secrets(text: bytes) -> list[str]:
    return [place for place, secret in SECRETS.items() if secret.encode() in text]


def wire_text(requests: list[Request]) -> bytes:
    """Return all that left: header lines, paths and bodies."""
    heads = [json.dumps([request.path, request.headers]).encode() for request in requests]
    return b"\n".join([*heads, *(request.body for request in requests)])


def store_text(store: Path) -> bytes:
    """Return everything that the store holds, its own compression undone."""
    views = ("spans", "metrics", "logs", "profiles", "jobs", "ranks", "sensors", "nodes", "edges")
    rows = [query(store, f"FROM {view}", cwd=store.parent) for view in views]
    return json.dumps(rows).encode() + store.read_bytes()


def verdict_text(store: Path, job: str) -> bytes:
    texts = []
    for form in ((), ("--json",)):
        done = run_rootwalk("diagnose", str(store), "--job", job, *form, cwd=store.parent)
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    return "\n".join(texts).encode()


@pytest.mark.long
def test_no_secret_of_a_whole_job_leaves(tmp_path: Path) -> None:
    scene = set_scene(tmp_path)
    store, wire = tmp_path / "s.duckdb", tmp_path / "wire"
    jobs = ("bpf", "proc", "alone")
    with running_receiver(store) as receiver:
        with running_relay(wire, forward=receiver.http) as endpoint:
            with aggressor() as pid:
                first = run_job(scene, endpoint, job="bpf")
            done = [
                first,
                run_job(scene, endpoint, "--without", "bpf", job="proc"),
                run_alone(scene, endpoint, job="alone"),
            ]
        receiver.stop()
    for process in done:
        assert process.returncode == 1, process.stderr
        assert SECRETS["exception"] in process.stderr  # the job itself says what it wants to

    # All of it was there to be seen: both ranks' steps, by every way, and the threads whose names are secret.
    steps = query(
        store,
        "SELECT job, count(*) AS n FROM steps WHERE is_complete GROUP BY ALL",
        cwd=tmp_path,
    )
    assert {row["job"]: row["n"] for row in steps} == dict.fromkeys(jobs, 100)
    names = query(
        store,
        "SELECT DISTINCT job, role, thread_name FROM stalls WHERE starts_with(thread_name, 'thread-')",
        cwd=tmp_path,
    )
    culprits = query(store, "SELECT DISTINCT aggressor_pid AS pid FROM stalls", cwd=tmp_path)
    if query(store, "FROM steps WHERE sensor = 'core' LIMIT 1", cwd=tmp_path):
        assert {(row["job"], row["role"]) for row in names} >= {("bpf", "main")}
        assert pid in {row["pid"] for row in culprits}

    requests = read_recording(wire)
    # Events of the host, which go as logs, are not had by every kernel.
    paths = {request.path for request in requests}
    assert paths - {"/v1/logs"} == {"/v1/traces", "/v1/metrics"}
    assert find_secrets(wire_text(requests)) == []
    for job in jobs:
        assert find_secrets(verdict_text(store, job)) == []
    assert find_secrets(store_text(store)) == []


@pytest.mark.long
def test_user_may_let_thread_names_through(tmp_path: Path) -> None:
    scene = set_scene(tmp_path)
    wire = tmp_path / "wire"
    with running_relay(wire) as endpoint:
        run_job(scene, endpoint, job="open", ROOTWALK_REDACT="0")
    found = find_secrets(wire_text(read_recording(wire)))
    assert "main thread" in found
    assert set(found) <= {
        "main thread",
        "other thread",
    }  # the other one when it was in somebody's way


# A user's job with telemetry of its own, for an endpoint of the user's.
OWN_TELEMETRY = """
import torch
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with provider.get_tracer("mine").start_as_current_span("my-training"):
    for _ in range(20):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
provider.shutdown()
"""


@pytest.mark.long
def test_telemetry_of_the_job_itself_goes_where_the_user_says(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(OWN_TELEMETRY)
    key = f"api-key={SECRETS['headers for another endpoint']}"
    with otlp_sink() as sink:
        done = run_rootwalk(
            "run", "--store", "s.duckdb", "--job", "own", "--", sys.executable, str(script),
            cwd=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=sink.endpoint,
            OTEL_EXPORTER_OTLP_HEADERS=key,
            OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Its own telemetry straight from the job, ours from our receiver; both with the key.
    assert [span.name for span in sink.spans()].count("my-training") == 1
    assert "rootwalk.sensor.state" in sink.metric_names()
    assert {headers["api-key"] for _, headers in sink.headers} == {key.removeprefix("api-key=")}
    store = tmp_path / "s.duckdb"
    assert query(store, "SELECT count(*) AS n FROM steps", cwd=tmp_path) == [{"n": 20}]
    assert query(store, "FROM spans WHERE name = 'my-training'", cwd=tmp_path) == []
    states = query(
        store,
        "SELECT count(*) > 0 AS told FROM metrics WHERE name = 'rootwalk.sensor.state'",
        cwd=tmp_path,
    )
    assert states == [{"told": True}]
