"""Numbers with their units, as a person reads them."""

from __future__ import annotations

from typing import Final

from rootwalk.graph.passages import JOINT
from rootwalk.graph.render.digits import seconds

__all__ = ["duration", "quantity", "ratio", "size"]

_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
_SIZES: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def duration(value_s: float) -> str:
    """Return a length of time in the unit that suits it.

    >>> duration(5400.0).split()
    ['1.5', 'h']
    """
    if abs(value_s) < 2 * _MINUTE_S:
        return seconds(value_s)
    if abs(value_s) < _HOUR_S:
        return f"{value_s / _MINUTE_S:.1f}{JOINT}min"
    return f"{value_s / _HOUR_S:,.1f}{JOINT}h"


def size(value_bytes: float) -> str:
    """Return a number of bytes.

    >>> size(8100).split()
    ['8.1', 'kB']
    """
    for unit, factor in _SIZES:
        if value_bytes >= factor:
            return f"{value_bytes / factor:.1f}{JOINT}{unit}"
    return f"{value_bytes:.0f}{JOINT}B"


def ratio(value: float) -> str:
    """Return a ratio as per cent with the digits that mean something.

    >>> ratio(0.0021).split()
    ['0.21', '%']
    """
    digits = 2 if abs(value) < 0.01 else 1 if abs(value) < 0.1 else 0
    return f"{value * 100.0:.{digits}f}{JOINT}%"


def quantity(value: float | None, unit: str) -> str:
    """Return a measured value of the evidence with its unit; "unknown" where there is none."""
    if value is None:
        return "unknown"
    if unit == "s":
        return seconds(value)
    if unit in ("1", ""):
        return f"{value:.3g}"
    return f"{value:.4g}{JOINT}{unit.strip('{}')}"
