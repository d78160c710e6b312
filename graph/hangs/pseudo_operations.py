"""Operations of which no number is known: a rendezvous, messages without their other end, a call seen by stacks.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from rootwalk.graph.hangs.flight_records import PendingCall
from rootwalk.graph.hangs.judge import Blame, Hang
from rootwalk.graph.hangs.live_evidence import LiveEvidence, RankProgress
from rootwalk.graph.hangs.moments import Unlike
from rootwalk.graph.hangs.operations import Operation

__all__ = ["pseudo_hang", "pseudo_operation"]


def pseudo_operation(
    evidence: LiveEvidence,
    name: str,
    waiting: Collection[int],
    absent: tuple[int, ...],
    communicator: str = "",
    description: str = "",
) -> Operation:
    """Return an operation of which no number is known."""
    calls = {
        rank: PendingCall(
            *(0, communicator, 0, name, None, None, ""),
            is_started=False,
            created_unix_ns=_since(evidence, evidence.ranks.get(rank)),
        )
        for rank in sorted(waiting)
    }
    return Operation(
        communicator=communicator or name,
        description=description or communicator,
        sequence=0,
        operation=name,
        members=tuple(sorted({*waiting, *absent})),
        calls=calls,
        finished=(),
        absent=absent,
        presumed=(),
        gone=(),
    )


def _since(evidence: LiveEvidence, progress: RankProgress | None) -> int:
    return evidence.since_ns if progress is None else progress.since_ns


def pseudo_hang(
    evidence: LiveEvidence, operation: Operation | None, blames: tuple[Blame, ...]
) -> Hang:
    """Return a hang of one such operation; without one, of which nothing is known."""
    operations = () if operation is None else (operation,)
    world = max(evidence.world_size or 0, len(evidence.known))
    return Hang(operations, blames, (), (), Unlike(), frozenset(), world)
