"""Numbers for people, with the digits that mean something."""

from __future__ import annotations

from rootwalk.graph.passages import JOINT


def money(value: float) -> str:
    """Return an amount in a currency that is not known: hundredths, of small amounts two digits that mean something.

    >>> money(1234.5), money(0.0123)
    ('1,234.50', '0.012')
    """
    return f"{value:,.2f}" if value >= 0.1 else f"{value:.2g}"


def seconds(value: float) -> str:
    """Return seconds with the digits that mean something: milliseconds below ten seconds, tenths above; joined.

    >>> seconds(0.0623).split()
    ['0.062', 's']
    >>> seconds(11.24).split()
    ['11.2', 's']
    """
    if abs(value) < 9.9995:
        # Adding zero turns "-0.000" into "0.000".
        return f"{round(value, 3) + 0.0:.3f}{JOINT}s"
    return f"{value:.1f}{JOINT}s"
