"""Is a job stuck: no rank has made progress for longer than is usual for it, and it is neither ending nor suspended.

    rank 0   ----------|.....................................
    rank 1   -------------|..................................     the job is still from here on
    rank 2   ------|.........................................

    stuck once this is longer than max(3 x the longest usual gap, 10 s)

Pure. Who holds it up is another question (`live_judge`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rootwalk.graph.hangs.live_evidence import LiveEvidence, Spell
from rootwalk.instrumentation.semconv import TrainingProcessState

__all__ = ["MIN_STUCK_S", "USUAL_RATIO", "Still", "find_still", "is_stuck", "stuck_after_s"]

# Both from issue 36: shorter than this nothing is said, and a job's own pauses may last three times as long as ever.
MIN_STUCK_S: Final = 10.0
USUAL_RATIO: Final = 3.0
# A rank that dies or is asked to end makes others move: what moves so soon after does not show that the job goes on.
# Prior: a launcher ends its ranks within a second or two; 5 s allow for a loaded host.
ENDING_SLACK_NS: Final = 5_000_000_000
# States in which somebody outside has stopped a process.
SUSPENDED: Final = frozenset(
    (TrainingProcessState.STOPPED, TrainingProcessState.TRACED, TrainingProcessState.FROZEN)
)


@dataclass(frozen=True, slots=True)
class Still:
    """A time in which no rank of a job made progress; `is_open` whether the job never went on after it.

    `until_ns` is just before a rank went on, when the job began to end (`is_ending`), or the last report.
    """

    since_ns: int
    until_ns: int
    is_open: bool
    is_ending: bool = False


def find_still(
    spells: Iterable[Spell],
    ranks: Collection[int],
    ended_ns: Mapping[int, int],
    endings: Collection[int] = (),
) -> list[Still]:
    """Return the times in which none of a job's ranks made progress, in order, `MIN_STUCK_S` and longer.

    Args:
        spells: Of all ranks.
        ranks: Every rank that was ever seen.
        ended_ns: When the processes of ranks ended, Unix ns: from then on they make no progress.
        endings: Times at which something began to end the job: a signal to a rank, the end of one, of the command.
    """
    changes: list[tuple[int, int, int]] = []
    last_ns = 0
    told: dict[int, int] = {}
    for spell in spells:
        last_ns = max(last_ns, spell.told_ns)
        changes.append((spell.since_ns, 1, spell.rank))
        if spell.resumed_ns is not None:
            changes.append((spell.resumed_ns, -1, spell.rank))
        told[spell.rank] = max(told.get(spell.rank, 0), spell.told_ns)
    for rank, time_ns in ended_ns.items():
        if rank in ranks:
            changes.append((time_ns, 2, rank))
    still: set[int] = set()
    gone: set[int] = set()
    found: list[Still] = []
    begin_ns: int | None = None
    for time_ns, kind, rank in sorted(changes):
        if kind < 0 and rank not in gone:
            if begin_ns is not None:
                # The report that a rank goes on is of the time after this one.
                found.append(_still(begin_ns, time_ns - 1, endings, is_resumed=True))
            still.discard(rank)
            begin_ns = None
            continue
        if kind == 2:
            gone.add(rank)
        still.add(rank)
        if begin_ns is None and len(still) == len(ranks) and len(gone) < len(ranks):
            begin_ns = time_ns
    if begin_ns is not None:
        found.append(_still(begin_ns, max(last_ns, begin_ns), endings, is_resumed=False))
    return [one for one in found if one.until_ns - one.since_ns >= MIN_STUCK_S * 1e9]


def _still(since_ns: int, until_ns: int, endings: Collection[int], *, is_resumed: bool) -> Still:
    """Return a time without progress, cut where the job began to end in it."""
    first_ns = since_ns + round(MIN_STUCK_S * 1e9)
    limit_ns = until_ns + ENDING_SLACK_NS
    ending_ns = min((e for e in endings if first_ns <= e <= limit_ns), default=None)
    if ending_ns is None:
        return Still(since_ns, until_ns, not is_resumed)
    return Still(since_ns, min(until_ns, ending_ns), is_open=True, is_ending=True)


def stuck_after_s(evidence: LiveEvidence) -> float:
    """Return after how many seconds without progress this job counts as stuck."""
    told = [m.usual_s for r in evidence.ranks.values() for m in r.moments[-1:] if m.usual_s]
    # Both are the longest gap so far; the ranks' own has the first step in it, the steps' own has no shorter parts.
    known = [gap for gap in (max(told, default=None), evidence.usual_s) if gap is not None]
    return max(MIN_STUCK_S, USUAL_RATIO * min(known, default=0.0))


def is_stuck(evidence: LiveEvidence) -> bool:
    """Return whether the job is stuck at the end of the evidence; a job that is suspended as a whole is not."""
    live = [rank for number, rank in evidence.ranks.items() if number not in evidence.ends]
    if not live or evidence.idle_s < stuck_after_s(evidence):
        return False
    return any(rank.last.state not in SUSPENDED for rank in live)
