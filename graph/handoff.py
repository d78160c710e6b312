"""The hand-off record of a finding: what an operator, or a program, needs to decide whether to move a job off a node.

    verdict ──▶ finding ──▶ who, where, why, how surely ──▶ costs of staying and of moving ──▶ advice
                                                                   fleet guard ───────────────▶ "do not move"

Advice follows from three comparisons. A slow job still makes progress, and a restart loses what was done since the last
checkpoint: so it moves at the next checkpoint, or at once where it can be moved alive. A job that stands still loses
nothing by a restart: it moves at once. And it moves only where that pays within the horizon. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rootwalk.graph.model import Finding, Verdict

__all__ = ["SCHEMA", "Advice", "MoveCosts", "Places", "handoff_records"]

SCHEMA: Final = "rootwalk.handoff/1"
NS_PER_S: Final = 1_000_000_000
SECONDS_PER_HOUR: Final = 3600.0
# From where on a cause is of the fleet and not of a node: that share of the job's nodes, but always more than one.
MAX_NODES_RATIO: Final = 0.2
# Evidence is of the time that it was made from; prior: an episode that goes on is diagnosed again within minutes.
EXPIRES_AFTER_S: Final = 900.0
# Who has to act where another node helps. Of a fabric's link too: the node's own link is what is seen.
MOVABLE_OWNERS: Final = frozenset(("node", "fabric"))
# First words of a signal, and what kind of evidence it is.
_KINDS: Final = (
    ("collective.", "timing of the job"),
    ("training.step.", "timing of the job"),
    ("training.phase.", "timing of the job"),
    ("training.progress.", "reports of the ranks"),
    ("training.thread.", "times of threads"),
    ("training.aggressor.", "times of threads"),
    ("training.process.", "events of processes"),
    ("training.signal.", "events of processes"),
    ("training.gpu.", "counters of devices"),
    ("hw.", "counters of devices"),
    ("system.", "counters of hosts"),
)


class Advice(StrEnum):
    """What to do with a job."""

    MOVE_NOW = "move_now"
    MOVE_AT_CHECKPOINT = "move_at_next_checkpoint"
    DO_NOT_MOVE = "do_not_move"


@dataclass(frozen=True, slots=True)
class MoveCosts:
    """What it costs to move a job, seconds of all of its devices.

    Attributes:
        restart_s: A restart from a checkpoint until the next step; prior: 6.5 min for a large job, not measured by us.
        migration_s: A live migration; None where the platform has none. TrainMover (arXiv 2412.12636) reports some 20 s
            for jobs of 1,024 GPUs.
        horizon_s: Within which a move has to pay; prior: four hours, well below the days that such jobs run.
    """

    restart_s: float = 390.0
    migration_s: float | None = None
    horizon_s: float = 4 * SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class Places:
    """Where a job's ranks run.

    Attributes:
        host_by_rank: Name of the host.
        device_by_rank: UUID of the GPU, where one is known.
    """

    host_by_rank: Mapping[int, str]
    device_by_rank: Mapping[int, str]

    def hosts_of(self, ranks: Collection[int]) -> list[str]:
        """Return the hosts of ranks, in order."""
        return sorted({self.host_by_rank[rank] for rank in ranks if rank in self.host_by_rank})


def handoff_records(
    verdict: Verdict, places: Places, costs: MoveCosts | None = None
) -> list[dict[str, Any]]:
    """Return a record for each finding, `handoff-1.schema.json`; the id of one episode is always the same.

    Args:
        verdict: The verdict.
        places: Where the ranks run.
        costs: What moving costs; the defaults where None.
    """
    chosen = costs or MoveCosts()
    return [_record(verdict, finding, places, chosen) for finding in verdict.findings]


def _record(verdict: Verdict, finding: Finding, places: Places, costs: MoveCosts) -> dict[str, Any]:
    ranks = _ranks_of(finding)
    ratio = _lost_ratio(verdict, finding)
    world = verdict.job.world_size
    alike = _hosts_with(verdict, finding, places)
    against = _guard(finding, alike, len(set(places.host_by_rank.values())), ratio)
    pays_after_s = None if not ratio else _move_s(finding, costs) / ratio
    advice, why = _advise(finding, costs, pays_after_s, against)
    until_ns = verdict.window.end_unix_ns
    return {
        "schema": SCHEMA,
        "id": finding.id,
        "job": verdict.job.id,
        "attempt": verdict.job.attempt,
        "world_size": world,
        "state": finding.state,
        "ranks": ranks,
        "stage": finding.subject.stage,
        "hosts": places.hosts_of(ranks) or ([finding.subject.host] if finding.subject.host else []),
        "devices": sorted(
            {places.device_by_rank[rank] for rank in ranks if rank in places.device_by_rank}
        ),
        "reason": finding.reason,
        "layer": finding.layer,
        "owner": finding.owner,
        "action": finding.action,
        "confidence": {"band": finding.confidence.band, "score": finding.confidence.score},
        "excluded": [{"reason": one.reason, "because": one.because} for one in finding.excluded],
        "evidence": [
            {
                "signal": one.signal,
                "kind": _kind_of(one.signal),
                "value": one.value,
                "unit": one.unit,
                "trace_id": one.trace_id,
                "query": one.query,
            }
            for one in finding.evidence
        ],
        "lost": {
            "step_s": finding.seconds.share,
            "hour_s": None if ratio is None else round(ratio * SECONDS_PER_HOUR, 3),
            "hour_device_s": None
            if ratio is None or world is None
            else round(ratio * SECONDS_PER_HOUR * world, 3),
            "so_far_s": finding.lost.wall_s,
            "so_far_device_s": finding.lost.device_s,
        },
        "persistence": {
            "onset_step": None if finding.onset is None else finding.onset.step,
            "onset_unix_ns": None if finding.onset is None else finding.onset.unix_ns,
            "last_step": verdict.window.last_step,
            "steps": finding.lost.steps,
        },
        "blast_radius": {"hosts_with_this_reason": alike, "victims": finding.victims.count},
        "moving": {
            "restart_s": costs.restart_s,
            "migration_s": costs.migration_s,
            "horizon_s": costs.horizon_s,
            "pays_after_s": None if pays_after_s is None else round(pays_after_s, 1),
        },
        "advice": {
            "do": str(advice),
            "because": why,
            "expires_unix_ns": None
            if until_ns is None
            else until_ns + round(EXPIRES_AFTER_S * NS_PER_S),
        },
    }


def _ranks_of(finding: Finding) -> list[int]:
    own = () if finding.subject.rank is None else (finding.subject.rank,)
    return sorted({*own, *finding.subject.ranks})


def _lost_ratio(verdict: Verdict, finding: Finding) -> float | None:
    """Return which share of the job's time is lost: all of it while it stands still; None where not known."""
    if finding.kind == "hang":
        return 1.0
    gain_s = finding.seconds.remove if finding.seconds.remove is not None else finding.seconds.share
    if gain_s is None or not verdict.step_s:
        return None
    return min(max(gain_s / verdict.step_s, 0.0), 1.0)


