"""Counters that the training program's own spans add up to, read from the store as points.

    signal                            spans                              what each adds
    training.compile.time             torch.compile                      its length, s
    training.allocator.retries        torch.allocator                    its retries
    training.evaluation.time          phases `evaluation`                their length, s
    collective.size                   collectives that exchange          what the rank sent, bytes
    training.pipeline.messages        messages between two ranks         1
    training.collectives              all other collectives              1
    training.device.…, collective.…   steps of a profile                 what the step says, s
    training.cpu.probe_time           steps of a rank                    a level: what the step says, s

A span that tells an amount is a sum that grows while it lasts. Owns the SQL; what they mean is the rules'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from rootwalk.graph.counters.movement import Points
from rootwalk.graph.reasons import Signal
from rootwalk.instrumentation import semconv

__all__ = ["TOLD_SIGNALS", "read_told", "told_query", "told_unit"]

NS: Final = 1e9
_LENGTH: Final = "(end_unix_ns - start_unix_ns) / 1e9"
# Signal: which spans, and what each of them adds. A span tells one of them.
_SPANS: Final[dict[Signal, tuple[str, str]]] = {
    Signal.COMPILING: ("name = 'torch.compile'", _LENGTH),
    Signal.ALLOCATOR_RETRIES: (
        "name = 'torch.allocator'",
        f"TRY_CAST(attributes ->> '$.\"{semconv.TRAINING_ALLOCATOR_RETRIES}\"' AS DOUBLE)",
    ),
    Signal.EVALUATING: (
        f"phase_index IS NOT NULL AND phase = '{semconv.TrainingPhase.EVALUATION.value}'",
        _LENGTH,
    ),
    Signal.EXPERT_SIZE: (
        "starts_with(name, 'collective.') AND starts_with(operation, 'all_to_all')",
        "CAST(bytes AS DOUBLE)",
    ),
}
# What there may be thousands of in a step: counted where they are.
_IS_MESSAGE: Final = "coalesce(operation, '') IN ('send', 'recv', 'isend', 'irecv')"
_COUNTED: Final[dict[Signal, str]] = {
    Signal.STAGE_MESSAGES: _IS_MESSAGE,
    Signal.COLLECTIVES: f"NOT {_IS_MESSAGE}",
}
# What a profile says of each step.
_OF_STEPS: Final = (
    Signal.LAUNCH_GAP,
    Signal.SYNCHRONIZING,
    Signal.EXPOSED,
    Signal.COMMUNICATING,
    Signal.CPU_PROBE,
)
# Of those, what is no amount of the step.
_LEVELS: Final = frozenset({Signal.CPU_PROBE})
TOLD_SIGNALS: Final = frozenset((*_SPANS, *_COUNTED, *_OF_STEPS))
_UNITS: Final = {
    Signal.ALLOCATOR_RETRIES: "1",
    Signal.EXPERT_SIZE: "By",
    Signal.STAGE_MESSAGES: "1",
    Signal.COLLECTIVES: "1",
}
_FROM: Final = """
FROM span_records
WHERE job = ? AND coalesce(attempt, 0) = ? AND host_id IN (SELECT unnest(?::TEXT[]))
    AND end_unix_ns BETWEEN ? AND ? AND rank IS NOT NULL
