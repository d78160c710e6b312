"""Sizes, times and ranges of steps as people write them on a command line."""

from __future__ import annotations

import argparse
import re
from typing import Final

from rootwalk.instrumentation.errors import ConfigError

__all__ = ["parse_bytes", "parse_price", "parse_ranks", "parse_seconds", "parse_steps"]

_BYTES_BY_UNIT: Final = {
    "": 1,
    "B": 1,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
_SECONDS_BY_UNIT: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "": 1.0}


def parse_bytes(text: str, option: str) -> int:
    """Return a size such as 256MiB, 1GiB, 500MB or 1048576 in bytes.

    Raises:
        ConfigError: If it is not of that form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _BYTES_BY_UNIT:
        raise ConfigError(
            f'cannot use "{text}" for {option}: saw no size; needs a size such as 256MiB, 1GiB or 500MB'
        )
    return round(float(match[1]) * _BYTES_BY_UNIT[match[2].upper()])


def parse_seconds(text: str, option: str) -> float:
    """Return a time such as 500ms, 2s, 1m or 2 in seconds.

    Raises:
        ConfigError: If it is not of that form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", text.strip())
    if match is None:
        raise ConfigError(
            f'cannot use "{text}" for {option}: saw no number with a unit; needs a time such as 500ms, 2s or 1m'
        )
    return float(match[1]) * _SECONDS_BY_UNIT[match[2]]


def parse_price(text: str) -> float:
    """Return the price of an hour of one device, in the user's own currency.

    Raises:
        argparse.ArgumentTypeError: If it is no number above 0.
    """
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f'saw "{text}"; needs a price above 0 such as 2.50')
    return float(text)


def parse_steps(text: str) -> tuple[int, int]:
    """Return the first and last step of a range such as 100:159.

    Raises:
        argparse.ArgumentTypeError: If it is none.
    """
    first, separator, last = text.partition(":")
    if not separator or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not FIRST:LAST, two step numbers like 100:159"
        )
    return int(first), int(last)


def parse_ranks(text: str) -> tuple[int, ...]:
    """Return ranks such as 0,1,2,3, in their order.

    Raises:
        argparse.ArgumentTypeError: If it is no such list.
    """
    parts = text.split(",")
    if not all(part.isdecimal() and part.isascii() and len(part) < 8 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of ranks like 0,1,2,3")
    return tuple(map(int, parts))
