"""Watch a store that grows: detection on what is new, a diagnosis where it says slow, and telling what has changed.

    every 1 to 10 s   new steps -> step clock -> episodes?          a healthy job costs this and no more
    slow steps        the receiver is to hurry: a few more may be an episode
    an episode        the receiver is to hurry; diagnose its steps -> ledger -> stored, told
    no episode        the job as a whole, ever more rarely: what it has lost since it began (`standing`)
    while it lasts    again, soon a few times, then at 1.5 times the steps or after a minute; when it ends, once more

Owns the order and the cost of it: opened findings are stored before they are told, so that a watcher that is started
again tells nothing twice. Trouble with the store is said once and tried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from rootwalk.graph.detect import MEDIAN_STEPS
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.finding_store import load_live_findings, save_live_findings
from rootwalk.graph.live.findings import ONSET_SLACK_STEPS, Exemplar
from rootwalk.graph.live.meters import JobMeter
from rootwalk.graph.live.pace import Pace
from rootwalk.graph.live.series import KEPT_STEPS, StepSeries
from rootwalk.graph.live.standing import KEPT_BEFORE, Standing
from rootwalk.graph.live.store import (
    NewStep,
    read_exemplar,
    read_last_received,
    read_new_steps,
    read_steps_since,
    stamp_of,
)
from rootwalk.graph.live.stuck import StuckWatch
from rootwalk.graph.live.track import EpisodeSpan, Ledger, Notice
from rootwalk.instrumentation.errors import RootwalkError, StoreError
from rootwalk.otel_receiver import store

__all__ = ["Watcher"]

logger = logging.getLogger(__name__)

# Looks at a healthy job come as often as this share of one core allows, and no more often than every second.
MAX_CPU_RATIO: Final = 0.03
MIN_INTERVAL_S: Final = 1.0
MAX_INTERVAL_S: Final = 10.0
# A diagnosis is repeated while the episode is young, when it has so many times the steps, its last steps take another
# time (a second cause, or one of two has gone), or so much time has passed; and no sooner than `Pace` allows.
MORE_STEPS: Final = 1.5
OTHER_LEVEL_RATIO: Final = 0.10
REFRESH_S: Final = 60.0
# A mere suspicion makes the receiver hurry once in so long: a job whose steps vary much would pay for it all the time.
SUSPICION_S: Final = 60.0
# Steps of one diagnosis: a window of a long episode costs seconds and says nothing that its last steps do not.
MAX_WINDOW_STEPS: Final = 50
# Requests are stored in the order in which they come, but for the receiver's clock being set back a little.
RECEIVED_SLACK_NS: Final = 2_000_000_000
# The store is held for tens of ms by each commit.
LOCK_TIMEOUT_S: Final = 2.0
# Somebody who reads a while holds the store up now and then; only what lasts longer is worth a line.
PATIENCE_S: Final = 10.0
# Metrics go out so often where something has changed, as the agents' do.
METRICS_INTERVAL_S: Final = 5.0

JobKey = tuple[str, int]


@dataclass(slots=True)
class _Case:
    """One episode that is followed: as last seen, the steps that it had at its last diagnosis, and the pace of these.

    `level_s` is the time of its last steps, `asked_level_s` the same at the last diagnosis; None where unknown.
    """

    span: EpisodeSpan
    level_s: float | None = None
    asked_level_s: float | None = None
    asked_steps: int = 0
    pace: Pace = field(default_factory=Pace)
    is_settled: bool = False

    def is_due(self, now_s: float) -> bool:
        """Return whether to diagnose it now."""
        if self.is_settled:
            return False
        if not self.span.is_open or not self.asked_steps:
            return True
        steps = self.span.last_step - self.span.first_step + 1
        is_other = (
            steps >= MORE_STEPS * self.asked_steps
            or (self.pace.waited_s(now_s) >= REFRESH_S and steps > self.asked_steps)
            or (
                steps >= self.asked_steps + MEDIAN_STEPS
                and (self.pace.is_early(now_s) or self._has_another_level())
            )
        )
        return is_other and self.pace.may_ask(now_s)

    def _has_another_level(self) -> bool:
        if self.level_s is None or self.asked_level_s is None:
            return False
        return abs(self.level_s - self.asked_level_s) > OTHER_LEVEL_RATIO * self.asked_level_s


class Watcher:
    """Follows every job of one store; `poll` as often as `interval_s` says.

    Args:
        store_path: The store; a receiver writes it meanwhile.
        tell: Is given each notice, with the slowest step that it is about, None if unknown.
        measure: Is given the metrics of a job, some seconds apart; None for nowhere.
        hurry: Is called when an episode is first seen that goes on, for what tells its cause is still to come, and at
            most once a minute when new steps were slow, for what tells whether it is one.
        now_unix_ns: The clock that findings carry.
        now_s: A clock for intervals.
    """

    def __init__(
        self,
        store_path: Path,
        tell: Callable[[Notice, Exemplar | None], None],
        *,
        measure: Callable[[ExportMetricsServiceRequest], None] | None = None,
        hurry: Callable[[], None] | None = None,
        now_unix_ns: Callable[[], int] = time.time_ns,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_s = MIN_INTERVAL_S
        self._store = store_path
        self._tell = tell
        self._measure = measure
        self._hurry = hurry
        self._meters: dict[JobKey, JobMeter] = {}
        self._measured_s = 0.0
        self._suspected_s: float | None = None
        self._now_unix_ns = now_unix_ns
        self._now_s = now_s
        self._seen_ns: int | None = None
        self._series: dict[JobKey, StepSeries] = {}
        self._cases: dict[JobKey, list[_Case]] = {}
        self._standing: dict[JobKey, Standing] = {}
        self._ledger = Ledger()
        self._orphans: list[Notice] = []
        self._failing_since_s: float | None = None
        self._has_complained = False
        self._stamp: tuple[int, ...] = ()
        self._stuck = StuckWatch(store_path, hurry=hurry, now_unix_ns=now_unix_ns, now_s=now_s)

    def quiet_words(self, job: str | None, now_unix_ns: int) -> str | None:
        """Return what is seen of a job in which no rank makes progress; None of one that goes on."""
        return self._stuck.words(job, now_unix_ns)

    def poll(self, *, is_last: bool = False) -> None:
        """Look at what is new, at last hand over all metrics too; never raises for what is wrong with the store."""
        began_s = time.process_time()
        stamp = stamp_of(self._store)
        is_same = stamp == self._stamp and self._failing_since_s is None
        if is_same and not self._ledger.unsaved() and not is_last:
            return
        try:
            keys = self._read()
        except StoreError as error:
            self._complain(error)
            return
        self._stamp = stamp
        for key in keys:
            self._look(key)
        cost_s = time.process_time() - began_s
        self.interval_s = min(max(cost_s / MAX_CPU_RATIO, MIN_INTERVAL_S), MAX_INTERVAL_S)
        now_s = self._now_s()
        due = [(key, case) for key in keys for case in self._cases[key] if case.is_due(now_s)]
        notices, self._orphans = self._orphans, []
        for key, case in due:
            notices += self._ask(key, case)
        for key in keys:
            notices += self._ask_standing(key)
            spans = [case.span for case in self._cases[key]]
            standing = self._standing[key].span
            spans += [] if standing is None else [standing]
            notices += self._ledger.retain(*key, spans, self._now_unix_ns())
        self._save()
        for notice in notices:
            self._tell(notice, self._exemplar(notice))
        has_stuck_news = self._look_for_stuck()
        self._tell_metrics(is_due=bool(notices) or has_stuck_news or is_last)

    def _look_for_stuck(self) -> bool:
        """Tell what holds up jobs in which no rank makes progress; return whether there was something to tell."""
        found = []
        try:
            found = self._stuck.poll()
            for notice, exemplar in found:
                self._tell(notice, exemplar)
        except RootwalkError as error:
            self._complain(error)
        if self._stuck.is_urgent:
            self.interval_s = MIN_INTERVAL_S
        return bool(found)

    def _read(self) -> list[JobKey]:
        """Enter the steps that came since the last look; return the jobs that are followed.

        A job is followed from its first new step on, and only its latest attempt: what lies in the store from earlier
        days is not news.
        """
        with store.reading(self._store, timeout_s=LOCK_TIMEOUT_S) as connection:
            if self._seen_ns is None:
                self._seen_ns = read_last_received(connection)
                return []
            rows = read_new_steps(connection, self._seen_ns - RECEIVED_SLACK_NS)
            fresh = [row for row in rows if row.received_ns > self._seen_ns]
            for key in dict.fromkeys((row.job, row.attempt) for row in fresh):
                self._follow(connection, key, min(r.step for r in fresh if _key(r) == key))
        for row in rows:
            if _key(row) in self._series:
                self._series[_key(row)].add(row.step, row.rank, row.start_ns, row.end_ns)
        self._seen_ns = max([self._seen_ns, *(row.received_ns for row in fresh)])
        self._recover()
        return list(self._series)

    def _follow(self, connection: Any, key: JobKey, new_step: int) -> None:
        """Begin to follow a job with what the store has of it, and with what an earlier watcher knew."""
        job, attempt = key
        others = [a for j, a in self._series if j == job]
        if attempt in others or any(a > attempt for a in others):
            return
        known = [f for f in load_live_findings(connection, job, attempt) if not f.is_hang]
        self._ledger.add(known)
        opened = [f for f in known if f.is_open]
        first = min([new_step, *(f.first_step for f in opened)]) - KEPT_STEPS
        series = StepSeries(first_new_step=new_step)
        for row in read_steps_since(connection, job, attempt, first):
            series.add(row.step, row.rank, row.start_ns, row.end_ns)
        spans = series.find_spans(self._now_unix_ns())
        # What was over before the first new step was told by an earlier watcher, or is not news.
        self._cases[key] = [
            _Case(span, is_settled=True)
            for span in spans
            if span.last_step < new_step
            and not any(f.overlaps(span.first_step, span.last_step) for f in opened)
        ]
        for other in others:
            self._end(job, other)
        self._series[key] = series
        self._standing[key] = Standing()
        self._meters.setdefault(key, JobMeter(job, attempt, self._now_unix_ns()))

    def _end(self, job: str, attempt: int) -> None:
        """Stop following an attempt: the job was started again, and what slowed this one is over."""
        del self._series[job, attempt], self._cases[job, attempt], self._standing[job, attempt]
        self._orphans += self._ledger.retain(job, attempt, (), self._now_unix_ns())
        key, now_ns = (job, attempt), self._now_unix_ns()
        stuck = self._stuck.findings().get(key, ())
        self._meters[key].add_stuck(self._ledger.findings(*key), stuck, now_ns)

    def _look(self, key: JobKey) -> None:
        """Match the episodes that detection sees now with those that are followed."""
        now_unix_ns = self._now_unix_ns()
        before = list(self._cases[key])
        after = []
        must_hurry = False
        for span in self._series[key].find_spans(now_unix_ns):
            case = next((c for c in before if _overlap(c.span, span)), None)
            if case is None:
                case = _Case(span)
                must_hurry |= span.is_open
            else:
                before.remove(case)
                case.is_settled = case.is_settled and not span.is_open
            case.level_s = self._series[key].level_s()
            case.span = replace(span, detected_unix_ns=case.span.detected_unix_ns)
            after.append(case)
        self._cases[key] = after
        if not any(case.span.is_open for case in after) and self._series[key].is_suspect:
            must_hurry |= self._may_suspect()
        if must_hurry and self._hurry is not None:
            self._hurry()

    def _may_suspect(self) -> bool:
        """Return whether the last suspicion is long ago, and remember this one."""
        now_s = self._now_s()
        if self._suspected_s is not None and now_s - self._suspected_s < SUSPICION_S:
            return False
        self._suspected_s = now_s
        return True

    def _ask(self, key: JobKey, case: _Case) -> tuple[Notice, ...]:
        """Diagnose an episode, or its last steps, and enter the verdict."""
        span, began_s = case.span, time.process_time()
        first = max(span.first_step, span.last_step - MAX_WINDOW_STEPS + 1)
        try:
            verdict = diagnose(
                self._store,
                job=key[0],
                steps=(first, span.last_step),
                since_step=max(span.first_step - KEPT_STEPS, 0),
            )
        except RootwalkError as error:
            self._complain(error)
            return ()
        self._recover()
        case.asked_steps = span.last_step - span.first_step + 1
        case.asked_level_s = case.level_s
        case.pace.note(self._now_s(), time.process_time() - began_s)
        case.is_settled = not span.is_open
        return self._ledger.take(verdict, span, self._now_unix_ns())

    def _ask_standing(self, key: JobKey) -> tuple[Notice, ...]:
        """Diagnose a job without an open episode as a whole, where it is time to, and enter the verdict."""
        standing, series = self._standing[key], self._series[key]
        steps, last = series.complete_steps, series.last_step
        is_open = any(case.span.is_open for case in self._cases[key])
        if is_open or last is None or not standing.is_due(steps, self._now_s()):
            return ()
        began_s = time.process_time()
        try:
            verdict = diagnose(self._store, job=key[0], since_step=max(last - KEPT_BEFORE, 0))
        except RootwalkError as error:
            self._complain(error)
            return ()
        self._recover()
        standing.pace.note(self._now_s(), time.process_time() - began_s)
        now_unix_ns = self._now_unix_ns()
        span = standing.note(verdict, steps, now_unix_ns)
        if span is not None and any(_overlap(span, case.span) for case in self._cases[key]):
            standing.span = span = None  # an episode that was told before
        if span is None:
            return ()
        return self._ledger.take(verdict, span, now_unix_ns)

    def _save(self) -> None:
        """Store what has changed; what cannot be stored now is tried again with the next look."""
        unsaved = self._ledger.unsaved()
        if not unsaved:
            return
        try:
            with store.writing(self._store, timeout_s=LOCK_TIMEOUT_S, vacuums=False) as connection:
                save_live_findings(connection, unsaved)
        except StoreError as error:
            self._complain(error)
        else:
            self._ledger.forget_unsaved()

    def _exemplar(self, notice: Notice) -> Exemplar | None:
        found = notice.finding
        series = self._series.get((found.job, found.attempt))
        step = series.slowest_step(found.first_step, found.last_step) if series else None
        if step is None:
            return None
        try:
            with store.reading(self._store, timeout_s=LOCK_TIMEOUT_S) as connection:
                return read_exemplar(connection, found.job, found.attempt, step, found.rank)
        except StoreError as error:
            self._complain(error)
            return None

    def _tell_metrics(self, *, is_due: bool) -> None:
        """Hand over the metrics of every job of which something has changed, at once where a finding has."""
        now_s, now_unix_ns = self._now_s(), self._now_unix_ns()
        if not (is_due or now_s - self._measured_s >= METRICS_INTERVAL_S):
            return
        self._measured_s = now_s
        stuck = {key: found for key, found in self._stuck.findings().items() if found}
        for key in stuck.keys() - self._meters.keys():  # it stands still before its first step
            self._meters[key] = JobMeter(*key, now_unix_ns)
        for key, meter in list(self._meters.items()):
            if key in self._series:
                meter.add_steps(self._series[key].take_durations())
            if key in self._series or key in stuck:
                known = self._ledger.findings(*key)
                meter.add_stuck(known, stuck.get(key, ()), now_unix_ns)
            request = meter.take(now_unix_ns)
            if request is not None and self._measure is not None:
                self._measure(request)
            if key not in self._series and key not in stuck:
                del self._meters[key]

    def _complain(self, error: RootwalkError) -> None:
        now_s = self._now_s()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if now_s - self._failing_since_s >= PATIENCE_S and not self._has_complained:
            self._has_complained = True
            logger.warning("live detection waits: %s", error)

    def _recover(self) -> None:
        if self._has_complained:
            logger.warning("live detection goes on")
        self._failing_since_s, self._has_complained = None, False


def _key(row: NewStep) -> JobKey:
    return row.job, row.attempt


def _overlap(one: EpisodeSpan, other: EpisodeSpan) -> bool:
    """Return whether two looks saw the same episode, whose onset may have moved a little."""
    return (
        one.first_step - ONSET_SLACK_STEPS <= other.last_step
        and other.first_step <= one.last_step + ONSET_SLACK_STEPS
    )
