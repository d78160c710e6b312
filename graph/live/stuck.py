"""Watch for jobs in which no rank makes progress: name what holds them up while it lasts, and close it when they go on.

    ranks report 5 s without progress     the receiver is to hurry: what comes next tells whether the job is stuck
    10 s and more, by every rank          judge; a finding is stored and told, the status row says what is seen
    a rank goes on                        the finding is closed, with the seconds that were lost

A job that no rank reports about costs one query of the newest log records. It needs no step: a job may be stuck before
its first one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.finding_store import load_live_findings, save_live_findings
from rootwalk.graph.hangs.live_judge import Judgement, judge
from rootwalk.graph.hangs.live_words import describe_wait
from rootwalk.graph.hangs.progress import read_evidence, read_still
from rootwalk.graph.hangs.stuck import Still
from rootwalk.graph.live.findings import Exemplar, LiveFinding
from rootwalk.graph.live.pace import Pace
from rootwalk.graph.live.store import read_exemplar
from rootwalk.graph.live.track import Change, Notice
from rootwalk.graph.model import Finding, Verdict
from rootwalk.graph.render.text import headline
from rootwalk.graph.verdict import to_json
from rootwalk.instrumentation import semconv
from rootwalk.otel_receiver import store

__all__ = ["StuckWatch"]

# The store is held for tens of ms by each commit.
LOCK_TIMEOUT_S: Final = 2.0
# A suspicion makes the receiver hurry for some 20 s; it is renewed so often, and for so long at most: a job that waits
# for work for an hour is not to keep the receiver busy.
HURRY_AGAIN_S: Final = 10.0
MAX_HURRY_S: Final = 120.0
# What a finding says may get better as stacks come; then it is reported again, so often at most.
MAX_RETOLD: Final = 3
# Findings of a job that its metrics know one by one; older ones are added up there.
MAX_KEPT: Final = 64
# A job that stands still is reported about every 15 s; one of which nothing has come for so long is over, or gone.
SILENT_NS: Final = 120_000_000_000
NS: Final = 1_000_000_000

_NEWS: Final = """
SELECT job, coalesce(attempt, 0), max(received_unix_ns), count(DISTINCT rank)
FROM log_records
WHERE received_unix_ns > ? AND event_name = ? AND job IS NOT NULL AND rank IS NOT NULL
GROUP BY 1, 2 ORDER BY 1, 2
"""

JobKey = tuple[str, int]


@dataclass(slots=True)
class _Job:
    """What is known of one job: its open findings by id, the last ones, open or not, and what was judged last."""

    opened: dict[str, LiveFinding] = field(default_factory=dict)
    kept: dict[str, LiveFinding] = field(default_factory=dict)
    heard_ns: int = 0
    judgement: Judgement | None = None
    detected_ns: int | None = None
    told: tuple[Any, ...] = ()
    retold: int = 0
    since_ns: int | None = None
    hurried_s: float | None = None
    first_hurried_s: float | None = None
    pace: Pace = field(default_factory=Pace)
    is_loaded: bool = False


class StuckWatch:
    """Follows every job of one store whose ranks report that they make no progress; `poll` as often as a second.

    Args:
        store_path: The store; a receiver writes it meanwhile.
        hurry: Is called where reports come that are worth an early look; None for nobody.
        now_unix_ns: The clock that findings carry.
        now_s: A clock for intervals.
    """

    def __init__(
        self,
        store_path: Path,
        *,
        hurry: Callable[[], None] | None = None,
        now_unix_ns: Callable[[], int] = time.time_ns,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store_path
        self._hurry = hurry
        self._now_unix_ns = now_unix_ns
        self._now_s = now_s
        self._seen_ns: int | None = None
        self._jobs: dict[JobKey, _Job] = {}

    @property
    def is_urgent(self) -> bool:
        """Whether a job may be stuck of which nothing is reported yet."""
        return any(
            job.first_hurried_s is not None and not job.opened for job in self._jobs.values()
        )

    def poll(self) -> list[tuple[Notice, Exemplar | None]]:
        """Look at what is new; return what has opened, changed and closed, which is stored then.

        Raises:
            StoreError: If the store cannot be read or written now; the next call tries again.
        """
        with store.reading(self._store, timeout_s=LOCK_TIMEOUT_S) as connection:
            if self._seen_ns is None:
                (last,) = connection.execute(
                    "SELECT coalesce(max(received_unix_ns), 0) FROM log_records"
                ).fetchone()
                self._seen_ns = int(last)
                return []
            event = semconv.EVENT_TRAINING_RANK_PROGRESS
            rows = connection.execute(_NEWS, [self._seen_ns, event]).fetchall()
            judged = []
            for name, attempt, heard_ns, reporting in rows:
                key = (str(name), int(attempt))
                job = self._jobs.setdefault(key, _Job())
                job.heard_ns = int(heard_ns)
                if job.pace.may_ask(self._now_s()):
                    judged.append((key, self._judge(connection, key, job, int(reporting))))
        seen_ns = max([self._seen_ns, *(int(row[2]) for row in rows)])
        notices: list[tuple[Notice, Exemplar | None]] = []
        for key, stills in judged:
            notices += self._follow(key, self._jobs[key], stills)
        # What could not be judged or stored is looked at again.
        self._seen_ns = seen_ns
        return notices

    def findings(self) -> dict[JobKey, list[LiveFinding]]:
        """Return the last findings of each job as they are now: one whose job no longer stands still is not open."""
        now_ns = self._now_unix_ns()
        found = {}
        for key, job in self._jobs.items():
            is_still = job.judgement is not None and now_ns - job.heard_ns < SILENT_NS
            found[key] = [
                one if is_still or not one.is_open else replace(one, closed_unix_ns=job.heard_ns)
                for one in job.kept.values()
            ]
        return found

    def words(self, job: str | None, now_unix_ns: int) -> str | None:
        """Return what is seen of a job without progress, in one line; None while it makes progress.

        Args:
            job: Which one; None for the only one.
            now_unix_ns: Now.
        """
        found = [
            known.judgement
            for (name, _), known in self._jobs.items()
            if known.judgement is not None and job in (None, name)
        ]
        return describe_wait(found[-1], now_unix_ns) if found else None

    def _judge(self, connection: Any, key: JobKey, job: _Job, reporting: int) -> list[Still]:
        """Read and judge the last time without progress of a job; return all of them."""
        began_s = time.process_time()
        if not job.is_loaded:
            job.is_loaded = True
            known = load_live_findings(connection, *key)
            job.opened |= {one.id: one for one in known if one.is_open and one.is_hang}
            job.kept |= job.opened
        times = read_still(connection, *key)
        last = times[-1] if times else None
        job.judgement = None
        if last is not None and last.is_open and not last.is_ending:
            judgement = judge(read_evidence(connection, *key, last))
            if judgement.is_stuck or judgement.is_waiting_for_work:
                job.judgement = judgement
        self._suspect(
            connection, key, job, reporting, is_over=bool(times) and not times[-1].is_open
        )
        job.pace.note(self._now_s(), time.process_time() - began_s)
        return times

    def _suspect(
        self, connection: Any, key: JobKey, job: _Job, reporting: int, *, is_over: bool
    ) -> None:
        """Make the receiver hurry where all ranks report, and nothing is reported yet."""
        now_s = self._now_s()
        (known,) = connection.execute(
            "SELECT count(DISTINCT rank) FROM rank_summaries WHERE job = ? AND coalesce(attempt, 0) = ?",
            list(key),
        ).fetchone()
        if job.opened or is_over or reporting < int(known):
            job.first_hurried_s = None
            return
        if job.first_hurried_s is None:
            job.first_hurried_s, job.hurried_s = now_s, None
        is_young = now_s - job.first_hurried_s <= MAX_HURRY_S
        is_due = job.hurried_s is None or now_s - job.hurried_s >= HURRY_AGAIN_S
        if is_young and is_due and self._hurry is not None:
            job.hurried_s = now_s
            self._hurry()

    def _follow(
        self, key: JobKey, job: _Job, times: list[Still]
    ) -> list[tuple[Notice, Exemplar | None]]:
        """Open, change and close findings after a judgement."""
        notices: list[tuple[Notice, Exemplar | None]] = []
        last = times[-1] if times else None
        is_open = last is not None and last.is_open
        if job.opened and last is not None and not is_open:
            notices += [(notice, None) for notice in self._close(job, last)]
        judgement = job.judgement
        if judgement is None:
            if not is_open:
                job.told, job.retold, job.detected_ns = (), 0, None
            return notices
        if job.detected_ns is None:
            job.detected_ns = self._now_unix_ns()
        signature = _signature(judgement)
        if judgement.is_hang and signature != job.told and job.retold <= MAX_RETOLD:
            job.told = signature
            job.retold += 1
            notices += self._open(key, job, judgement)
        return notices

    def _open(
        self, key: JobKey, job: _Job, judgement: Judgement
    ) -> list[tuple[Notice, Exemplar | None]]:
        verdict = diagnose(self._store, job=key[0])
        if verdict.kind != "hang" or not verdict.findings:
            return []
        now_ns = self._now_unix_ns()
        before = dict(job.opened)
        notices: list[tuple[Notice, Exemplar | None]] = []
        fresh: dict[str, LiveFinding] = {}
        for finding in verdict.findings:
            old = before.pop(finding.id, None)
            row = _live(verdict, finding, key, old, job.detected_ns or now_ns, now_ns)
            fresh[row.id] = row
            if old is None and not before:
                notices.append((Notice(Change.OPENED, row), None))
            elif old is None:
                replaced = before.pop(next(iter(before)))
                gone = replace(replaced, closed_unix_ns=now_ns)
                fresh[gone.id] = gone
                notices.append((Notice(Change.CHANGED, row, gone), None))
            elif old.text != row.text:
                notices.append((Notice(Change.CHANGED, row), None))
        for left in before.values():
            gone = replace(left, closed_unix_ns=now_ns)
            fresh[gone.id] = gone
            notices.append((Notice(Change.CLOSED, gone), None))
        self._save(list(fresh.values()))
        _keep(job, fresh.values())
        job.opened = {one.id: one for one in fresh.values() if one.is_open}
        return [(notice, self._exemplar(key, judgement, notice)) for notice, _ in notices]

    def _close(self, job: _Job, still: Still) -> list[Notice]:
        """Close what is open: the job has gone on."""
        now_ns = self._now_unix_ns()
        lost_s = (still.until_ns - still.since_ns) / NS
        closed = [
            replace(one, closed_unix_ns=now_ns, text=f"{one.text}; {lost_s:.0f} s lost")
            for one in job.opened.values()
        ]
        self._save(closed)
        _keep(job, closed)
        job.opened, job.told, job.retold, job.detected_ns = {}, (), 0, None
        return [Notice(Change.CLOSED, one) for one in closed]

    def _save(self, findings: list[LiveFinding]) -> None:
        with store.writing(self._store, timeout_s=LOCK_TIMEOUT_S, vacuums=False) as connection:
            save_live_findings(connection, findings)

    def _exemplar(self, key: JobKey, judgement: Judgement, notice: Notice) -> Exemplar | None:
        """Return the last step before the job stood still, as long as that lasts; None before the first one."""
        evidence = judgement.evidence
        if notice.change is Change.CLOSED or evidence.last_step is None:
            return None
        with store.reading(self._store, timeout_s=LOCK_TIMEOUT_S) as connection:
            found = read_exemplar(connection, *key, evidence.last_step, notice.finding.rank)
        if found is None:
            return None
        return found._replace(start_unix_ns=evidence.since_ns, end_unix_ns=evidence.until_ns)


def _keep(job: _Job, findings: Iterable[LiveFinding]) -> None:
    job.kept |= {one.id: one for one in findings}
    for key in list(job.kept)[:-MAX_KEPT]:
        del job.kept[key]


def _signature(judgement: Judgement) -> tuple[Any, ...]:
    """Return what a finding says, without what changes all the time."""
    return tuple(
        (str(blame.reason), blame.ranks, tuple(_doing(judgement, rank) for rank in blame.ranks[:8]))
        for blame in judgement.hang.blames
    )


def _doing(judgement: Judgement, rank: int) -> tuple[str, str | None]:
    found = judgement.occupations.get(rank)
    return ("", None) if found is None else (str(found.doing), found.where)


def _live(
    verdict: Verdict,
    finding: Finding,
    key: JobKey,
    before: LiveFinding | None,
    detected_ns: int,
    now_ns: int,
) -> LiveFinding:
    """Return a finding of a hang with its life; `before` is the same one as known so far."""
    onset = finding.onset
    step = onset.step if onset is not None and onset.step is not None else 0
    named_ns = now_ns if before is None else before.named_unix_ns
    detected_ns = detected_ns if before is None else before.detected_unix_ns
    known = replace(finding, detected_unix_ns=detected_ns, named_unix_ns=named_ns)
    findings = tuple(known if one is finding else one for one in verdict.findings)
    return LiveFinding(
        job=key[0],
        attempt=key[1],
        id=finding.id,
        reason=finding.reason,
        node=finding.subject.node,
        layer=finding.layer,
        owner=finding.owner,
        severity=finding.severity,
        confidence=finding.confidence.band,
        rank=finding.subject.rank,
        host=finding.subject.host,
        share_s=None,
        first_step=step,
        last_step=step,
        onset_unix_ns=None if onset is None else onset.unix_ns,
        detected_unix_ns=detected_ns,
        named_unix_ns=named_ns,
        closed_unix_ns=None,
        text=headline(finding),
        verdict=to_json(replace(verdict, findings=findings)),
    )
