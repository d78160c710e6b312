"""The deployments that `through_backends` lists: a job, the way of its telemetry, what is claimed of its ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import claims  # noqa: E402
import requests  # noqa: E402
from dashboards import is_of_any_machine, read_queries, unanswered  # noqa: E402
from instrumented import about_instrument  # noqa: E402
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: E402
    ExportTraceServiceRequest,
)
from questions import wait_for  # noqa: E402
from sent import Sent, sent_by, sent_to  # noqa: E402
from servers import (  # noqa: E402
    EXAMPLES,
    Server,
    running_collector,
)

from rootwalk.graph.live.findings import Exemplar  # noqa: E402
from rootwalk.graph.live.marks import build_mark  # noqa: E402
from rootwalk.graph.live.track import Ledger  # noqa: E402
from rootwalk.instrumentation import ids, semconv  # noqa: E402
from support.every_metric import build_every_metric  # noqa: E402
from support.job_requests import JobRequests  # noqa: E402
from support.jobs import NS, Fault, Job  # noqa: E402
from support.large_jobs import LargeJob, write_large_job  # noqa: E402
from support.live_verdicts import make_episode, make_finding, make_verdict  # noqa: E402
from support.otlp_replay import replay  # noqa: E402
from support.ports import free_ports  # noqa: E402
from support.receiver_process import run_command, running_receiver  # noqa: E402

RANKS = 4
STEPS = 100
# Of the job that is watched: on a busy machine it takes a while until the watcher looks.
WATCHED_STEPS = 200
FAULT = Fault("contention", 3, 0.060, 60)
# The real job: small enough for four ranks on two cores; its fault blocks a rank for twice as long as a step takes, so
# that live detection, which yields to the ranks, finds an idle core in each step. Of its steps so many that what it
# counts has rates over a minute.
REAL_BUG, REAL_REASON, REAL_ONSET = "blocking_log", "BLOCKING_LOG", "160"
REAL_STALL = (semconv.TRAINING_WAIT_KIND, semconv.TrainingWaitKind.PIPE_WRITE.value)
REAL_SIZE = ("--steps", "700", "--width", "128", "--layers", "1", "--batch", "2", "--window", "64")
STACKS_DEMO = ("--fault", "python_gc", "--ranks", "2", "--steps", "60", "--profile-hz", "49")
# Steps that a watcher gets at once: it tells what happens after it first saw a job.
FIRST_STEPS = 64
# How long a step takes here, whatever it says: the watcher looks about once a second.
STEP_S = 0.5
JOB_AGE_S = 60
# A step of so many ranks in tensor, pipeline, data and expert parallelism, each with some 40 spans; how long a back end
# may take to answer its trace: who opens a page waits no longer.
LARGE, LARGE_STEP, OPEN_S = LargeJob(64, history=3, window=2), 3, 3.0
# What a job's telemetry takes at most to be handed over; 3 s on an idle machine.
AWAY_S = 30.0


@dataclass(frozen=True, slots=True)
class Servers:
    """The back ends of one run, and its folder."""

    jaeger: Server
    prometheus: Server
    folder: Path

    def ways(self, telemetry: Path | str) -> dict[str, str]:
        """Return what from-rootwalk.yaml has to know: both back ends, and a folder for its files."""
        return {
            "JAEGER_GRPC": self.jaeger.otlp,
            "PROMETHEUS_OTLP": self.prometheus.otlp,
            "TELEMETRY_FOLDER": str(telemetry),
        }


def make_job(name: str, steps: int = STEPS) -> JobRequests:
    """Return a job of four ranks on two hosts; another process takes the CPU of rank 3 from step 60 on."""
    job = Job(name, ranks=RANKS, steps=steps, hosts=2, faults=(FAULT,))
    return JobRequests(job, time.time_ns() - JOB_AGE_S * NS)


def send(job: JobRequests, url: str, first: int = 0, last: int = STEPS - 1) -> None:
    """Send steps of a job, ten at once, as its ranks and agents do."""
    for begin in range(first, last + 1, 10):
        replay(job.steps(begin, min(begin + 9, last)), url)


def about_back_ends(servers: Servers, sent: Sent) -> Iterator[claims.Claim]:
    """Ask Jaeger and Prometheus for what was sent."""
    yield from claims.about_trace(servers.jaeger, sent)
    yield claims.about_spans(servers.jaeger, sent)
    yield from claims.about_metrics(servers.prometheus, sent)


def from_rootwalk(servers: Servers) -> Iterator[claims.Claim]:
    """Run a job beside a receiver with live detection that forwards everything."""
    job = make_job("forwarded", WATCHED_STEPS)
    near, far, written = (servers.folder / name for name in ("near.duckdb", "far.duckdb", "live"))
    written.mkdir()
    ways = servers.ways(written)
    with running_collector("from-rootwalk.yaml", servers.folder, **ways) as collector:
        options = ("--diagnose", "--flush-interval", "200ms", "--forward", collector)
        with running_receiver(near, *options) as receiver:
            url = f"http://{receiver.http}"
            send(job, url, 0, FIRST_STEPS - 1)
            for step in range(FIRST_STEPS, WATCHED_STEPS):
                send(job, url, step, step)
                time.sleep(0.0 if claims.read_findings(written) else STEP_S)
            opened = claims.wait_for_finding(written)
            receiver.stop()
    sent = claims.with_marks(sent_by(job), near)
    yield from about_back_ends(servers, sent)
    yield from claims.about_finding(opened, sent)
    yield from claims.about_mark(servers.jaeger, opened, sent)
    yield from claims.about_sums(servers.prometheus, sent, near)
    yield claims.about_registry(near)
    claims.import_files(far, written)
    yield claims.about_verdict("file imported", far, near, sent.job)
    yield claims.about_cause(far, sent)


def train(job: str, store: Path, collector: str, *options: str) -> tuple[int, str]:
    """Train under `rootwalk run`; the fault comes once so many steps are over. Return the exit code and all words."""
    bug = store.with_suffix(".bug")
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--store", str(store)]
    command += ["--job", job, "--", str(Path(sys.executable).with_name("torchrun"))]
    command += [f"--nproc-per-node={RANKS}", str(EXAMPLES.parent / "train_with_bug.py")]
    command += ["--bug", REAL_BUG, "--bug-rank", str(FAULT.rank), "--bug-file", str(bug)]
    process = subprocess.Popen(
        [*command, *REAL_SIZE, *options],
        env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = []
    for line in process.stdout or ():
        said.append(line)
        if line.split()[:2] == ["step", REAL_ONSET]:
            bug.touch()
    return process.wait(60), "".join(said)


def real_job(servers: Servers) -> Iterator[claims.Claim]:
    """Train a real job with a real fault under `rootwalk run`, which forwards to the Collector."""
    folder = Path(tempfile.mkdtemp(dir=servers.folder, prefix="real-"))  # and the job's name
    near, far, written = (folder / name for name in ("real.duckdb", "again.duckdb", "real"))
    written.mkdir()
    ways = servers.ways(written)
    with running_collector("from-rootwalk.yaml", servers.folder, **ways) as collector:
        code, said = train(folder.name, near, collector)
    yield claims.Claim("the job was trained", 0, code)
    verdict = claims.read_verdict(near, folder.name)
    found = [(one["reason"], one["subject"]["rank"]) for one in verdict["findings"][:1]]
    yield claims.Claim("and its fault found", [(REAL_REASON, FAULT.rank)], found)
    if not found:
        print(said, file=sys.stderr)
    sent = sent_to(near, folder.name, RANKS, FAULT.rank, REAL_STALL, REAL_REASON)
    yield from about_back_ends(servers, sent)
    yield from claims.about_events(claims.read_findings(written), near)
    yield from claims.about_sums(servers.prometheus, sent, near)
    yield claims.about_registry(near)
    missing = unanswered(servers.prometheus, servers.jaeger, list(read_queries(sent.job)))
    wrong = [query for query in missing if is_of_any_machine(query)]
    yield claims.Claim("every query that this machine has data for is answered", [], wrong)
    for board, panel in sorted({(one.board, one.panel) for one in missing}):
        print(f"real-job         unverified, nothing here to show: {board}, {panel}", flush=True)
    claims.import_files(far, written)
    yield claims.about_verdict("file imported", far, near, sent.job)


def beside_rootwalk(servers: Servers) -> Iterator[claims.Claim]:
    """Send a job to a Collector that has Rootwalk as one of its exporters."""
    job = make_job("beside")
    store = servers.folder / "beside.duckdb"
    with running_receiver(store) as receiver:
        ways = {
            "ROOTWALK_GRPC": receiver.grpc,
            "JAEGER_GRPC": servers.jaeger.otlp,
            "PROMETHEUS_OTLP": servers.prometheus.otlp,
        }
        with running_collector("beside-rootwalk.yaml", servers.folder, **ways) as collector:
            send(job, collector)
        receiver.stop()
    sent = sent_by(job)
    yield from about_back_ends(servers, sent)
    direct = claims.store_directly(job, servers.folder)
    yield claims.about_verdict("through the Collector", store, direct, sent.job)
    yield claims.about_cause(store, sent)


def away(servers: Servers) -> Iterator[claims.Claim]:
    """Send a job while every back end is away; Rootwalk comes, the others never do."""
    job = make_job("away")
    store = servers.folder / "away.duckdb"
    grpc_port, jaeger_port, prometheus_port = free_ports(3)
    grpc = f"127.0.0.1:{grpc_port}"
    ways = {
        "ROOTWALK_GRPC": grpc,
        "JAEGER_GRPC": f"127.0.0.1:{jaeger_port}",
        "PROMETHEUS_OTLP": f"http://127.0.0.1:{prometheus_port}/api/v1/otlp",
    }
    with running_collector("beside-rootwalk.yaml", servers.folder, **ways) as collector:
        began_s = time.monotonic()
        send(job, collector)
        yield claims.Claim("senders are not held up", True, time.monotonic() - began_s < AWAY_S)
        with running_receiver(store, "--grpc", grpc, "--flush-interval", "1s") as receiver:
            yield claims.about_arrival(store, job)
            receiver.stop()
    direct = claims.store_directly(job, servers.folder)
    yield claims.about_verdict("after waiting", store, direct, job.job.name)


def large_step(servers: Servers) -> Iterator[claims.Claim]:
    """Send a step of 64 ranks, and ask for it as a person does who follows a finding."""
    store, file = servers.folder / "large.duckdb", servers.folder / "large.jsonl"
    write_large_job(store, LARGE)
    options = ("--format", "otlp", "--output", str(file), "--steps", f"{LARGE_STEP}:{LARGE_STEP}")
    assert run_command("export", str(store), *options, cwd=servers.folder).returncode == 0
    ways = servers.ways(tempfile.mkdtemp(dir=servers.folder))
    with running_collector("from-rootwalk.yaml", servers.folder, **ways) as collector:
        for line in file.read_text(encoding="utf-8").splitlines():
            body, kind = line.encode(), {"Content-Type": "application/json"}
            requests.post(
                f"{collector}/v1/traces", body, headers=kind, timeout=30
            ).raise_for_status()
    yield claims.about_large_step(servers.jaeger, store, LARGE_STEP, OPEN_S)


def shard_by_job(servers: Servers) -> Iterator[claims.Claim]:
    """Send several jobs to a Collector that shards them over two receivers."""
    jobs = [make_job(f"shard-{number}") for number in range(4)]
    stores = [servers.folder / f"shard-{number}.duckdb" for number in range(2)]
    with running_receiver(stores[0]) as first, running_receiver(stores[1]) as second:
        ways = {"ROOTWALK_0": first.grpc, "ROOTWALK_1": second.grpc}
        with running_collector("shard-by-job.yaml", servers.folder, **ways) as collector:
            for begin in range(0, STEPS, 10):
                for job in jobs:
                    send(job, collector, begin, begin + 9)
        first.stop()
        second.stop()
    yield from claims.about_shards(stores, jobs)
    name = jobs[0].job.name
    mine = next(store for store in stores if name in claims.jobs_of(store))
    direct = claims.store_directly(jobs[0], servers.folder)
    yield claims.about_verdict("of a shard", mine, direct, name)


def to_files(servers: Servers) -> Iterator[claims.Claim]:
    """Send a job to a Collector that writes it down, and import that later."""
    job = make_job("written")
    written, store = servers.folder / "written", servers.folder / "written.duckdb"
    written.mkdir()
    with running_collector(
        "to-files.yaml", servers.folder, TELEMETRY_FOLDER=str(written)
    ) as collector:
        send(job, collector)
    claims.import_files(store, written)
    direct = claims.store_directly(job, servers.folder)
    yield claims.about_verdict("file imported", store, direct, job.job.name)
    yield claims.about_cause(store, sent_by(job))


def profiles(servers: Servers) -> Iterator[claims.Claim]:
    """Run a demo with stacks that sends everything on to a Collector, which sends the stacks to another receiver."""
    folder = Path(tempfile.mkdtemp(dir=servers.folder, prefix="profiles-"))
    near, far = folder / "near.duckdb", folder / "far.duckdb"
    with running_receiver(far, "--telemetry-interval", "0") as receiver:
        ways = {
            "JAEGER_GRPC": servers.jaeger.otlp,
            "PROMETHEUS_OTLP": servers.prometheus.otlp,
            "TELEMETRY_FOLDER": str(folder),
            "PYROSCOPE_OTLP": f"http://{receiver.http}",
        }
        more = ("profiles.yaml",)
        with running_collector("from-rootwalk.yaml", folder, *more, **ways) as collector:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "rootwalk.graph",
                    "demo",
                    *STACKS_DEMO,
                    "--store",
                    str(near),
                ],
                env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector},
                capture_output=True,
                text=True,
                check=False,
            )
        receiver.stop()
    # What the verdict says is asked elsewhere, on a machine that does nothing else.
    yield claims.Claim("the demo ran", True, done.returncode in {0, 1})
    yield from claims.about_profiles(near, far)


def make_mark(job: str) -> ExportTraceServiceRequest:
    """Return what live detection sends to mark the slow step of a finding."""
    verdict = make_verdict(make_finding(), job=job)
    (notice,) = Ledger().take(verdict, make_episode(40, 44, is_open=True), time.time_ns())
    ids_of_step = ids.trace_id(job, 0, 44).hex(), ids.rank_step_id(job, 0, 44, 1).hex()
    end_unix_ns = time.time_ns()
    request = build_mark(notice, Exemplar(*ids_of_step, 44, end_unix_ns - NS, end_unix_ns))
    assert request is not None
    return request


def about_dashboards(servers: Servers) -> Iterator[claims.Claim]:
    """Send every metric of the registry through a Collector, then ask what the dashboards ask."""
    job = "every-metric"
    ways = servers.ways(tempfile.mkdtemp(dir=servers.folder))
    with running_collector("from-rootwalk.yaml", servers.folder, **ways) as collector:
        requests = build_every_metric(job, time.time_ns())
        replay((("/v1/metrics", one.SerializeToString()) for one in requests), collector)
        replay([("/v1/traces", make_mark(job).SerializeToString())], collector)
    yield claims.about_names(servers.prometheus, job)
    queries = list(read_queries(job))
    missing = wait_for(lambda: unanswered(servers.prometheus, servers.jaeger, queries), [])
    answered = len(queries) - len(missing)
    yield claims.Claim(f"{answered} of {len(queries)} queries answered", [], missing)


DEPLOYMENTS: dict[str, Callable[[Servers], Iterator[claims.Claim]]] = {
    "from-rootwalk": from_rootwalk,
    "beside-rootwalk": beside_rootwalk,
    "shard-by-job": shard_by_job,
    "to-files": to_files,
    "profiles": profiles,
}
# What is checked beside them.
OTHERS: dict[str, Callable[[Servers], Iterator[claims.Claim]]] = {
    "instrument": lambda servers: about_instrument(servers.folder),
    "away": away,
    "large-step": large_step,
    "dashboards": about_dashboards,
    "real-job": real_job,
}
