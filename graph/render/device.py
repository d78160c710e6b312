"""Say what stands on a rank's way through the step, as its profile shows it: the kind, and the operation."""

from __future__ import annotations

from typing import Final

from rootwalk.graph.model import ChainLink, EvidenceView, Finding
from rootwalk.graph.reasons import OPERATION_SIGNAL, PATH_SIGNAL
from rootwalk.graph.render.digits import seconds

__all__ = ["device_text", "own_chain", "path_name"]

# By the last part of the signal.
_KINDS: Final = {
    "computation_time": "kernels",
    "collective_time": "collectives' kernels",
    "copy_time": "copies",
    "launch_gap_time": "device idle for want of a launch",
    "host_time": "host at work beside the device",
    "input_time": "loading data",
    "queued_time": "device idle, though the next operation was launched",
    "unknown_time": "waiting for what the profile does not tell",
}
_BEYOND: Final = ("gpu:", "launches:")


def path_name(signal: str) -> str | None:
    """Return what a signal of a path is called in words; None for another signal.

    >>> path_name("training.device.operation.time: gemm")
    "gemm on the critical path"
    """
    if signal.startswith(OPERATION_SIGNAL):
        return f"{signal.removeprefix(OPERATION_SIGNAL)} on the critical path"
    name = _KINDS.get(signal.removeprefix(PATH_SIGNAL)) if signal.startswith(PATH_SIGNAL) else None
    return None if name is None else f"{name}, on the critical path"


def own_chain(finding: Finding) -> tuple[ChainLink, ...]:
    """Return the chain to the cause, without what goes on to the device."""
    chain = finding.chain
    for index in range(1, len(chain)):
        if chain[index].node.startswith(_BEYOND) and chain[index - 1].edge == "waits_for":
            return chain[: index - 1]
    return chain


def device_text(finding: Finding) -> str:
    """Return what stands on the path, with its seconds; empty where no profile tells any."""
    whole = next((row for row in finding.evidence if row.signal.startswith(PATH_SIGNAL)), None)
    if whole is None:
        return ""
    name = _KINDS.get(whole.signal.removeprefix(PATH_SIGNAL), "something")
    text = f"{name} {_amount(whole)}/step on the critical path{_beside(whole)}"
    part = next((row for row in finding.evidence if row.signal.startswith(OPERATION_SIGNAL)), None)
    if part is not None:
        text += f"; {part.signal.removeprefix(OPERATION_SIGNAL)} {_amount(part)}{_beside(part)}"
    return text


def _amount(row: EvidenceView) -> str:
    return "unknown" if row.value is None else f"{seconds(row.value)}"


def _beside(row: EvidenceView) -> str:
    text = f", before {seconds(row.history)}" if row.history is not None else ""
    return text + (f", peers {seconds(row.peers)}" if row.peers is not None else "")
