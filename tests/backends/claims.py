"""What must be true of telemetry that has been through other people's programs."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from questions import FoundSpan, find_samples, find_trace, read_attributes, wait_for
from sent import Sent
from servers import Server

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.store import query_store
from support.job_requests import JobRequests
from support.live_check import check_store
from support.otlp_replay import replay
from support.receiver_process import run_command, running_receiver
from support.stored_profiles import read_profiles

# What live detection says of a finding that it saw first: its number, which comes of the step in which it was named,
# and when that was. `cost` is of the diagnosis, not of the job.
LIVE_FIELDS = ("id", "detected_unix_ns", "named_unix_ns")
# The Collector tries again after 5 s, then after ever longer times up to 30 s.
ARRIVAL_S = 90.0
COMMAND_FAILED = "no verdict"
# What tells one collective from another.
COLLECTIVE = (semconv.COLLECTIVE_COMMUNICATOR_ID, semconv.COLLECTIVE_SEQUENCE)


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement about what was found."""

    what: str
    wanted: Any
    seen: Any

    @property
    def holds(self) -> bool:
        return bool(self.wanted == self.seen)


def check(name: str, claimed: Iterator[Claim]) -> list[Claim]:
    """Print a line for each claim; return them all."""
    made = []
    for claim in claimed:
        made.append(claim)
        print(f"{name:16} {claim.what:60} {'ok' if claim.holds else 'WRONG'}", flush=True)
        if not claim.holds:
            print(f"  wanted {claim.wanted!r}\n  saw    {claim.seen!r}", file=sys.stderr)
    return made


