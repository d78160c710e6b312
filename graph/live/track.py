"""Which findings are open: successive verdicts of a growing store become findings that open, change and close.

Pure: knows neither store nor clock. A finding is the same as before when reason and node are and the episodes overlap,
so its id stays although its onset moves by a step. While an episode goes on, a finding that a verdict leaves out is
kept until a second one in a row does so too: near the noise a small cause comes and goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from rootwalk.graph.live.findings import LiveFinding, find_same
from rootwalk.graph.model import Finding, Onset, Verdict
from rootwalk.graph.render.text import headline
from rootwalk.graph.verdict import to_json

__all__ = ["Change", "EpisodeSpan", "Ledger", "Notice"]

# So many verdicts in a row must leave a finding out before it is closed while its episode goes on.
MISSES_TO_CLOSE = 2
# Closed findings that are remembered, in case the episode turns out to go on.
MAX_CLOSED = 64


class Change(StrEnum):
    """What happened to a finding."""

    OPENED = "opened"
    CHANGED = "changed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class EpisodeSpan:
    """One slow stretch of a job as detection sees it; `detected_unix_ns` is when it first did."""

    first_step: int
    last_step: int
    is_open: bool
    onset_unix_ns: int
    detected_unix_ns: int


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell; `previous` is what a changed finding replaces, closed at the same moment."""

    change: Change
    finding: LiveFinding
    previous: LiveFinding | None = None


class Ledger:
    """The findings of all jobs of a store, open ones and the last closed."""

    def __init__(self) -> None:
        self._findings: dict[tuple[str, int, str], LiveFinding] = {}
        self._misses: dict[tuple[str, int, str], int] = {}
        self._unsaved: dict[tuple[str, int, str], LiveFinding] = {}

    def findings(self, job: str, attempt: int) -> tuple[LiveFinding, ...]:
        """Return what is known of one job and attempt, by onset and id."""
        mine = [f for f in self._findings.values() if (f.job, f.attempt) == (job, attempt)]
        return tuple(sorted(mine, key=lambda f: (f.first_step, f.id)))

    def add(self, known: Iterable[LiveFinding]) -> None:
        """Enter what an earlier watcher left, unless it is known; nothing is told about it again."""
        for finding in known:
            self._findings.setdefault(_key(finding), finding)

    def unsaved(self) -> tuple[LiveFinding, ...]:
        """Return what has changed since `forget_unsaved`, to be stored."""
        return tuple(self._unsaved.values())

    def forget_unsaved(self) -> None:
        """Say that everything is stored."""
        self._unsaved.clear()

    def take(self, verdict: Verdict, episode: EpisodeSpan, now_unix_ns: int) -> tuple[Notice, ...]:
        """Enter the verdict about an episode; return what it opens, changes and closes.

        Args:
            verdict: About steps of the episode, all or its last.
            episode: The episode as a whole.
            now_unix_ns: When the verdict was there.
        """
        job, attempt = verdict.job.id, verdict.job.attempt or 0
        concerned = [
            f
            for f in self.findings(job, attempt)
            if f.overlaps(episode.first_step, episode.last_step)
        ]
        steps = (episode.first_step, episode.last_step)
        old_by_index = [
            find_same(concerned, f.reason, f.subject.node, steps) for f in verdict.findings
        ]
        named = {old.id for old in old_by_index if old is not None}
        missing = [f for f in concerned if f.is_open and f.id not in named]
        notices: list[Notice] = []
        for finding, old in zip(verdict.findings, old_by_index, strict=True):
            if old is not None and not old.is_open and not episode.is_open:
                continue  # told before
            replaced = None if old is not None else _replaced_by(finding, missing, verdict)
            row = self._enter(verdict, finding, old or replaced, episode, now_unix_ns)
            if old is None and replaced is not None:
                missing.remove(replaced)
                notices.append(Notice(Change.CHANGED, row, self._close(replaced, now_unix_ns)))
            elif old is None or not old.is_open:
                notices.append(Notice(Change.OPENED, row))
        if verdict.findings or not episode.is_open:
            notices += self._miss(missing, episode, now_unix_ns)
        if not episode.is_open:
            ended = [f for f in self.findings(job, attempt) if f.is_open and f.overlaps(*steps)]
            notices += [
                Notice(Change.CLOSED, self._close(f, now_unix_ns, episode.last_step)) for f in ended
            ]
        return tuple(notices)

    def retain(
        self, job: str, attempt: int, episodes: Iterable[EpisodeSpan], now_unix_ns: int
    ) -> tuple[Notice, ...]:
        """Close what is open although detection, with more steps seen, knows no such episode any more."""
        spans = tuple(episodes)
        gone = [
            f
            for f in self.findings(job, attempt)
            if f.is_open and not any(f.overlaps(e.first_step, e.last_step) for e in spans)
        ]
        return tuple(Notice(Change.CLOSED, self._close(f, now_unix_ns)) for f in gone)

    def _enter(
        self,
        verdict: Verdict,
        finding: Finding,
        before: LiveFinding | None,
        episode: EpisodeSpan,
        now_unix_ns: int,
    ) -> LiveFinding:
        """Enter a finding; `before` is the same one as known so far, or the one that it replaces."""
        is_same = before is not None and _culprit(before) == (finding.reason, finding.subject.node)
        first_step, onset_unix_ns = _onset(verdict, finding, before, episode)
        row = LiveFinding(
            job=verdict.job.id,
            attempt=verdict.job.attempt or 0,
            id=before.id if before and is_same else finding.id,
            reason=finding.reason,
            node=finding.subject.node,
            layer=finding.layer,
            owner=finding.owner,
            severity=finding.severity,
            confidence=finding.confidence.band,
            rank=finding.subject.rank,
            host=finding.subject.host,
            share_s=finding.seconds.share,
            first_step=first_step,
            last_step=max(episode.last_step, before.last_step if before else 0),
            onset_unix_ns=onset_unix_ns,
            detected_unix_ns=before.detected_unix_ns if before else episode.detected_unix_ns,
            named_unix_ns=before.named_unix_ns if before and is_same else now_unix_ns,
            closed_unix_ns=None,
            text=headline(finding),
            verdict="",
        )
        self._misses.pop(_key(row), None)
        return self._put(replace(row, verdict=_tell_times(verdict, finding, row)))

    def _miss(
        self, missing: list[LiveFinding], episode: EpisodeSpan, now_unix_ns: int
    ) -> list[Notice]:
        notices = []
        ended_step = None if episode.is_open else episode.last_step
        for finding in missing:
            count = self._misses.get(_key(finding), 0) + 1
            self._misses[_key(finding)] = count
            if count >= MISSES_TO_CLOSE or not episode.is_open:
                closed = self._close(finding, now_unix_ns, ended_step)
                notices.append(Notice(Change.CLOSED, closed))
        return notices

    def _close(
        self, finding: LiveFinding, now_unix_ns: int, ended_step: int | None = None
    ) -> LiveFinding:
        """Close a finding; an episode that seemed to go on may have ended some steps ago, at `ended_step`."""
        self._misses.pop(_key(finding), None)
        last_step = finding.last_step if ended_step is None else min(finding.last_step, ended_step)
        closed = self._put(replace(finding, last_step=last_step, closed_unix_ns=now_unix_ns))
        old = sorted(
            (f for f in self._findings.values() if f.closed_unix_ns is not None),
            key=lambda f: f.closed_unix_ns or 0,
        )
        for forgotten in old[:-MAX_CLOSED]:
            del self._findings[_key(forgotten)]
        return closed

    def _put(self, finding: LiveFinding) -> LiveFinding:
        self._findings[_key(finding)] = finding
        self._unsaved[_key(finding)] = finding
        return finding


