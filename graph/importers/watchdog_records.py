"""What a watchdog's lines say together, as the records that Flight Recorder dumps become; pure.

    rank 1   timed out in all_reduce #31, last enqueued #31        one unfinished call, issued 31
    rank 0   last enqueued #30                                      none, issued 30: it has not called #31
    rank 2   no line                                                no record

A log may hold several launches, and the lines of one rank several times: a line that comes later than the timeout after
what is known of its rank begins anew. Members of a group are the ranks that the log shows in it; of the default group
all up to the largest rank that it names.
"""

from __future__ import annotations

import calendar
import datetime as dt
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from rootwalk.graph.hangs.flight_records import Frontier, PendingCall, RankRecord
from rootwalk.graph.hangs.flight_store import FROM_LOG
from rootwalk.graph.importers.watchdog_lines import Line

__all__ = ["WatchdogLog", "WatchdogState"]

# Name and description that PyTorch gives the group of all ranks.
DEFAULT_GROUP: Final = "0"
DEFAULT_NAME: Final = "default_pg"
# PyTorch's own for NCCL since 2.1; before that half an hour, which its lines say.
DEFAULT_TIMEOUT_MS: Final = 600_000
# More than any job has.
MAX_RANKS: Final = 1 << 20
# Frames of a stack that are kept, as of a dump.
MAX_FRAMES: Final = 16
# Clocks of collectors and hosts differ, and a log is written after what it says.
_SLACK_S: Final = 86_400.0
_NS: Final = 1_000_000_000
# Operations in PyTorch's spelling of work, and in that of dumps.
_OPERATIONS: Final = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allreduce_sparse": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_base": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "reduce": "reduce",
    "_reduce_oop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
# Operations between two ranks, or of which the lines do not say what they are: their other members are not known.
UNNAMED_PEERS: Final = "point_to_point"
_EQUAL_INPUTS: Final = frozenset(
    ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather")
)


@dataclass(slots=True)
class _Call:
    """A collective of one rank that timed out."""

    sequence: int
    operation: str
    elements: int | None
    timeout_ms: int
    since_ns: int
    group: str | None = None


@dataclass(slots=True)
class WatchdogState:
    """What is known of one rank in one launch."""

    last_ns: int = 0
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    calls: dict[int, _Call] = field(default_factory=dict)
    # By group: its name, number of the last collective issued.
    names: dict[str, str] = field(default_factory=dict)
    issued: dict[str, int] = field(default_factory=dict)
    frames: list[str] = field(default_factory=list)
    is_ambiguous: bool = False


