"""Read what some ranks spent in which stacks, from the profiles of a store: a few of them, whatever it has.

    steps of a part   |-------|-------|-------|
    profiles     |--------|xxxxxxxx|--------|        x: in steps 0 and 1 of the part

A sample that links to a span belongs to the step of its trace. Any other one belongs to the part by as much as its
profile's time does. Seconds a step are seconds over the steps that the profiles cover. Waits are those of the training
thread, where samples tell whose they are: what others wait for, such as a loader worker for work, delays nobody.
Of a rank without profiles of its own, those that have samples of its process are read (`processes`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np

from rootwalk.graph.columns import FloatArray, IntArray
from rootwalk.graph.profiles.difference import StackTimes
from rootwalk.graph.profiles.frames import FrameNumbers, Stack, read_stacks
from rootwalk.graph.profiles.processes import PID_OF_SAMPLE, THREAD_OF_SAMPLE
from rootwalk.instrumentation import semconv

__all__ = ["Part", "TimeKind", "has_profiles", "profiled_ranks", "read_times", "time_meaning"]

NS: Final = 1_000_000_000
# Times whose profiles are read of a rank and part, at even distances, and samples of all of them together.
MAX_PROFILES: Final = 64
MAX_SAMPLES: Final = 400_000
# Different stacks that are kept of a rank; the seconds of others go into one.
MAX_STACKS: Final = 20_000
ROWS_AT_ONCE: Final = 10_000
# A part of which the profiles cover less than this many steps is not known.
MIN_STEPS: Final = 0.5
# How long a profile can have begun before a part that it reaches into.
MAX_PROFILE_NS: Final = 600 * NS

_NS_BY_UNIT: Final = {
    "nanoseconds": 1,
    "ns": 1,
    "microseconds": 1_000,
    "us": 1_000,
    "milliseconds": 1_000_000,
    "ms": 1_000_000,
    "seconds": NS,
    "s": NS,
}
_OFF_CPU: Final = frozenset({"offcpu"})
_ROLE_PATH: Final = f'$."{semconv.TRAINING_THREAD_ROLE}"'
_OF_OTHERS: Final = frozenset(
    role.value for role in semconv.TrainingThreadRole if role is not semconv.TrainingThreadRole.MAIN
)
_ON_CPU: Final = frozenset({"cpu", "oncpu"})
_COUNTS: Final = frozenset({"samples", "sample", "cpu", "oncpu", "events"})


_KEY: Final = "received_unix_ns, dictionary_id, profile_index"
_COLUMNS: Final = f"{_KEY}, unix_ns, duration_ns, sample_type, unit, period_type, period_unit, period, sample_count"
_WITHIN: Final = (
    " AND unix_ns BETWEEN ? AND ? AND duration_ns > greatest(? - unix_ns, 0) ORDER BY unix_ns, "
    + _KEY
)


class TimeKind(StrEnum):
    """Whether a thread ran or not."""

    ON_CPU = "on_cpu"
    OFF_CPU = "off_cpu"


@dataclass(frozen=True, slots=True)
class Part:
    """The steps of one rank that are asked for, by its host's clock, Unix ns, ascending.

    `step_by_trace` has those of the job's traces that are one step's; others tell no step.
    """

    rank: int
    numbers: frozenset[int]
    start_ns: IntArray
    end_ns: IntArray
    step_by_trace: Mapping[str, int] = field(default_factory=dict)


class _Profile(NamedTuple):
    """A profile of one rank: its key, its time, what its values count and how many ns one of them is.

    `pid` is the process whose samples are the rank's; None where all are.
    """

    key: tuple[int, str, int]
    start_ns: int
    end_ns: int
    kind: TimeKind
    scale_ns: float
    period_ns: float
    sample_count: int
    pid: int | None


class _Use(NamedTuple):
    """What one profile is to a part: where its times go, how much of it lies in the part, and what one value is."""

    times: StackTimes
    kind: TimeKind
    part: Part
    ratio: float
    scale_ns: float
    pid: int | None


def has_profiles(connection: Any) -> bool:
    """Return whether the store has any profile at all."""
    return connection.execute("SELECT 1 FROM profile_records LIMIT 1").fetchone() is not None


def profiled_ranks(connection: Any, job: str, attempt: int, span_ns: tuple[int, int]) -> list[int]:
    """Return the ranks with a profile that began in a time, ascending; `process_profiles` has been made for it."""
    rows = connection.execute(
        "SELECT DISTINCT rank FROM profile_records WHERE job = ? AND coalesce(attempt, ?) = ? AND rank IS NOT NULL"
        " AND unix_ns BETWEEN ? AND ? UNION SELECT rank FROM process_profiles ORDER BY rank",
        [job, attempt, attempt, span_ns[0] - MAX_PROFILE_NS, span_ns[1]],
    ).fetchall()
    return [int(rank) for (rank,) in rows]


def read_times(
    connection: Any, job: str, attempt: int, parts: Sequence[Part], numbers: FrameNumbers
) -> list[dict[TimeKind, StackTimes]]:
    """Return for each part what its rank spent in which stacks, a step, by kind; kinds that are not known are left out.

    Args:
        connection: To the store.
        job: Its name.
        attempt: Of the job; profiles that tell none are of every one.
        parts: Ranks with their steps.
        numbers: What frames are numbered by.
    """
    uses: dict[tuple[int, str, int], list[_Use]] = {}
    result: list[dict[TimeKind, StackTimes]] = []
    for part in parts:
        found = _read_profiles(connection, job, attempt, part)
        of_part: dict[TimeKind, StackTimes] = {}
        # A rank that was sampled, and had nothing of a kind for a while, sends no profile of that kind.
        kept = _thinned(found)
        steps = _covered_steps(part, _union((p.start_ns, p.end_ns) for p in kept))
        for kind in TimeKind:
            chosen = [profile for profile in kept if profile.kind is kind]
            if not chosen or steps < MIN_STEPS:
                continue
            period_ns = max(profile.period_ns for profile in chosen)
            times = of_part[kind] = StackTimes(steps=steps, period_s=period_ns / NS)
            for profile in chosen:
                overlap = float(_overlap_ns(part, profile.start_ns, profile.end_ns).sum())
                ratio = overlap / (profile.end_ns - profile.start_ns)
                use = _Use(times, kind, part, ratio, profile.scale_ns, profile.pid)
                uses.setdefault(profile.key, []).append(use)
        result.append(of_part)
    _add_samples(connection, uses, numbers)
    for of_part in result:
        for kind, times in of_part.items():
            other = of_part.get(TimeKind.OFF_CPU if kind is TimeKind.ON_CPU else TimeKind.ON_CPU)
            times.elsewhere = {} if other is None else other.seconds
    return result


def _read_profiles(connection: Any, job: str, attempt: int, part: Part) -> list[_Profile]:
    """Return the profiles of a part's rank that reach into it and count time, by their beginning."""
    if not part.numbers:
        return []
    begin, end = int(part.start_ns[0]), int(part.end_ns[-1])
    span = [begin - MAX_PROFILE_NS, end, begin]
    rows = connection.execute(
        f"SELECT {_COLUMNS}, NULL FROM profile_records"  # noqa: S608
        f" WHERE job = ? AND coalesce(attempt, ?) = ? AND rank = ?{_WITHIN}",
        [job, attempt, attempt, part.rank, *span],
    ).fetchall()
    if not rows:
        others = "(SELECT * FROM process_profiles WHERE rank = ?) o"
        rows = connection.execute(
            f"SELECT {_COLUMNS}, o.pid FROM profile_records p JOIN {others}"  # noqa: S608
            f" USING ({_KEY}) WHERE true{_WITHIN}",
            [part.rank, *span],
        ).fetchall()
    found = []
    for row in rows:
        meaning = time_meaning(*row[5:10])
        if meaning is not None:
            kind, scale_ns, period_ns = meaning
            times = (int(row[3]), int(row[3]) + int(row[4]))
            key = (int(row[0]), str(row[1]), int(row[2]))
            found.append(_Profile(key, *times, kind, scale_ns, period_ns, int(row[10]), row[11]))
    return found