def about_trace(jaeger: Server, sent: Sent) -> Iterator[Claim]:
    """Ask for the trace of a slow step by its id: all ranks, one tree, the stall under the phase that it delayed."""
    if not sent.slow_traces:
        yield Claim("a step with a stall of the fault was sent", True, False)
        return
    trace_id, (attribute, value) = sent.slow_traces[len(sent.slow_traces) // 2], sent.stall
    wait_for(lambda: len(find_trace(jaeger.traces, trace_id)), len(sent.span_ids[trace_id]))
    spans = find_trace(jaeger.traces, trace_id)
    by_id = {span.span_id: span for span in spans}
    ranks = Counter(span.rank for span in spans if span.name == "training.rank_step")
    yield Claim("the slow step's trace has every rank", Counter(range(sent.ranks)), ranks)
    roots = [span.name for span in spans if not span.parent_id]
    yield Claim("it has one root", ["training.step"], roots)
    orphans = [span.name for span in spans if span.parent_id and span.parent_id not in by_id]
    yield Claim("every other span has its parent there", [], orphans)
    yield _about_links(spans)
    stalls = {
        (span.rank, span.attributes.get("training.phase"), by_id[span.parent_id].name)
        for span in spans
        if span.parent_id in by_id
        if span.attributes.get(attribute) == value
    }
    wanted = {(sent.fault_rank, phase, phase) for _, phase, _ in stalls}
    yield Claim(
        "the stall is under its phase, with its culprit", (True, wanted), (bool(stalls), stalls)
    )


def _about_links(spans: Sequence[FoundSpan]) -> Claim:
    """Look where the ranks' parts of each collective link to: all to one place, which no other collective has."""
    places = defaultdict(set)
    for span in spans:
        if span.name.startswith("collective."):
            places[*(span.attributes[key] for key in COLLECTIVE)].add(span.links)
    one_each = {links for found in places.values() if len(found) == 1 for links in found}
    seen = (bool(places), len(one_each), {len(links) for links in one_each})
    return Claim("ranks' collectives link to the shared one", (True, len(places), {1}), seen)


def about_spans(jaeger: Server, sent: Sent) -> Claim:
    """Ask for every step's trace: each span that was sent is there once."""

    names: dict[str, str] = {}

    def found() -> Counter[str]:
        traces = (find_trace(jaeger.traces, trace_id) for trace_id in sent.span_ids)
        spans = [span for trace in traces for span in trace]
        names.update((span.span_id, span.name) for span in spans)
        return Counter(span.span_id for span in spans)

    wanted = Counter(span_id for ids in sent.span_ids.values() for span_id in ids)
    seen = wait_for(found, wanted)
    what = f"{wanted.total()} spans sent, {seen.total()} spans found"
    differ = sorted((wanted - seen) + (seen - wanted))[:10]
    return Claim(what, [], [(one, names.get(one), wanted[one], seen[one]) for one in differ])


def about_large_step(jaeger: Server, store: Path, step: int, open_s: float) -> Claim:
    """Ask for a step of many ranks: it is one trace, whole, and comes before a person loses patience."""
    query = f"SELECT trace_id, span_id FROM spans WHERE step = {step} ORDER BY 2"  # noqa: S608
    rows = query_store(store, query)[2]
    (trace_id,), wanted = {str(row[0]) for row in rows}, [str(row[1]) for row in rows]
    wait_for(lambda: len(find_trace(jaeger.traces, trace_id)), len(wanted))
    began_s = time.monotonic()
    seen = sorted(span.span_id for span in find_trace(jaeger.traces, trace_id))
    took_s = time.monotonic() - began_s
    what = f"a step of {len(wanted)} spans is one trace, there in {took_s:.2f} s"
    return Claim(what, (wanted, True), (seen, took_s < open_s))


def about_metrics(prometheus: Server, sent: Sent) -> Iterator[Claim]:
    """Ask for the threads' times by rank: the last value of every series is the one that was sent last."""
    query = f'training_thread_time_seconds_total{{training_job_id="{sent.job}"}}'
    wanted = {key: round(seconds, 6) for key, seconds in sent.thread_s.items()}

    def found() -> dict[tuple[int, str, str], float]:
        values = {}
        for labels, value in find_samples(prometheus.api, query):
            thread = labels["training_thread_role"], labels["training_thread_state"]
            values[int(labels["training_rank"]), *thread] = round(value, 6)
        return values

    yield Claim(f"{len(wanted)} thread times by rank, role, state", wanted, wait_for(found, wanted))
    sums = find_samples(prometheus.api, f"sum by (training_rank) ({query})")
    ranks = sorted(int(labels["training_rank"]) for labels, _ in sums)
    yield Claim("and by rank", list(range(sent.ranks)), ranks)


def read_findings(folder: Path) -> list[Any]:
    """Return the log records of findings in what the Collector's file exporter has written so far."""
    file = folder / "logs.jsonl"
    if not file.exists():
        return []
    records = []
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):  # the last line may be half written
            for group in json.loads(line)["resourceLogs"]:
                records += [one for scope in group["scopeLogs"] for one in scope["logRecords"]]
    return [one for one in records if one.get("eventName", "").startswith("rootwalk.finding.")]


def wait_for_finding(folder: Path) -> list[Any]:
    """Return the findings that were written, once there is one."""
    wait_for(lambda: bool(read_findings(folder)), True, 120.0)
    return read_findings(folder)


def about_finding(records: Sequence[Any], sent: Sent) -> Iterator[Claim]:
    """Look at what the file exporter has of the finding: what, who, how bad, and on which step's trace."""
    opened = [one for one in records if one["eventName"] == "rootwalk.finding.opened"]
    yield Claim("a finding is among the log records", True, bool(opened))
    for record in opened[-1:]:
        attributes = read_attributes(record)
        seen = (
            attributes["rootwalk.finding.reason"],
            attributes["training.rank"],
            sent.stall[1] in record["body"]["stringValue"],
        )
        yield Claim("with reason, rank and culprit", (sent.reason, sent.fault_rank, True), seen)
        yield Claim("on the trace of a slow step", True, record["traceId"] in sent.slow_traces)


def about_mark(jaeger: Server, records: Sequence[Any], sent: Sent) -> Iterator[Claim]:
    """Ask for the trace that a finding names: a span under the culprit's part of the step says what it says."""
    (*_, record) = [one for one in records if one["eventName"] == "rootwalk.finding.opened"]

    def found() -> list[tuple[str, str, Any]]:
        spans = {span.span_id: span for span in find_trace(jaeger.traces, record["traceId"])}
        marks = [span for span in spans.values() if span.name == "rootwalk.finding"]
        return [
            (mark.message, spans[mark.parent_id].name, spans[mark.parent_id].rank)
            for mark in marks
            if mark.attributes["rootwalk.finding.id"] == finding
        ]

    finding = read_attributes(record)["rootwalk.finding.id"]
    wanted = [(record["body"]["stringValue"], "training.rank_step", sent.fault_rank)]
    yield Claim("the culprit's step says so in its trace", wanted, wait_for(found, wanted))