class WatchdogLog:
    """Collects the lines of a job's logs.

    Args:
        written_unix_ns: When the last of its files was written: the year is not in the lines.

    Attributes:
        cut: Lines of the watchdog of which a part is missing.
        lines: Lines of the watchdog.
    """

    def __init__(self, written_unix_ns: int) -> None:
        self.cut = 0
        self.lines = 0
        self._written_ns = written_unix_ns
        self._states: dict[int, WatchdogState] = {}
        self._world = 0
        self._named = 0
        self._stack_of: int | None = None

    def add(self, line: Line, file_rank: int | None = None) -> int | None:
        """Take what a line says; return the rank of the job that it is of.

        Args:
            line: One message.
            file_rank: Whose log it is, by the file's name.
        """
        if line.frame is not None:
            self._add_frame(line)
            return None
        self._stack_of = None
        if line.world_size is not None:
            self._world = max(self._world, min(line.world_size, MAX_RANKS))
            return None
        if line.is_cut:
            self.cut += 1
            return None
        is_about = line.sequence is not None or line.enqueued is not None or line.is_stack
        rank = next((r for r in (line.rank, file_rank, line.place) if r is not None), None)
        if not is_about or rank is None or rank >= MAX_RANKS:
            return None
        self.lines += 1
        self._named = max(self._named, rank + 1, (line.other_rank or 0) + 1)
        time_ns = self._time_ns(line)
        state = self._state(rank, time_ns)
        if line.is_stack:
            self._stack_of, state.frames = rank, []
        if line.operation is not None and line.sequence is not None:
            self._add_timeout(
                state,
                line,
                line.sequence,
                time_ns,
                is_sure=line.rank is not None or file_rank is not None,
            )
        self._add_status(state, line)
        return rank

    def records(self) -> dict[int, RankRecord]:
        """Return the records of the ranks that the log tells of, ambiguous ones left out."""
        states = {r: state for r, state in self._states.items() if not state.is_ambiguous}
        members: dict[str, set[int]] = defaultdict(set)
        for rank, state in states.items():
            for group in (*state.issued, *(_group(call) for call in state.calls.values())):
                members[group].add(rank)
        members[DEFAULT_GROUP] = set(range(self.world_size))
        return {
            rank: _record(rank, state, members, is_whole=self._world > 0)
            for rank, state in sorted(states.items())
        }

    @property
    def world_size(self) -> int:
        """Ranks of the job, as far as the log names them."""
        return max(self._world, self._named)

    @property
    def is_world_known(self) -> bool:
        """Whether a line says how many ranks there are."""
        return self._world > 0

    @property
    def ambiguous(self) -> int:
        """How many ranks several processes name as theirs."""
        return sum(state.is_ambiguous for state in self._states.values())

    @property
    def messages(self) -> int:
        """How many timed out calls do not say which rank is at their other end."""
        return sum(
            call.operation == UNNAMED_PEERS
            for state in self._states.values()
            for call in state.calls.values()
        )

    def _state(self, rank: int, time_ns: int) -> WatchdogState:
        state = self._states.get(rank)
        if state is None or time_ns > state.last_ns + state.timeout_ms * 1_000_000:
            state = self._states[rank] = WatchdogState()
        state.last_ns = max(state.last_ns, time_ns)
        return state

    def _add_timeout(
        self, state: WatchdogState, line: Line, sequence: int, time_ns: int, *, is_sure: bool
    ) -> None:
        known = state.calls.get(sequence)
        operation = _OPERATIONS.get((line.operation or "").lower(), UNNAMED_PEERS)
        elements = line.elements_in if operation in _EQUAL_INPUTS else None
        if operation == "scatter":
            elements = line.elements_out
        if known is not None:
            state.is_ambiguous |= not is_sure and (known.operation, known.elements) != (
                operation,
                elements,
            )
            return
        # Without the rank of the job, ranks of several groups go by the same name.
        state.is_ambiguous |= not is_sure and bool(state.calls)
        timeout_ms = line.timeout_ms or DEFAULT_TIMEOUT_MS
        state.timeout_ms = max(state.timeout_ms, timeout_ms)
        since_ns = time_ns - (line.ran_ms or timeout_ms) * 1_000_000
        state.calls[sequence] = _Call(sequence, operation, elements, timeout_ms, since_ns)

    def _add_status(self, state: WatchdogState, line: Line) -> None:
        if line.group is None:
            return
        is_default = line.group_name == DEFAULT_NAME
        group = DEFAULT_GROUP if is_default else line.group
        state.names.setdefault(
            group, line.group_name or ("" if group != DEFAULT_GROUP else DEFAULT_NAME)
        )
        if line.enqueued is not None:
            # -1: nothing yet.
            state.issued[group] = max(state.issued.get(group, 0), line.enqueued, 0)
        call = state.calls.get(line.sequence) if line.sequence is not None else None
        if call is not None and call.group is None:
            call.group = group

    def _add_frame(self, line: Line) -> None:
        rank = line.rank if line.rank is not None else self._stack_of
        if rank is None or rank not in self._states or line.frame is None:
            return
        frames = self._states[rank].frames
        if line.frame.number == len(frames) < MAX_FRAMES:
            frames.append(line.frame.text)

    def _time_ns(self, line: Line) -> int:
        """Return when a line was written: PyTorch's own clock, with the year of the collector's or of the file."""
        written = dt.datetime.fromtimestamp(self._written_ns / _NS, dt.UTC)
        if line.clock is not None:
            month, day, hour, minute, second = line.clock
            year = line.stamp[0] if line.stamp is not None else written.year
            found = _to_ns(year, month, day, hour, minute, second)
            if line.stamp is None and found is not None:
                is_later = found > self._written_ns + _SLACK_S * _NS
                found = _to_ns(year - 1, month, day, hour, minute, second) if is_later else found
        else:
            found = _to_ns(*line.stamp) if line.stamp is not None else None
        return self._written_ns if found is None else found


def _to_ns(year: int, month: int, day: int, hour: int, minute: int, second: float) -> int | None:
    try:
        date = dt.datetime(year, month, day, hour, minute, tzinfo=dt.UTC)
    except ValueError:
        return None
    return calendar.timegm(date.timetuple()) * _NS + round(second * _NS)


def _group(call: _Call) -> str:
    """Return the group of a call; the default group where no line names one."""
    return DEFAULT_GROUP if call.group is None else call.group


def _record(
    rank: int, state: WatchdogState, members: dict[str, set[int]], *, is_whole: bool
) -> RankRecord:
    pending, frontiers = [], []
    issued = dict(state.issued)
    names = {DEFAULT_GROUP: DEFAULT_NAME} | state.names
    for order, call in enumerate(
        sorted(state.calls.values(), key=lambda c: (c.since_ns, c.sequence))
    ):
        group = _group(call)
        if call.operation == UNNAMED_PEERS:
            # Of nobody else it is known that it takes part.
            own = f"{group} of rank {rank}"
            names[own] = f"{names.get(group) or group} (peer unnamed)"
            group = own
            members = {**members, group: {rank}}
        issued[group] = max(issued.get(group, 0), call.sequence)
        pending.append(
            PendingCall(
                order=order,
                communicator=group,
                sequence=call.sequence,
                operation=call.operation,
                peer=None,
                elements=call.elements,
                dtype="",
                is_started=False,
                created_unix_ns=call.since_ns,
                frames=tuple(state.frames) if order == 0 else (),
            )
        )
    for group, number in sorted(issued.items()):
        name = names.get(group, "")
        whole = is_whole and group == DEFAULT_GROUP
        frontiers.append(
            Frontier(group, name, tuple(sorted(members[group] | {rank})), number, is_whole=whole)
        )
    return RankRecord(
        rank=rank,
        version=FROM_LOG,
        library="",
        frontiers=tuple(frontiers),
        pending=tuple(pending),
        last_frames=tuple(state.frames),
        seen_unix_ns=max((call.created_unix_ns for call in pending), default=None),
        timeout_ns=max((call.timeout_ms for call in state.calls.values()), default=0) * 1_000_000
        or None,
    )
