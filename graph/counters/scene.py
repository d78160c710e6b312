"""The window of a diagnosis as counters see it: which steps are compared, and what a cause acted on.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rootwalk.graph.analysis import Analysis, Question, StepClock
from rootwalk.graph.columns import JobData, ThreadState
from rootwalk.graph.counters.formulas import Usual
from rootwalk.graph.counters.movement import LOOK_S, REPEAT_S, StepSpans
from rootwalk.graph.steps import OpKind, StepGraph

__all__ = ["MIN_QUIET_STEPS", "Scene", "find_spans", "usual_of"]

# Counters are held against so much time before the onset: enough for what comes now and then.
HISTORY_S: Final = 300.0
# So many healthy steps that ended a look before the onset are a history; fewer, and those up to it count too: a look
# that begins before the onset tells of what came after it.
MIN_QUIET_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class Scene:
    """What was read and found of one window; `offset_s_by_host` is how far each host's clock is ahead."""

    data: JobData
    clock: StepClock
    question: Question
    analysis: Analysis
    offset_s_by_host: Mapping[str, float]

    def hosts(self, first: frozenset[int]) -> list[str]:
        """Return the ids of the ranks' hosts, those of some ranks first."""
        rows = sorted(self.data.ranks, key=lambda row: (row.rank not in first, row.rank))
        return list(dict.fromkeys(row.host_id for row in rows))

    def host_name(self, host_id: str) -> str:
        """Return a host's name, its id where it has none."""
        row = next((row for row in self.data.ranks if row.host_id == host_id), None)
        return host_id if row is None else (row.host_name or row.host_id)

    def unix_span(self, spans: StepSpans) -> tuple[int, int]:
        """Return the first and last moment of which points are wanted, by any of the hosts' clocks."""
        ahead = [0.0, *self.offset_s_by_host.values()]
        origin = self.data.origin_unix_ns
        first_s = float(spans.start_s.min()) - REPEAT_S - LOOK_S + min(ahead)
        last_s = float(spans.end_s.max()) + LOOK_S + max(ahead)
        return origin + round(first_s * 1e9), origin + round(last_s * 1e9)


def find_spans(clock: StepClock, question: Question) -> StepSpans | None:
    """Return the steps that counters are held against each other in; None without a history of the job's own."""
    if not question.history:
        return None
    # The last steps of a long slowdown are asked about by themselves: quiet ones between its pauses are not healthy.
    onset = question.start if question.onset is None else question.onset
    step_s, onset_s = clock.step_s, float(clock.start_s[onset])
    limit_s = question.limit_s
    if limit_s is None:
        limit_s = float(step_s[list(question.history)].max())
    before = np.arange(onset)
    is_quiet = (step_s[before] <= limit_s) & (clock.start_s[before] >= onset_s - HISTORY_S)
    guarded = before[is_quiet & (clock.end_s[before] <= onset_s - LOOK_S)]
    chosen = guarded if guarded.size >= MIN_QUIET_STEPS else before[is_quiet]
    if not chosen.size:
        return None
    positions = np.concatenate([chosen, np.arange(question.start, question.stop)])
    return StepSpans(clock.start_s[positions], clock.end_s[positions], int(chosen.size))


def usual_of(scene: Scene, rank: int | None) -> Usual:
    """Return what a rank did in a step, and all ranks' transfers."""
    transfer_s = _transfer_s(scene.analysis.history)
    if rank is None:
        return Usual(transfer_before_s=transfer_s)
    steps = scene.data.steps
    window = scene.analysis.window.step_numbers
    history = [scene.clock.numbers[i] for i in scene.question.history]
    running = steps.states[:, ThreadState.RUNNING]
    mine = (steps.rank == rank) & ~np.isnan(running)
    now, before = (
        running[mine & np.isin(steps.step, list(chosen))] for chosen in (window, history)
    )
    return Usual(
        running_s=float(now.mean()) if now.size else None,
        running_before_s=float(np.median(before)) if before.size else None,
        transfer_before_s=transfer_s,
        page_wait_s=_page_wait_s(scene, rank, window, history),
        step_before_s=float(np.median(scene.clock.step_s[list(scene.question.history)])),
    )


def _transfer_s(history: StepGraph | None) -> float | None:
    """Return how long transfers took a rank in a healthy step."""
    if history is None or not history.step_numbers or not history.lane_end:
        return None
    total_s = float(history.work_s[history.kind == OpKind.COLLECTIVE].sum())
    return total_s / len(history.step_numbers) / len(history.lane_end)


def _page_wait_s(
    scene: Scene, rank: int, window: tuple[int, ...], history: list[int]
) -> float | None:
    """Return how much longer a step the rank's main thread waited for pages; None where no waits are told."""
    now_s, before_s, is_told = 0.0, 0.0, False
    slow, quiet = set(window), set(history)
    for stall in scene.data.stalls:
        if stall.rank != rank or stall.role != "main" or stall.wait is None:
            continue
        is_told = True
        if stall.wait.kind == "fault":
            length_s = stall.end_s - stall.start_s
            now_s += length_s if stall.step in slow else 0.0
            before_s += length_s if stall.step in quiet else 0.0
    if not is_told:
        return None
    return now_s / len(window) - before_s / max(len(history), 1)