def about_sums(prometheus: Server, sent: Sent, store: Path) -> Iterator[Claim]:
    """Ask for what live detection has counted: findings by reason and rank, as its store has them, and steps."""
    who = f'{{training_job_id="{sent.job}"}}'

    def found() -> set[tuple[str, str]]:
        samples = find_samples(prometheus.api, f"rootwalk_finding_lost_time_seconds_total{who} > 0")
        return {(s["rootwalk_finding_reason"], s.get("training_rank", "")) for s, _ in samples}

    # On a real job, with more ranks than cores, it may have named more than the fault for a while, nobody's rank too.
    kept = f"SELECT reason, rank FROM live_findings WHERE job = '{sent.job}'"  # noqa: S608
    rows = query_store(store, kept)[2]
    wanted = {(str(reason), "" if rank is None else str(rank)) for reason, rank in rows}
    yield Claim(
        "the fault is among what was counted", True, (sent.reason, str(sent.fault_rank)) in wanted
    )
    yield Claim("seconds lost by reason and rank", wanted, wait_for(found, wanted))
    steps = find_samples(prometheus.api, f"training_step_duration_seconds_count{who}")
    yield Claim("steps are counted", True, bool(steps) and steps[0][1] > 0)


def about_names(prometheus: Server, job: str) -> Claim:
    """Ask for the names of all series of a job that has sent every metric: as many as the registry has."""
    query = f'count by (__name__) ({{training_job_id="{job}", service_name="every-metric"}})'
    wanted = len(semconv.METRICS)

    def found() -> int:
        names = {labels["__name__"] for labels, _ in find_samples(prometheus.api, query)}
        histograms = {name.removesuffix("_bucket") for name in names if name.endswith("_bucket")}
        return len(names) - 2 * len(histograms)

    return Claim(f"{wanted} metrics of the registry are there", wanted, wait_for(found, wanted))


def about_profiles(near: Path, far: Path) -> Iterator[Claim]:
    """Hold the stacks of a store against those that came to another through a Collector: every field of each sample."""
    (profiles, samples), found = read_profiles(near), read_profiles(far)
    ranks = {rank for *_, rank, _, _ in profiles}
    yield Claim("stacks of both ranks were taken", (True, {0, 1}), (len(samples) > 100, ranks))
    what = f"{len(profiles)} profiles, {len(samples)} samples: the same behind the Collector"
    differ = [
        next(((a, b) for a, b in itertools.zip_longest(*rows) if a != b), None)
        for rows in ((profiles, found[0]), (samples, found[1]))
    ]
    yield Claim(what, [None, None], differ)


def about_registry(store: Path) -> Claim:
    """Hold everything of ours in a store against the registry."""
    return Claim("all of it is in the registry", [], check_store(store))


def with_marks(sent: Sent, store: Path) -> Sent:
    """Return what was sent with the marks that the receiver of a store has added to it."""
    added = defaultdict(set, {trace: set(ids) for trace, ids in sent.span_ids.items()})
    query = "SELECT trace_id, span_id FROM spans WHERE name = 'rootwalk.finding'"
    for trace_id, span_id in query_store(store, query)[2]:
        added[str(trace_id)].add(str(span_id))
    return replace(sent, span_ids={trace: frozenset(ids) for trace, ids in added.items()})


def about_events(records: Sequence[Any], store: Path) -> Iterator[Claim]:
    """Hold the findings that the file exporter has against those that the receiver sent on."""
    events = "SELECT event_name, trace_id, attributes ->> '$.\"rootwalk.finding.id\"' FROM logs"
    rows = query_store(store, f"{events} WHERE event_name LIKE 'rootwalk.finding.%' ORDER BY ALL")[
        2
    ]
    seen = sorted(
        (one["eventName"], one["traceId"], read_attributes(one)["rootwalk.finding.id"])
        for one in records
    )
    yield Claim("findings as log records, as they were sent", (True, rows), (bool(seen), seen))