def time_meaning(
    sample_type: str | None,
    unit: str | None,
    period_type: str | None,
    period_unit: str | None,
    period: int | None,
) -> tuple[TimeKind, float, float] | None:
    """Return which time a profile counts, how many ns one of its values is, and how many lie between two samples."""
    kind, unit = _plain(sample_type), (unit or "").lower()
    period_ns = float(max(period or 0, 0) * _NS_BY_UNIT.get((period_unit or "").lower(), 0))
    if unit in _NS_BY_UNIT:
        scale = float(_NS_BY_UNIT[unit])
        if kind in _OFF_CPU or _plain(period_type) in _OFF_CPU:
            return TimeKind.OFF_CPU, scale, 0.0
        return (TimeKind.ON_CPU, scale, period_ns) if kind in _ON_CPU else None
    if unit == "count" and kind in _COUNTS and _plain(period_type) in _ON_CPU and period_ns > 0.0:
        return TimeKind.ON_CPU, period_ns, period_ns
    return None


def _plain(name: str | None) -> str:
    return (name or "").lower().replace("_", "").replace("-", "")


def _thinned(profiles: list[_Profile]) -> list[_Profile]:
    """Return some profiles at even distances; neighbours of one time stay together."""
    starts = sorted({profile.start_ns for profile in profiles})
    if len(starts) > MAX_PROFILES:
        places = np.linspace(0, len(starts) - 1, MAX_PROFILES).round().astype(int)
        starts = [starts[int(place)] for place in places]
    kept = set(starts)
    chosen = [profile for profile in profiles if profile.start_ns in kept]
    while sum(profile.sample_count for profile in chosen) > MAX_SAMPLES and len(kept) > 1:
        kept = set(sorted(kept)[::2])
        chosen = [profile for profile in chosen if profile.start_ns in kept]
    return chosen


