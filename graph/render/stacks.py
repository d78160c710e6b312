"""Say in which functions a rank spends what its peers do not: the first one on a CPU, and the first one off it."""

from __future__ import annotations

from typing import Final

from rootwalk.graph.model import EvidenceView, Finding
from rootwalk.graph.reasons import FRAME_SIGNAL
from rootwalk.graph.render.digits import seconds

__all__ = ["frame_name", "frame_rows", "stack_text"]

_KINDS: Final = {"on_cpu": "on a CPU", "off_cpu": "off the CPU"}
_BEFORE_NAME: Final = ": "


def frame_name(signal: str) -> str | None:
    """Return what a frame's signal is called in words; None for another signal.

    >>> frame_name("profile.frame.on_cpu: decode (jpeg.py:12)")
    'on a CPU in decode (jpeg.py:12)'
    """
    kind, name = _parts(signal)
    return None if kind is None else f"{_KINDS.get(kind, kind)} in {name}"


def frame_rows(finding: Finding) -> list[EvidenceView]:
    """Return the evidence of a finding that is of frames, as it stands there."""
    return [row for row in finding.evidence if row.signal.startswith(FRAME_SIGNAL)]


def stack_text(finding: Finding) -> str:
    """Return the first frame of each kind with its seconds; empty where no profile tells any.

    Args:
        finding: Whose evidence is told.
    """
    told: dict[str, str] = {}
    for row in frame_rows(finding):
        kind, name = _parts(row.signal)
        if kind is None or kind in told or row.value is None:
            continue
        text = f"{name} {seconds(row.value)}/step {_KINDS.get(kind, kind)}"
        if row.peers is not None:
            text += f", peers {seconds(row.peers)}"
        elif row.history is not None:
            text += f", before {seconds(row.history)}"
        told[kind] = text
    return "; ".join(told.values())


def _parts(signal: str) -> tuple[str | None, str]:
    """Return the kind of time and the frame of a signal."""
    kind, mark, name = signal.removeprefix(FRAME_SIGNAL).partition(_BEFORE_NAME)
    return (kind, name) if signal.startswith(FRAME_SIGNAL) and mark else (None, signal)
