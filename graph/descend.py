"""Descend from slow operations to what the threads went through: seconds of each cause in each operation.

    excess of an operation = its work - the median of the same slot in healthy steps
                           = foreign by process + own + idle + running + gc + loader + blocked + unknown + rest

Owns the order of the descent: measure, compare, charge. Whether a cause matters is for replay and score. Every part is
measured against its own healthy median, so what was always there is nobody's fault.

Source:
    Method C6, on the states of the main thread; transfers by the other threads of each member.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rootwalk.graph.causes import Amounts
from rootwalk.graph.charges import charge
from rootwalk.graph.columns import FloatArray, JobData
from rootwalk.graph.input_waits import add_inputs, is_of_profile
from rootwalk.graph.measures import find_excess, measure
from rootwalk.graph.spread import Spread
from rootwalk.graph.steps import StepGraph


@dataclass(frozen=True, slots=True)
class Descent:
    """The window's excess: by cause, and as a whole per operation, (nodes,), seconds."""

    amounts: Amounts
    excess_s: FloatArray


def descend(
    data: JobData, history: StepGraph | None, window: StepGraph, *, is_alone: bool = False
) -> Descent:
    """Return what the window's operations cost above their references, split into causes.

    Args:
        data: Telemetry on the aligned clock.
        history: Graph of healthy steps with the same keys; None compares ranks with each other.
        window: Graph of the steps in question.
        is_alone: Whether only its waits for input are in question.
    """
    now = measure(data, window)
    before = measure(data, history) if history is not None else None
    excess = find_excess(before, now, window)
    if history is None and is_of_profile(data.inputs):
        excess = add_inputs(excess, now, window, data.inputs, is_alone=is_alone)
    spread = Spread(window, excess.slot_s, now.slot_s)
    history_steps = history.step_numbers if history is not None else ()
    amounts = charge(data, history_steps, window, excess, spread)
    by_node = np.zeros(window.kind.size)
    placed = np.flatnonzero(window.slot >= 0)
    slots, steps = window.slot[placed], window.step[placed]
    by_node[placed] = excess.slot_s[slots, steps] * spread.part_of_slot[placed]
    return Descent(amounts, by_node)
