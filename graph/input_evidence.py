"""Evidence of waits for input, as a profile shows them: the loading, the device's idleness and operators in it."""

from __future__ import annotations

from rootwalk.graph.casefile import CaseFile, add_evidence
from rootwalk.graph.causes import CauseKey
from rootwalk.graph.dependencies import node_id
from rootwalk.graph.input_waits import input_reasons, is_of_profile, mean_seconds
from rootwalk.graph.loaders import DATA_LOAD
from rootwalk.graph.model import NodePayload
from rootwalk.graph.reasons import Reason, Signal

__all__ = ["add_input_evidence", "input_coverage", "input_signal", "is_input", "load_node"]


def is_input(file: CaseFile, key: CauseKey) -> bool:
    """Return whether a cause is a wait for input, which a profile or the main thread shows in each step."""
    if not file.data.inputs or file.question.history:
        return False
    if not is_of_profile(file.data.inputs):
        return key.reason == Reason.UNKNOWN_HOST and (key.place == DATA_LOAD or key.rank is None)
    return key.place == DATA_LOAD or (
        key.rank is None and key.reason in (Reason.DATALOADER_CPU, Reason.UNKNOWN_HOST)
    )


def input_signal(file: CaseFile) -> Signal:
    """Return what shows that input was waited for."""
    return Signal.INPUT_WAIT if is_of_profile(file.data.inputs) else Signal.INPUT_BLOCKED


def load_node(file: CaseFile, rank: int, part: str = "") -> str:
    """Add the node of a rank's data loading, or of a part of it; return its id."""
    node = node_id("phase", rank, DATA_LOAD, *([part] if part else []))
    file.graph.add_node(node, NodePayload("phase", DATA_LOAD, {}))
    return node


def add_input_evidence(file: CaseFile, rank: int | None) -> tuple[str, ...]:
    """Add what a profile shows of a rank's data loading, or of all ranks'; return the rows' ids."""
    length_s, idle_s, operator_s = mean_seconds(
        file.data.inputs, rank, file.analysis.window.step_numbers
    )
    whose = "common" if rank is None else f"rank{rank}"
    columns = "step, rank, duration_ns, attributes"
    query = file.query(columns, "spans", rank, f"AND name = '{DATA_LOAD}' ORDER BY step, rank")
    rows: tuple[tuple[Signal, float, float | None], ...] = (
        (Signal.INPUT_WAIT, idle_s, 0.0),
        (Signal.OPERATOR, operator_s, None),
        (Signal.DEVICE_BUSY, length_s - idle_s, None),
    )
    if not is_of_profile(file.data.inputs):
        rows = ((Signal.INPUT_BLOCKED, idle_s, 0.0),)
    return tuple(
        add_evidence(file, f"{signal}/input/{whose}", signal, value, history=usual, query=query)
        for signal, value, usual in rows
    )


def input_coverage(file: CaseFile, key: CauseKey) -> float | None:
    """Return how much of the loading a profile shows to be what a cause says; None where the rule decides."""
    if key.reason != Reason.DATALOADER_CPU:
        return None
    known = input_reasons(file.data.inputs, file.analysis.window.step_numbers)
    told = [part for rank, (_, part) in known.items() if key.rank in (None, rank)]
    return sum(told) / len(told) if told else None