def _union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return times that do not overlap: processes of one rank are sampled at once."""
    result: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def _overlap_ns(part: Part, begin: int, end: int) -> FloatArray:
    """Return how long a time lies in each step of a part."""
    inner = np.minimum(part.end_ns, end) - np.maximum(part.start_ns, begin)
    result: FloatArray = np.maximum(inner, 0).astype(np.float64)
    return result


def _covered_steps(part: Part, spans: Sequence[tuple[int, int]]) -> float:
    length = np.maximum(part.end_ns - part.start_ns, 1).astype(np.float64)
    return float(sum((_overlap_ns(part, *span) / length).sum() for span in spans))


def _add_samples(
    connection: Any, uses: Mapping[tuple[int, str, int], Sequence[_Use]], numbers: FrameNumbers
) -> None:
    """Add the samples of the chosen profiles to the times that they belong to, a dictionary at a time."""
    if not uses:
        return
    keys = sorted(uses, key=lambda key: (key[1], key[0], key[2]))
    cursor = connection.cursor()
    cursor.execute(
        "SELECT s.dictionary_id, s.received_unix_ns, s.profile_index, s.stack_index, s.trace_id,"  # noqa: S608
        f" coalesce(s.attributes ->> ?, '') AS role, {PID_OF_SAMPLE} AS pid, {THREAD_OF_SAMPLE} = pid AS is_main,"
        " sum(CASE WHEN len(s.sample_values) = 0 THEN len(s.times_unix_ns) ELSE list_sum(s.sample_values) END)::DOUBLE"
        " FROM profile_sample_records s JOIN (SELECT unnest(?::BIGINT[]) AS received_unix_ns,"
        " unnest(?::VARCHAR[]) AS dictionary_id, unnest(?::BIGINT[]) AS profile_index) k"
        " USING (received_unix_ns, dictionary_id, profile_index) GROUP BY ALL ORDER BY ALL",
        [_ROLE_PATH, *([key[n] for key in keys] for n in range(3))],
    )
    dictionary_id, rows = "", list[Any]()
    while fetched := cursor.fetchmany(ROWS_AT_ONCE):
        for row in fetched:
            if row[0] != dictionary_id and rows:
                _add_rows(connection, dictionary_id, rows, uses, numbers)
                rows = []
            dictionary_id = row[0]
            rows.append(row)
    if rows:
        _add_rows(connection, dictionary_id, rows, uses, numbers)


def _add_rows(
    connection: Any,
    dictionary_id: str,
    rows: Sequence[Any],
    uses: Mapping[tuple[int, str, int], Sequence[_Use]],
    numbers: FrameNumbers,
) -> None:
    """Add the samples of one dictionary."""
    dictionary = _read_dictionary(connection, dictionary_id)
    stacks = read_stacks(dictionary, sorted({int(row[3]) for row in rows}), numbers)
    for _, received, index, stack_index, trace_id, role, pid, is_main, value in rows:
        if value <= 0:
            continue
        for use in uses[(received, dictionary_id, index)]:
            is_others = role in _OF_OTHERS
            if use.pid is not None:
                if pid != use.pid:
                    continue
                is_others = not is_main
            if use.kind is TimeKind.OFF_CPU and is_others:
                continue
            weight = use.ratio
            step = use.part.step_by_trace.get(trace_id) if trace_id else None
            if step is not None:
                weight = 1.0 if step in use.part.numbers else 0.0
            if weight > 0.0:
                seconds = value * use.scale_ns * weight / NS / use.times.steps
                _add(use.times.seconds, stacks[int(stack_index)], seconds)


def _add(seconds: dict[Stack, float], stack: Stack, value: float) -> None:
    if stack not in seconds and len(seconds) >= MAX_STACKS:
        stack = stack[:1]  # the outermost frame stands for what is not told apart
    seconds[stack] = seconds.get(stack, 0.0) + value


def _read_dictionary(connection: Any, dictionary_id: str) -> Any:
    """Return a dictionary as it was sent; an empty one where retention took it."""
    found = connection.cursor().execute(
        "SELECT data FROM profile_dictionaries WHERE dictionary_id = ? LIMIT 1", [dictionary_id]
    )
    # Where no profiles are, nobody waits for the messages to load.
    from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesDictionary

    dictionary = ProfilesDictionary()
    for (data,) in found.fetchall():
        dictionary.ParseFromString(zlib.decompress(data))
    return dictionary
