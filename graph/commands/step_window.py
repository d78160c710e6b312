"""Options that choose the steps to explain: by number (`--steps`), or by time (`--since`, `--until`).

2026-11-29T10:40   2026-11-29 10:40:05+01:00   that moment, in UTC where no zone is named
10:40              10:40:05                    that time of the day of the job's last step, UTC
15m                90s                         so long before the end of the job's last step
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rootwalk.graph.commands.units import parse_seconds, parse_steps
from rootwalk.instrumentation.errors import ConfigError

__all__ = ["Moment", "add_window_arguments", "find_steps", "parse_moment"]

NS_PER_S: Final = 1_000_000_000
_DURATION: Final = re.compile(r"[0-9]+(\.[0-9]+)?(ms|s|m|h|d)")
_CLOCK: Final = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?")
_EXTENT: Final = """
SELECT min(start_unix_ns), max(end_unix_ns) FROM steps WHERE job = ? AND coalesce(attempt, 0) = ?
"""
_WITHIN: Final = """
SELECT min(step), max(step) FROM steps
WHERE job = ? AND coalesce(attempt, 0) = ? AND end_unix_ns > ? AND start_unix_ns < ?
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment as somebody wrote it; one of the three is there.

    Attributes:
        unix_ns: Since 1970.
        clock: Time of the day, UTC.
        ago_s: Seconds before the end of the job's last step.
    """

    unix_ns: int | None = None
    clock: dt.time | None = None
    ago_s: float | None = None

    def at(self, last_ns: int) -> int:
        """Return when it is, Unix ns, in a job whose last step ended then."""
        if self.unix_ns is not None:
            return self.unix_ns
        if self.clock is not None:
            day = dt.datetime.fromtimestamp(last_ns // NS_PER_S, dt.UTC).date()
            return _unix_ns(dt.datetime.combine(day, self.clock, dt.UTC))
        return last_ns - round((self.ago_s or 0.0) * NS_PER_S)


def _unix_ns(moment: dt.datetime) -> int:
    since = moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (since // dt.timedelta(microseconds=1)) * 1000


def parse_moment(text: str) -> Moment:
    """Return a moment.

    Raises:
        argparse.ArgumentTypeError: If it is not of a form that the head of this module shows.
    """
    try:
        if _DURATION.fullmatch(text):
            return Moment(ago_s=parse_seconds(text, "a time"))
        if _CLOCK.fullmatch(text):
            return Moment(clock=dt.time.fromisoformat(text.zfill(5) if text[1] == ":" else text))
        found = dt.datetime.fromisoformat(text)
        return Moment(unix_ns=_unix_ns(found if found.tzinfo else found.replace(tzinfo=dt.UTC)))
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(
            f'saw "{text}"; needs a time such as 2026-11-29T10:40, 10:40 (UTC), or 15m before the last step'
        ) from error


def add_window_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `--steps`, `--since` and `--until`.

    Args:
        parser: Of the command.
        default: What is explained without them.
    """
    parser.add_argument(
        "--steps",
        type=parse_steps,
        metavar="A:B",
        help=f"first and last step to explain (default: {default})",
    )
    parser.add_argument(
        "--since",
        type=parse_moment,
        metavar="TIME",
        help="explain the steps from this time on: 2026-11-29T10:40, 10:40 (UTC), or 15m before the last step",
    )
    parser.add_argument(
        "--until", type=parse_moment, metavar="TIME", help="and up to this time (default: the end)"
    )


def find_steps(store_path: Path, arguments: argparse.Namespace) -> tuple[int, int] | None:
    """Return the first and last step that the options ask for; None for what is usual.

    Args:
        store_path: The store.
        arguments: With `job`, `steps`, `since` and `until`.

    Raises:
        ConfigError: If steps are named twice, or no step lies in the time.
        StoreError: If the file cannot be read.
    """
    since: Moment | None = arguments.since
    until: Moment | None = arguments.until
    steps: tuple[int, int] | None = arguments.steps
    if since is None and until is None:
        return steps
    if steps is not None:
        raise ConfigError("cannot choose steps: saw --steps beside --since or --until; needs one")
    from rootwalk.otel_receiver.store import reading

    with reading(store_path) as connection:
        return _steps_within(connection, arguments.job, since, until)


def _steps_within(
    connection: Any, job: str | None, since: Moment | None, until: Moment | None
) -> tuple[int, int]:
    from rootwalk.graph.job_choice import choose_job

    key = choose_job(connection, job)
    chosen = [key.job, key.attempt] if key is not None else ["", 0]
    first_ns, last_ns = connection.execute(_EXTENT, chosen).fetchone()
    if last_ns is None:
        raise ConfigError("cannot choose steps by time: saw no step in the store; needs some")
    begin_ns = first_ns if since is None else since.at(last_ns)
    end_ns = last_ns + 1 if until is None else until.at(last_ns)
    first, last = connection.execute(_WITHIN, [*chosen, begin_ns, end_ns]).fetchone()
    if first is None or begin_ns >= end_ns:
        raise ConfigError(
            f"cannot choose steps by time: saw none from {_words(begin_ns)} to {_words(end_ns)};"
            f" needs a part of {_words(first_ns)} to {_words(last_ns)}"
        )
    return int(first), int(last)


def _words(unix_ns: int) -> str:
    try:
        return f"{dt.datetime.fromtimestamp(unix_ns // NS_PER_S, dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{unix_ns} ns"
