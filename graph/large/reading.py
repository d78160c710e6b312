"""Read what a diagnosis needs beyond the outline: whose clock is off, and the records of history and window.

Small jobs are read whole; of large ones the clocks are compared over fewer steps, and the records are those of the
ranks that `selection` chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rootwalk.graph import graph_store
from rootwalk.graph.align import ClockOffsets, find_clock_offsets
from rootwalk.graph.analysis import Question, StepClock
from rootwalk.graph.columns import JobData, shift_clocks
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.large.selection import Selection, only_chosen, select_ranks
from rootwalk.graph.large.store import read_step_size
from rootwalk.graph.told_waits import even_waits

__all__ = ["Details", "align", "read_details"]

# Clocks are compared over the last steps: enough collectives for the fit, few enough to read quickly.
MAX_ALIGNMENT_STEPS: Final = 200
MAX_ALIGNMENT_ROWS: Final = 50_000
# With fewer ranks the number of steps bounds what is read.
MIN_THINNED_RANKS: Final = 32


@dataclass(frozen=True, slots=True)
class Details:
    """A job with phases, collectives and stalls of history and window, aligned.

    `selection` is None where all ranks were read; `bad_times` phases end before they start.
    """

    data: JobData
    selection: Selection | None
    bad_times: int


def align(connection: Any, key: JobKey, outline: JobData) -> tuple[JobData, ClockOffsets]:
    """Return the outline on the reference clock, and the offsets of the hosts' clocks."""
    host_by_rank = {row.rank: row.host_id for row in outline.ranks}
    if len(set(host_by_rank.values())) < 2 or outline.steps.step.size == 0:
        return outline, ClockOffsets(dict.fromkeys(host_by_rank.values(), 0.0), 0.0, ())
    last = int(outline.steps.step.max())
    count = MAX_ALIGNMENT_STEPS
    if len(host_by_rank) > MIN_THINNED_RANKS:
        rows = read_step_size(connection, key, last).collectives
        count = min(max(MAX_ALIGNMENT_ROWS // max(rows, 1), 1), count)
    chosen = (max(last - count, 0), last)
    collectives = graph_store.read_collectives(connection, key, outline.origin_unix_ns, chosen)
    offsets = find_clock_offsets(collectives, host_by_rank)
    return shift_clocks(outline, _by_rank(outline, offsets)), offsets


def _by_rank(data: JobData, offsets: ClockOffsets) -> dict[int, float]:
    return {row.rank: offsets.offset_s_by_host.get(row.host_id, 0.0) for row in data.ranks}


def read_details(
    connection: Any,
    key: JobKey,
    data: JobData,
    clock: StepClock,
    question: Question,
    offsets: ClockOffsets,
) -> Details:
    """Return what a question needs of a job's records.

    Args:
        connection: To the store.
        key: The job.
        data: Its ranks and steps, on the aligned clock.
        clock: The job's step clock.
        question: History and window.
        offsets: Of the hosts' clocks.
    """
    history = [clock.numbers[i] for i in question.history]
    window = clock.numbers[question.start : question.stop]
    by_rank = _by_rank(data, offsets)
    now, before = np.array(window, dtype=np.int64), np.array(history, dtype=np.int64)
    step_s = clock.step_s
    usual_s = float(np.median(step_s[list(question.history)])) if history else 0.0
    slowdown_s = float(step_s[question.start : question.stop].mean()) - usual_s
    selection = select_ranks(connection, key, data, before, now, slowdown_s, by_rank)
    ranks = [] if selection is None else selection.ranks.tolist()
    span = (min([*history, window[0]]), max([*history, window[-1]]))
    phases, bad_times = graph_store.read_phases(connection, key, data.origin_unix_ns, span, ranks)
    read = replace(
        data,
        phases=phases,
        collectives=graph_store.read_collectives(connection, key, data.origin_unix_ns, span, ranks),
        stalls=graph_store.read_stalls(connection, key, data.origin_unix_ns, span, ranks),
        probes=graph_store.read_probes(connection, key, span, ranks),
    )
    aligned = shift_clocks(read, by_rank)
    # The steps were aligned before; shifting them again would move them twice.
    aligned = replace(aligned, steps=data.steps)
    if selection is not None:
        aligned = only_chosen(aligned, selection)
    return Details(even_waits(aligned, history, window), selection, bad_times)