def _key(finding: LiveFinding) -> tuple[str, int, str]:
    return finding.job, finding.attempt, finding.id


def _culprit(finding: LiveFinding) -> tuple[str, str]:
    return finding.reason, finding.node


def _replaced_by(
    finding: Finding, missing: list[LiveFinding], verdict: Verdict
) -> LiveFinding | None:
    """Return which finding that the verdict leaves out the new one stands for: the same culprit, or one for one."""
    same_rank = [f for f in missing if f.rank == finding.subject.rank]
    if same_rank:
        return same_rank[0]
    return missing[0] if len(missing) == 1 and len(verdict.findings) == 1 else None


def _onset(
    verdict: Verdict, finding: Finding, before: LiveFinding | None, episode: EpisodeSpan
) -> tuple[int, int | None]:
    """Return the first step and time of a finding: the first that was said, else the episode's or the verdict's own."""
    if before is not None:
        return before.first_step, before.onset_unix_ns
    first = verdict.window.first_step
    if first is None or first <= episode.first_step or finding.onset is None:
        return episode.first_step, episode.onset_unix_ns
    # The verdict is about the last steps of a long episode: when this cause began is not known better.
    return first, finding.onset.unix_ns


def _tell_times(verdict: Verdict, finding: Finding, row: LiveFinding) -> str:
    """Return the verdict as JSON with the id and the times that live detection knows of one of its findings."""
    known = replace(
        finding,
        id=row.id,
        onset=Onset(row.first_step, row.onset_unix_ns),
        detected_unix_ns=row.detected_unix_ns,
        named_unix_ns=row.named_unix_ns,
    )
    findings = tuple(known if f is finding else f for f in verdict.findings)
    return to_json(replace(verdict, findings=findings))
