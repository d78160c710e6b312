"""A watcher on a store into which ranks report that they make no progress: what it says, when, and what it closes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from rootwalk.graph.commands.watcher import keep_status
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.live.findings import Exemplar
from rootwalk.graph.live.marks import build_mark
from rootwalk.graph.live.track import Change, Notice
from rootwalk.graph.live.watch import Watcher
from rootwalk.graph.live.words import render_notice
from rootwalk.graph.serve.watching import SignOfLife
from rootwalk.otel_receiver import store
from support.jobs import NS, START_UNIX_NS, Job, simulate, write_rows
from support.progress_reports import JOB, STUCK_S, Rank, Reports, absent, waiting
from support.stores import query_rows
from support.verdicts import check_verdict

RANKS = 4
CULPRIT = 2


class Watched:
    """A job that stands still from `STUCK_S` on, whose reports come as time passes; and a watcher of its store."""

    def __init__(self, path: Path, ranks: list[Rank]) -> None:
        self.path = path
        self.ranks = ranks
        self.now_s = STUCK_S
        self.told: list[tuple[float, Notice, Exemplar | None]] = []
        self.hurried: list[float] = []
        # Of each time that metrics were handed over: open findings, and the seconds that they have cost.
        self.measured: list[tuple[float, int, float]] = []
        store.create_store(path)
        self.watcher = Watcher(
            path,
            lambda notice, exemplar: self.told.append((self.now_s, notice, exemplar)),
            measure=self.measure,
            hurry=lambda: self.hurried.append(self.now_s),
            now_unix_ns=lambda: START_UNIX_NS + round(self.now_s * NS),
            now_s=lambda: self.now_s,
        )
        self.watcher.poll()

    def measure(self, request: ExportMetricsServiceRequest) -> None:
        (group,) = request.resource_metrics
        sums = {
            metric.name: [point.as_int + point.as_double for point in metric.sum.data_points]
            for metric in group.scope_metrics[0].metrics
        }
        if "rootwalk.finding.open" in sums:
            (opened,), (lost_s,) = sums["rootwalk.finding.open"], sums["rootwalk.finding.lost.time"]
            self.measured.append((self.now_s, int(opened), lost_s))

    def run(self, until_s: float) -> None:
        """Let time pass, second by second; all that ranks have reported is in the store a second later."""
        while self.now_s < until_s:
            before_s, self.now_s = self.now_s, self.now_s + 1.0
            reports = Reports(len(self.ranks))
            for number, rank in enumerate(self.ranks):
                reports.add_rank(number, rank, until_s + 100.0)
            reports.keep(before_s - 1.0, self.now_s - 1.0)
            if not reports.is_empty:
                reports.save(self.path, self.now_s)
                self.watcher.poll()


def four(culprit: Rank) -> list[Rank]:
    return [culprit if rank == CULPRIT else waiting() for rank in range(RANKS)]


def test_rank_that_sleeps_is_named_while_the_job_stands_still(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "s.duckdb", four(absent()))

    watched.run(STUCK_S + 30.0)

    (at_s, notice, exemplar), *more = watched.told
    assert (notice.change, notice.finding.reason, notice.finding.rank) == (
        Change.OPENED,
        "NOT_JOINED",
        CULPRIT,
    )
    assert more == []
    assert at_s <= STUCK_S + 15.0
    assert watched.hurried[0] <= STUCK_S + 7.0
    assert exemplar is None  # no step is stored
    assert render_notice(notice) == (
        "j1: stuck: rank 2: asleep in sleep_forever (train.py:57); has not called all_reduce #66 of dp0"
    )
    rows = query_rows(tmp_path / "s.duckdb", "SELECT state, reason, rank FROM findings")
    assert rows == [("open", "NOT_JOINED", CULPRIT)]


def test_final_verdict_has_the_id_and_the_times_of_the_first_naming(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    watched = Watched(path, four(absent()))
    watched.run(STUCK_S + 40.0)
    opened = watched.told[0][1].finding

    verdict = check_verdict(diagnose(path))

    (finding,) = verdict.findings
    assert (finding.id, finding.detected_unix_ns, finding.named_unix_ns) == (
        opened.id,
        opened.detected_unix_ns,
        opened.named_unix_ns,
    )


def test_job_that_goes_on_closes_the_finding_with_the_seconds_lost(tmp_path: Path) -> None:
    goes_on_s = STUCK_S + 90.0
    ranks = [
        absent(resumed_s=goes_on_s) if r == CULPRIT else waiting(resumed_s=goes_on_s + 0.01)
        for r in range(RANKS)
    ]
    path = tmp_path / "s.duckdb"
    watched = Watched(path, ranks)

    watched.run(STUCK_S + 100.0)

    assert [n.change for _, n, _ in watched.told] == [Change.OPENED, Change.CLOSED]
    at_s, closed, _ = watched.told[1]
    assert at_s <= goes_on_s + 3.0
    assert closed.finding.text.endswith("; 90 s lost")
    assert render_notice(closed).startswith("j1: goes on: rank 2: asleep")
    assert query_rows(path, "SELECT state FROM findings") == [("closed",)]


def test_watcher_that_is_started_again_tells_nothing_twice_and_closes(tmp_path: Path) -> None:
    goes_on_s = STUCK_S + 60.0  # at the moment of a report
    ranks = [
        absent(resumed_s=goes_on_s) if r == CULPRIT else waiting(resumed_s=goes_on_s)
        for r in range(RANKS)
    ]
    path = tmp_path / "s.duckdb"
    watched = Watched(path, ranks)
    watched.run(STUCK_S + 30.0)
    told: list[Notice] = []
    watched.watcher = Watcher(
        path,
        lambda notice, _: told.append(notice),
        now_unix_ns=lambda: START_UNIX_NS + round(watched.now_s * NS),
        now_s=lambda: watched.now_s,
    )
    watched.watcher.poll()

    watched.run(STUCK_S + 70.0)

    assert [notice.change for notice in told] == [Change.CLOSED]


def test_status_row_says_what_is_seen_without_blame(tmp_path: Path) -> None:
    """One rank writes a checkpoint while the others wait: nothing is found, and the row says what it does."""
    checkpoint = absent(
        rates={"io": 5e6, "cpu": 0.5},
        attributes={"training.phase": "checkpoint"},
        stacks=(("write [libc.so.6]", "save (/home/user/train.py:91)"),),
    )
    path = tmp_path / "s.duckdb"
    watched = Watched(path, four(checkpoint))

    watched.run(STUCK_S + 42.0)

    assert watched.told == []
    words = watched.watcher.quiet_words(JOB, START_UNIX_NS + round((STUCK_S + 42.0) * NS))
    assert words is not None
    assert words.startswith(
        "no progress for 42 s: after step 65, 3 of 4 ranks are in all_reduce #66 of dp0; rank 2"
    )
    assert "is in its checkpoint, its data grows" in words
    status = tmp_path / "status"
    keep_status(status, JOB, SignOfLife(path), watched.watcher.quiet_words)
    assert "checkpoint" in status.read_text()


def test_status_row_says_who_waits_in_another_call(tmp_path: Path) -> None:
    """No numbers of collectives, only stacks: all ranks wait, one of them in a call of its own."""
    library = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
    barrier = (f"barrier ({library}:4800)", "finish (/home/user/train.py:95)")
    without: dict[str, Any] = {"stage": None, "step": None, "usual_s": None, "places": ()}
    other = waiting(stacks=(barrier,), **without)
    path = tmp_path / "s.duckdb"
    watched = Watched(
        path, [other if rank == CULPRIT else waiting(**without) for rank in range(RANKS)]
    )

    watched.run(STUCK_S + 80.0)

    words = watched.watcher.quiet_words(JOB, START_UNIX_NS + round((STUCK_S + 80.0) * NS))
    assert words is not None
    assert words.endswith(
        "4 of 4 ranks are in a collective; rank 2: waits in barrier, called by finish (train.py:95);"
        " no other rank is in that call"
    )


def test_finding_marks_the_last_step_that_ended(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    watched = Watched(path, four(absent()))
    rows = simulate(Job(ranks=RANKS, steps=66))
    write_rows(path, [row | {"received_unix_ns": START_UNIX_NS} for row in rows])

    watched.run(STUCK_S + 20.0)

    _, notice, exemplar = watched.told[0]
    assert exemplar is not None
    assert exemplar.step == 65
    assert exemplar.start_unix_ns == START_UNIX_NS + round(STUCK_S * NS)
    mark = build_mark(notice, exemplar)
    assert mark is not None
    assert notice.finding.first_step == 65


def test_ranks_of_which_one_goes_on_are_not_stuck(tmp_path: Path) -> None:
    """Three ranks wait, the fourth is slow and goes on now and then: a slow job, no hang."""
    path = tmp_path / "s.duckdb"
    watched = Watched(path, four(absent(since_s=STUCK_S + 8.0, resumed_s=STUCK_S + 14.0)))
    write_rows(
        path,
        [row | {"received_unix_ns": START_UNIX_NS} for row in simulate(Job(ranks=RANKS, steps=66))],
    )

    watched.run(STUCK_S + 18.0)

    assert watched.told == []


def test_metrics_say_that_a_job_stands_still_as_long_as_it_does(tmp_path: Path) -> None:
    """Alerts and dashboards read metrics: of a job that hangs no step comes, and its finding is open all the same."""
    goes_on_s = STUCK_S + 200.0
    ranks = [
        absent(resumed_s=goes_on_s) if r == CULPRIT else waiting(resumed_s=goes_on_s)
        for r in range(RANKS)
    ]
    watched = Watched(tmp_path / "s.duckdb", ranks)

    watched.run(goes_on_s + 20.0)

    open_at = [at_s for at_s, opened, _ in watched.measured if opened]
    assert open_at[0] <= STUCK_S + 25.0
    gaps = [after - before for before, after in pairwise([*open_at, goes_on_s])]
    assert max(gaps) <= 70.0
    for at_s, _, lost_s in watched.measured[: len(open_at)]:
        assert lost_s == pytest.approx(at_s - STUCK_S, abs=2.0)
    at_s, opened, lost_s = watched.measured[-1]
    assert opened == 0
    assert lost_s == pytest.approx(200.0, abs=10.0)
    assert at_s <= goes_on_s + 10.0


def test_metrics_of_a_job_of_which_nothing_comes_any_more_end(tmp_path: Path) -> None:
    """Its host is gone, or it was ended: nobody says that it still hangs, and the store keeps the finding."""
    path = tmp_path / "s.duckdb"
    watched = Watched(path, four(absent()))
    watched.run(STUCK_S + 40.0)
    assert watched.measured[-1][1] == 1
    watched.now_s += 110.0
    watched.watcher.poll(is_last=True)
    assert watched.measured[-1][1] == 1
    watched.now_s += 20.0
    watched.watcher.poll(is_last=True)
    assert watched.measured[-1][1] == 0
    assert query_rows(path, "SELECT state FROM findings") == [("open",)]
