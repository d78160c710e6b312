"""A host that never called, as its forked child waits for an inherited lock: dumps and made-up stacks in a store."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.importers.flight_recorder import make_request
from rootwalk.graph.render.text import render_text
from rootwalk.instrumentation.profiles import Profile, Sample, build_request
from rootwalk.otel_receiver.imports import save_import
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import save_journal_batch
from support.flight_dumps import START_NS, FlightJob
from support.log_and_profile_messages import log_record, log_request
from support.sampled_jobs import COUNT, CPU, NS, OFF_CPU, PERIOD_NS, made_frame, save
from support.verdicts import check_verdict

JOB = "train"
PARENT = "<module>;main;train_step"
FORK = f"{PARENT};BaseProcess.start;Popen.__init__;Popen._launch;BaseProcess._bootstrap;BaseProcess.run"
LOCKED = f"{FORK};_worker_loop;Shard.__getitem__;write_log;lock_acquire@python3;futex_wait@vmlinux"
WAITS = f"{PARENT};_MultiProcessingDataLoaderIter._try_get_data;Queue.get;_poll;do_poll@vmlinux"
SPAWNED = (
    "<module>;spawn_main;_main;BaseProcess._bootstrap;BaseProcess.run;write_log;futex_wait@vmlinux"
)
FULL = f"{FORK};_worker_loop;Queue.get;SemLock.acquire@_multiprocessing;futex_wait@vmlinux"
READS = f"{FORK};_worker_loop;Shard.__getitem__;read@libc;nfs_wait@vmlinux"


def of_rank(rank: int) -> dict[str, str | int]:
    return {"training.job.id": JOB, "training.rank": rank, "host.name": "h"}


def sample(stack: str, seconds: float, role: str) -> Sample:
    frames = tuple(made_frame(name) for name in reversed(stack.split(";")))
    return Sample(frames, round(seconds * NS), {"training.thread.role": role}, None)


def end_of(second: float, *, is_child: bool) -> Any:
    """Return the log record of the end of a process of rank 1: itself with an error, or its child by a signal."""
    attributes: dict[str, Any] = {
        "process.pid": 7 + is_child,
        "training.process.is_child": is_child,
    }
    attributes |= {"training.signal.name": "SIGKILL"} if is_child else {"process.exit.code": 3}
    return log_record(
        time_unix_nano=START_NS + round(second * NS),
        event_name="training.process.end",
        attributes=attributes,
    )


def solve(
    path: Path,
    worker: str,
    main: str = WAITS,
    *,
    decodes_s: float = 0.0,
    ends: Sequence[Any] = (),
    late: Sequence[int] = (1,),
) -> tuple[str, str]:
    """Return reason and band of ranks that have not called: what their workers and main threads did for 20 s."""
    job = FlightJob(4, {"0": range(4)})
    job.call_all([rank for rank in range(4) if rank not in late], "0")
    save_import(path, [make_request(record, JOB, 0) for record in job.records()])
    profiles = []
    for rank, number in itertools.product(late, range(4)):
        resource = of_rank(rank)
        span = (START_NS + (1 + 5 * number) * NS, 5 * NS)
        waits = [sample(worker, 5.0, "loader_worker"), sample(main, 5.0, "main")]
        profiles.append(Profile(resource, *span, OFF_CPU, waits))
        runs = sample(READS, 0.0, "loader_worker")
        count = round(decodes_s / 4 * NS / PERIOD_NS)
        ran = Sample(runs.frames, count, runs.attributes, None)
        profiles.append(Profile(resource, *span, COUNT, [ran] if count else [], CPU, PERIOD_NS))
    save(path, [build_request(profiles, "test", "1")])
    if ends:
        save_journal_batch(
            path, [JournalRecord(Signal.LOGS, 99, log_request(ends, of_rank(late[0])), 1, 99)]
        )
    verdict = check_verdict(diagnose(path, job=JOB))
    (finding,) = verdict.findings
    assert finding.subject.ranks == tuple(late)
    assert verdict.victims.ranks == tuple(rank for rank in range(4) if rank not in late)
    if finding.reason == "FORK_DEADLOCK":
        assert finding.layer == "application"
        rows = [row for row in finding.evidence if row.unit == "s"]
        told = {(row.signal, row.value) for row in rows}
        assert told == {("profile.frame.off_cpu: write_log", 20.0)}
        assert len(rows) == len(late)
        text = " ".join(render_text(verdict).split())
        assert text.count("a child in write_log for 20 s") == 1
    return finding.reason, finding.confidence.band


def test_a_forked_child_in_an_inherited_lock_is_named(tmp_path: Path) -> None:
    assert solve(tmp_path / "s.duckdb", LOCKED) == ("FORK_DEADLOCK", "high")


def test_several_ranks_with_such_a_child_are_one_finding(tmp_path: Path) -> None:
    assert solve(tmp_path / "s.duckdb", LOCKED, late=(1, 2)) == ("FORK_DEADLOCK", "high")


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ((end_of(5.0, is_child=True),), "NOT_JOINED"),
        ((end_of(5.0, is_child=True), end_of(21.0, is_child=False)), "NOT_JOINED"),
        ((end_of(21.0, is_child=False), end_of(21.001, is_child=True)), "FORK_DEADLOCK"),
    ],
    ids=["a child was killed", "a child was killed, then the rank left", "it ended with its rank"],
)
def test_a_child_that_was_killed_may_be_what_is_waited_for(
    tmp_path: Path, ends: tuple[Any, ...], reason: str
) -> None:
    assert solve(tmp_path / "s.duckdb", LOCKED, ends=ends)[0] == reason


@pytest.mark.parametrize(
    ("worker", "main", "decodes_s"),
    [
        (SPAWNED, WAITS, 0.0),
        (FULL, WAITS, 0.0),
        (READS, WAITS, 0.0),
        (LOCKED, WAITS, 15.0),
        (LOCKED, f"{PARENT};sleep@libc", 0.0),
    ],
    ids=["spawned", "waits for work", "reads", "another worker decodes", "nobody waits for it"],
)
def test_what_looks_like_it_is_a_host_that_did_not_join(
    tmp_path: Path, worker: str, main: str, decodes_s: float
) -> None:
    found = solve(tmp_path / "s.duckdb", worker, main, decodes_s=decodes_s)
    assert found[0] == "NOT_JOINED"