def import_files(store: Path, folder: Path) -> None:
    """Put the files of the Collector's into a store with the command that users have."""
    files = map(str, sorted(folder.iterdir()))
    done = run_command("import", "otlp", *files, "--store", str(store), cwd=store.parent)
    assert done.returncode == 0, done.stderr


def store_directly(job: JobRequests, folder: Path) -> Path:
    """Return a store of a job whose requests went to a receiver without anything between."""
    path = folder / f"direct-{job.job.name}.duckdb"
    again = JobRequests(job.job, job.begin_unix_ns)
    with running_receiver(path) as receiver:
        replay(again.steps(0, job.job.steps - 1), f"http://{receiver.http}")
        receiver.stop()
    return path


def read_verdict(store: Path, job: str) -> Any:
    """Return the verdict without what is not of the job; what the command said when there is none."""
    done = run_command("diagnose", str(store), "--job", job, "--json", cwd=store.parent)
    if done.returncode != 0:
        return (COMMAND_FAILED, done.stderr)
    verdict = json.loads(done.stdout)
    del verdict["cost"]
    for finding in verdict["findings"]:
        for field in LIVE_FIELDS:
            del finding[field]
    return verdict


def about_verdict(what: str, store: Path, other: Path, job: str) -> Claim:
    """Hold the verdict of one store against that of another; what differs is what is shown."""
    wanted, seen = read_verdict(other, job), read_verdict(store, job)
    is_equal = wanted == seen and COMMAND_FAILED not in wanted
    return Claim(f"verdict {what}: the same", "equal", "equal" if is_equal else (wanted, seen))


def about_cause(store: Path, sent: Sent) -> Claim:
    """Hold the first finding of a store against the job's fault."""
    verdict = read_verdict(store, sent.job)
    findings = [] if COMMAND_FAILED in verdict else verdict["findings"]
    seen = [(one["reason"], one["subject"]["rank"]) for one in findings[:1]]
    return Claim("and names the fault", [(sent.reason, sent.fault_rank)], seen)


def jobs_of(store: Path) -> list[str]:
    """Return the jobs of which a store has spans."""
    rows = query_store(store, "SELECT DISTINCT job FROM spans WHERE job IS NOT NULL ORDER BY job")[
        2
    ]
    return [str(job) for (job,) in rows]


def about_arrival(store: Path, job: JobRequests) -> Claim:
    """Wait until a store has everything that was sent."""
    wanted = _count_sent(job)

    def found() -> tuple[int, int]:
        with contextlib.suppress(StoreError):  # it is being made
            return _count_stored(store, job.job.name)
        return 0, 0

    return Claim("everything arrives later", wanted, wait_for(found, wanted, ARRIVAL_S))


def about_shards(stores: Sequence[Path], jobs: Sequence[JobRequests]) -> Iterator[Claim]:
    """Look into both stores: each job is whole in one of them, and no job is in two."""
    held = [jobs_of(store) for store in stores]
    yield Claim(
        "each job is in one store",
        sorted(job.job.name for job in jobs),
        sorted(itertools.chain(*held)),
    )
    for job in jobs:
        seen = [_count_stored(store, job.job.name) for store in stores]
        yield Claim(f"{job.job.name} is whole there", [(0, 0), _count_sent(job)], sorted(seen))


def _count_sent(job: JobRequests) -> tuple[int, int]:
    """Return how many spans and metric points a job has sent."""
    return sum(map(len, job.span_ids.values())), job.points


def _count_stored(store: Path, job: str) -> tuple[int, int]:
    """Return how many spans and metric points of a job a store has."""
    spans = query_store(store, f"SELECT count(*) FROM spans WHERE job = '{job}'")  # noqa: S608
    points = query_store(store, f"SELECT count(*) FROM metrics WHERE job = '{job}'")  # noqa: S608
    return spans[2][0][0], points[2][0][0]
