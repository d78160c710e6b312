"""The plane that curve and map share: steps from left to right, so that both can be read one above the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["LEFT", "PLOT_WIDTH", "WIDTH", "Columns", "Tick", "choose_columns", "round_up", "ticks"]

# In units of the drawing, about a CSS pixel on a wide screen.
WIDTH: Final = 920
LEFT: Final = 116
PLOT_WIDTH: Final = WIDTH - LEFT - 12
# More steps than this share columns: a column narrower than three pixels cannot be pointed at.
MAX_COLUMNS: Final = 240
_NICE: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_FINE: Final = (1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 5.0, 6.4, 8.0, 10.0)


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: where, and what it says."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of one or more steps: position and number of the first and last step of each."""

    bounds: tuple[tuple[int, int], ...]
    numbers: tuple[tuple[int, int], ...]

    def x(self, column: float) -> float:
        """Return where a column begins."""
        return LEFT + PLOT_WIDTH * column / len(self.bounds)

    def span(self, first: int | None, last: int | None) -> tuple[float, float] | None:
        """Return where steps first to last begin and end; None where none of them is shown."""
        if first is None or last is None:
            return None
        inside = [i for i, (a, b) in enumerate(self.numbers) if a <= last and b >= first]
        return (self.x(inside[0]), self.x(inside[-1] + 1)) if inside else None

    def label(self, column: int) -> str:
        """Return the column's step numbers in words."""
        first, last = self.numbers[column]
        return f"step {first}" if first == last else f"steps {first} to {last}"

    def ticks(self) -> tuple[Tick, ...]:
        """Return marks at round step numbers, about eight."""
        first, last = self.numbers[0][0], self.numbers[-1][1]
        distance = max(round(round_up((last - first) / 8)), 1) if last > first else 1
        marks = []
        for column, (low, high) in enumerate(self.numbers):
            number = -(-low // distance) * distance
            if number <= high:
                marks.append(Tick(self.x(column + 0.5), str(number)))
        return tuple(marks)


def choose_columns(numbers: Sequence[int]) -> Columns:
    """Return the columns for these steps: one each, or as many as share a column evenly."""
    width = max(-(-len(numbers) // MAX_COLUMNS), 1)
    bounds = [(i, min(i + width, len(numbers))) for i in range(0, len(numbers), width)]
    return Columns(tuple(bounds), tuple((numbers[a], numbers[b - 1]) for a, b in bounds))


def round_up(value: float, is_fine: bool = False) -> float:
    """Return the next round number: 1, 2, 2.5 or 5 times a power of ten; `is_fine` allows for more between them.

    >>> round_up(0.0601)
    0.1
    """
    if value <= 0.0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    # The tolerance keeps 0.1 at 0.1 whatever the last bit of the quotient is.
    return next(
        power * step
        for step in (_FINE if is_fine else _NICE)
        if value <= power * step * (1.0 + 1e-9)
    )


def ticks(top: float, count: int) -> tuple[float, ...]:
    """Return round values from 0 to `top`, about `count`."""
    distance = round_up(top / count)
    return tuple(i * distance for i in range(int(top / distance + 1e-9) + 1))