def _hosts_with(verdict: Verdict, finding: Finding, places: Places) -> list[str]:
    """Return the hosts that have a finding of the same reason."""
    alike = [one for one in verdict.findings if one.reason == finding.reason]
    named = {one.subject.host for one in alike if one.subject.host is not None}
    return sorted(named.union(places.hosts_of([rank for one in alike for rank in _ranks_of(one)])))


def _guard(finding: Finding, alike: Sequence[str], hosts: int, ratio: float | None) -> str | None:
    """Return what forbids to move the job because of a finding; None for nothing."""
    if finding.state != "open":
        return "it is over"
    if finding.owner not in MOVABLE_OWNERS:
        return f"another node does not help: the cause is for {finding.owner}"
    if not alike:
        return "no host is named"
    if len(alike) > max(1.0, MAX_NODES_RATIO * hosts):
        return f"{len(alike)} of {hosts} hosts show it: the cause is of the fleet, not of a node"
    kinds = {_kind_of(one.signal) for one in finding.evidence}
    if len(kinds) < 2:
        return "one kind of evidence stands alone"
    if finding.confidence.band == "low":
        return "the confidence is low"
    if not ratio:
        return "the loss is not known"
    return None


def _kind_of(signal: str) -> str:
    found = (kind for start, kind in _KINDS if signal.startswith(start))
    return next(found, signal.partition(".")[0])


def _move_s(finding: Finding, costs: MoveCosts) -> float:
    if costs.migration_s is not None and finding.kind != "hang":
        return costs.migration_s
    return costs.restart_s


def _advise(
    finding: Finding, costs: MoveCosts, pays_after_s: float | None, against: str | None
) -> tuple[Advice, str]:
    if against is not None:
        return Advice.DO_NOT_MOVE, against
    if pays_after_s is None or pays_after_s > costs.horizon_s:
        return Advice.DO_NOT_MOVE, "moving costs more than it gains within the horizon"
    pays = f"moving pays after {pays_after_s / 60:.0f} min"
    if finding.kind == "hang":
        return Advice.MOVE_NOW, f"the job stands still; {pays}"
    if costs.migration_s is not None:
        return Advice.MOVE_NOW, f"it can be moved alive; {pays}"
    return Advice.MOVE_AT_CHECKPOINT, f"{pays}; a restart before would lose more work"
