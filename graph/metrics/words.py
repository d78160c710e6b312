"""Say what was measured in words, by its UCUM unit, and where."""

from __future__ import annotations

from typing import Final

__all__ = ["quantity_text", "subject_label"]

_PREFIXES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_NAMES: Final = {"By/s": "B/s", "Hz": "Hz", "W": "W", "Cel": "°C"}


def quantity_text(value: float, unit: str) -> str:
    """Return a number with its unit; the two do not break apart.

    >>> [quantity_text(*item).split() for item in ((1.98e9, "Hz"), (0.953, "1"), (12.0, "{packet}/s"))]
    [['1.98', 'GHz'], ['95', '%'], ['12', 'packets/s']]
    """
    gap = "\N{NO-BREAK SPACE}"
    if unit == "1":
        return f"{100.0 * value:.0f}{gap}%"
    if unit in ("By/s", "Hz"):
        for factor, prefix in _PREFIXES:
            if abs(value) >= factor:
                return f"{value / factor:.3g}{gap}{prefix}{_NAMES[unit]}"
    if unit.startswith("{") and unit.endswith("}"):
        return f"{value:.3g}"
    name = _NAMES.get(unit, unit.replace("{", "").replace("}/s", "s/s"))
    return f"{value:.3g}{gap}{name}"


def subject_label(component: str, host: str, device: str | None) -> str:
    """Return what people call a component.

    >>> subject_label("gpu", "node7", "5")
    'GPU 5 of node7'
    >>> subject_label("memory", "node7", None)
    'memory of node7'
    """
    name = {"gpu": "GPU", "cpu": "CPUs", "disk": "disk", "nic": "interface"}.get(
        component, component
    )
    return f"{name} {device} of {host}" if device else f"{name} of {host}"
