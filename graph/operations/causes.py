"""What the operations of a window cost above their references, by cause, and each cause's share of the step.

Owns the choice of the causes that are worth a replay, and the sharing. Causes are workers, the split into stages, the
data, transfers, and hosts where operations start late; everything else is one cause, `OTHERS`, that nobody is given.

Source:
    Method C5; the zero-delay test first (C9, pitfall 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from rootwalk.graph.columns import BoolArray, FloatArray
from rootwalk.graph.operations.contrasts import Parts, published_reference_s, split
from rootwalk.graph.operations.graph import OperationGraph
from rootwalk.graph.operations.replay import replay_operations, replay_scenarios
from rootwalk.graph.replay import MAX_EXACT_CAUSES, coalitions_of, share_coalitions

__all__ = ["Cause", "CauseKind", "Costs", "find_costs"]

# Delays that change the step by less are artefacts of edges that nobody recorded (method C5).
MIN_DELAY_RATIO: Final = 0.03
# Ranks whose removal is tried before the causes are chosen.
MAX_TRIED_RANKS: Final = 8
# A cause that changes the step by less than this part, taken out alone and left in alone, shares in no coalition:
# sharing among seven takes 128 replays, and none that costs less than forty times as much is listed.
MIN_SHARING_RATIO: Final = 1e-3


class CauseKind(StrEnum):
    """What a cause is."""

    WORKER = "worker"
    HOST = "host"
    STAGE = "stage"
    DATA = "data"
    TRANSFER = "transfer"
    OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause; `rank` is None where it is nobody's."""

    kind: CauseKind
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a window's causes.

    Attributes:
        causes: Those that were replayed; the last is OTHERS.
        amounts_s: What each takes in each operation, (nodes, causes).
        shares_s: Fair share of each, (steps, causes); what changes nothing alone has 0, and its part is OTHERS'.
        remove_s: What a step gains without each, (causes,).
        add_s: What each costs alone, (causes,).
        simulated_s: The replay as recorded, mean of the steps.
        ideal_s: The replay without all causes.
        published_s: The replay with every operation at StragglerAnalysis's reference.
        delays_s: What the delays that were left out would have cost; 0 where they are causes.
        has_delays: Whether operations that start late are causes.
        parts: The contrasts.
    """

    causes: tuple[Cause, ...]
    amounts_s: FloatArray
    shares_s: FloatArray
    remove_s: FloatArray
    add_s: FloatArray
    simulated_s: float
    ideal_s: float
    published_s: float
    delays_s: float
    has_delays: bool
    parts: Parts


def find_costs(graph: OperationGraph) -> Costs:
    """Return what the causes of a window cost."""
    parts = split(graph.operations, graph.work_s)
    delay_s = np.maximum(graph.delay_s, 0.0)
    plain_s = float(replay_operations(graph, graph.work_s[:, None]).mean())
    late_s = float(replay_operations(graph, graph.work_s[:, None], delay_s[:, None]).mean())
    has_delays = late_s - plain_s >= MIN_DELAY_RATIO * late_s
    kept_s = delay_s if has_delays else None
    causes, columns = _choose(graph, parts, kept_s)
    is_delay = tuple(cause.kind is CauseKind.HOST for cause in causes)
    others = graph.work_s - parts.reference_s - columns[:, [not late for late in is_delay]].sum(1)
    causes.append(Cause(CauseKind.OTHERS))
    amounts = np.hstack([columns, others[:, None]])
    is_delay = (*is_delay, False)
    alone = replay_scenarios(graph, amounts, _alone(len(causes)), kept_s, is_delay).mean(axis=0)
    remove_s, add_s = alone[0] - alone[2::2], alone[3::2] - alone[1]
    is_sharing = np.maximum(np.abs(remove_s), np.abs(add_s)) >= MIN_SHARING_RATIO * alone[0]
    is_sharing[-1] = True
    reference = published_reference_s(graph.operations, graph.work_s)
    return Costs(
        causes=tuple(causes),
        amounts_s=amounts,
        shares_s=_share(graph, amounts, is_sharing, kept_s, is_delay),
        remove_s=remove_s,
        add_s=add_s,
        simulated_s=float(alone[0]),
        ideal_s=float(alone[1]),
        published_s=float(replay_operations(graph, reference[:, None]).mean()),
        delays_s=0.0 if has_delays else late_s - plain_s,
        has_delays=has_delays,
        parts=parts,
    )


def _alone(count: int) -> FloatArray:
    """Return the scenarios as recorded, without all, and in turn without and with one alone, (causes, scenarios)."""
    scenarios = np.zeros((count, 2 + 2 * count))
    scenarios[:, 1::2] = 1.0
    scenarios[range(count), range(2, 2 + 2 * count, 2)] = 1.0
    scenarios[range(count), range(3, 2 + 2 * count, 2)] = 0.0
    return scenarios


def _share(
    graph: OperationGraph,
    amounts_s: FloatArray,
    is_sharing: BoolArray,
    delay_s: FloatArray | None,
    is_delay: tuple[bool, ...],
) -> FloatArray:
    """Return the fair share of each cause, (steps, causes); those that do not share are taken out with the last."""
    sharing = np.flatnonzero(is_sharing)
    together = np.zeros((is_sharing.size, 2**sharing.size))
    together[sharing] = coalitions_of(sharing.size)
    together[~is_sharing] = together[-1]
    times = replay_scenarios(graph, amounts_s, together, delay_s, is_delay)
    shares = np.zeros((graph.step_numbers.size, is_sharing.size))
    shares[:, sharing] = share_coalitions(times, sharing.size)
    return shares


def _choose(
    graph: OperationGraph, parts: Parts, delay_s: FloatArray | None
) -> tuple[list[Cause], FloatArray]:
    """Return the causes to replay, all but OTHERS, and their seconds in each operation."""
    shared = [
        (Cause(CauseKind.STAGE), parts.stage_s),
        (Cause(CauseKind.DATA), parts.data_s),
        (Cause(CauseKind.TRANSFER), parts.transfer_s),
    ]
    if delay_s is not None:
        shared += _largest(graph, delay_s, 1, CauseKind.HOST, delay_s)
    room = MAX_EXACT_CAUSES - 1 - len(shared)
    chosen = [*_largest(graph, parts.worker_s, room, CauseKind.WORKER, delay_s), *shared]
    return [cause for cause, _ in chosen], np.stack([column for _, column in chosen], axis=1)


def _largest(
    graph: OperationGraph,
    seconds: FloatArray,
    room: int,
    kind: CauseKind,
    delay_s: FloatArray | None,
) -> list[tuple[Cause, FloatArray]]:
    """Return the ranks without whose part a step gains most, with their parts; tries those that have most.

    One after the other, each without those before it: the worst hides what the next costs.
    """
    rank = graph.operations.rank
    total = np.bincount(rank, np.maximum(seconds, 0.0))
    order = np.lexsort((np.arange(total.size), -total.round(9)))[:MAX_TRIED_RANKS]
    tried = [int(number) for number in order if total[number] > 0.0]
    columns = [np.where(rank == number, seconds, 0.0) for number in tried]
    best = list(range(len(tried)))
    if len(tried) > room:
        is_delay = (kind is CauseKind.HOST,) * len(tried)
        amounts, left, best = np.stack(columns, axis=1), best, []
        while len(best) < room:
            without = np.zeros((len(tried), len(left)))
            without[left, range(len(left))] = 1.0
            without[best] = 1.0
            times = replay_scenarios(graph, amounts, without, delay_s, is_delay)
            step_s = times.mean(axis=0).round(9).tolist()
            _, _, chosen = min((step_s[i], tried[one], one) for i, one in enumerate(left))
            best.append(chosen)
            left.remove(chosen)
    return [(Cause(kind, tried[i]), columns[i]) for i in best[:room]]
