"""How the helper process names a value: one word for the metric and its attributes, which both sides know.

training.gpu.frequency|training.gpu.clock=sm
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["parse_series", "series"]

_BETWEEN, _IS = "|", "="


def series(metric: str, **attributes: str) -> str:
    """Return the name of a value; in names of attributes `__` stands for a dot."""
    words = [f"{name.replace('__', '.')}{_IS}{value}" for name, value in attributes.items()]
    return _BETWEEN.join((metric, *words))


@lru_cache(maxsize=4096)
def parse_series(name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the metric and its attributes."""
    metric, *words = name.split(_BETWEEN)
    pairs = (word.partition(_IS) for word in words)
    return metric, tuple((key, value) for key, _, value in pairs)