"""
# Host, rank, begin and end of each span; then what it tells of each signal.
_Row = tuple[str, int, int, int, *tuple[float | None, ...]]


def read_told(
    connection: Any,
    key: tuple[str, int],
    signals: Collection[str],
    hosts: Sequence[str],
    span_unix_ns: tuple[int, int],
    clock: tuple[int, Mapping[str, float]],
) -> dict[tuple[str, str, int], Points]:
    """Return the points of signals by (signal, host's id, rank); what no span tells is missing.

    Args:
        connection: An open store.
        key: Job and attempt.
        signals: Those of `TOLD_SIGNALS` that are wanted; others are left out.
        hosts: Ids of hosts.
        span_unix_ns: First and last moment.
        clock: Unix ns of the time 0 of the analysis, and how far each host's clock is ahead, s.
    """
    found: dict[tuple[str, str, int], list[tuple[float, float, float]]] = defaultdict(list)
    of_spans = [signal for signal in _SPANS if signal in signals]
    counted = [signal for signal in _COUNTED if signal in signals]
    of_steps = [signal for signal in _OF_STEPS if signal in signals]
    for asked, query in (
        (of_spans, _query(of_spans)),
        (counted, _count_query(counted)),
        (of_steps, _steps_query(of_steps)),
    ):
        if not asked:
            continue
        rows: list[_Row] = connection.execute(query, [*key, list(hosts), *span_unix_ns]).fetchall()
        for host, rank, start_ns, end_ns, *amounts in rows:
            offset_s = clock[1].get(host, 0.0)
            begin_s, end_s = ((ns - clock[0]) / NS - offset_s for ns in (start_ns, end_ns))
            for signal, amount in zip(asked, amounts, strict=True):
                if amount is not None and amount >= 0.0:
                    found[signal, host, rank].append((begin_s, end_s, float(amount)))
    return {
        name: _points(spans) if name[0] not in _LEVELS else _levels(spans)
        for name, spans in found.items()
    }


def told_unit(signal: str) -> str:
    """Return the unit of a told signal."""
    return _UNITS.get(Signal(signal), "s")


def told_query(signal: str, job: str, rank: int, span_unix_ns: tuple[int, int]) -> str:
    """Return the SQL that shows the spans behind a told signal to a reader."""
    which = "name = 'training.rank_step'"
    if signal in _SPANS:
        # The public view has the attributes, and no column for a phase or an operation.
        which = {
            Signal.COMPILING: "name = 'torch.compile'",
            Signal.ALLOCATOR_RETRIES: "name = 'torch.allocator'",
            Signal.EVALUATING: f"name = '{semconv.TrainingPhase.EVALUATION.value}'",
            Signal.EXPERT_SIZE: "starts_with(name, 'collective.all_to_all')",
            Signal.STAGE_MESSAGES: "name IN ('collective.send', 'collective.recv')",
            Signal.COLLECTIVES: "starts_with(name, 'collective.')",
        }[Signal(signal)]
    owner = job.replace("'", "''")
    where = f"job = '{owner}' AND rank = {rank} AND {which}"
    within = f"end_unix_ns BETWEEN {span_unix_ns[0]} AND {span_unix_ns[1]}"
    columns = "step, name, duration_ns, attributes"
    return " ".join(
        ("SELECT", columns, "FROM spans WHERE", where, "AND", within, "ORDER BY end_unix_ns")
    )


def _query(signals: Sequence[Signal]) -> str:
    amounts = [f"CASE WHEN {_SPANS[one][0]} THEN {_SPANS[one][1]} END" for one in signals]
    which = " OR ".join(f"({_SPANS[one][0]})" for one in signals)
    return _select(amounts, which)


def _steps_query(signals: Sequence[Signal]) -> str:
    amounts = [f"TRY_CAST(attributes ->> '$.\"{one}\"' AS DOUBLE)" for one in signals]
    told = " OR ".join(f"contains(attributes, '{one}')" for one in signals)
    return _select(amounts, f"name = 'training.rank_step' AND ({told})")


def _count_query(signals: Sequence[Signal]) -> str:
    amounts = [f"CAST(count(*) FILTER ({_COUNTED[one]}) AS DOUBLE)" for one in signals]
    columns = ", ".join(("host_id", "rank", "min(start_unix_ns)", "max(end_unix_ns)", *amounts))
    which = "starts_with(name, 'collective.')"
    return f"SELECT {columns} {_FROM} AND {which} GROUP BY host_id, rank, step ORDER BY 1, 2, 4, 3"


def _select(amounts: Sequence[str], which: str) -> str:
    columns = ", ".join(("host_id", "rank", "start_unix_ns", "end_unix_ns", *amounts))
    return f"SELECT {columns} {_FROM} AND ({which}) ORDER BY 1, 2, 4, 3"


def _points(spans: list[tuple[float, float, float]]) -> Points:
    """Return amounts as a sum that grows from each span's begin, or the end before it, to its end."""
    begin_s, end_s, amount = (np.array(column) for column in zip(*spans, strict=True))
    begin_s = np.maximum(begin_s, np.concatenate([[-np.inf], end_s[:-1]]))
    reached = np.cumsum(amount)
    times = np.stack([np.minimum(begin_s, end_s), end_s], axis=1).ravel()
    return Points(times, np.stack([reached - amount, reached], axis=1).ravel(), is_thinned=False)


def _levels(spans: list[tuple[float, float, float]]) -> Points:
    """Return what each span says of its end."""
    _, end_s, level = (np.array(column) for column in zip(*spans, strict=True))
    return Points(end_s, level, is_thinned=False)
