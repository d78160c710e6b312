"""Collectives of NCCL as the agent sees them called, as spans of ranks whose own hooks do not record them.

    rank's own hooks   |-- step 7 --|-- step 8 --|         a step, and no collective of NCCL in it
    agent                 #41 #42      #43 #44             called in them: told when two such steps are over

A rank whose hooks have recorded one collective of NCCL records all: then the agent tells none of it, or each would be
there twice. Two steps, because the hooks keep the collectives of one step in many back, and record those of the next at
once.

A span ends when the call returned. It links to the collective's own span context as the hooks' do, and its parent is
the phase, else the step, in which it was called; both are known when that step is closed, so calls wait until then.
What cannot wait any longer is dropped and counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from rootwalk.ebpf.reader import CollectiveCall
from rootwalk.instrumentation import ids, semconv
from rootwalk.instrumentation.shared_ring import Record, RecordFlag, RecordKind
from rootwalk.instrumentation.step_spans import Parent, SpanBuilder, key_value

__all__ = ["NcclSpans"]

BACKEND = "nccl"
# Steps with calls and without a record of one, after which the hooks are known to record none.
SILENT_STEPS = 2
# At 5 steps a second and 20 calls a step: 40 s of steps that do not close.
MAX_WAITING = 4096
# Of one step: a job that calls more is known by these.
MAX_PER_STEP = 1024


class NcclSpans:
    """Collects one rank's calls until the step that they fall in is closed.

    Args:
        builder: The rank's spans; tells the parents.

    Attributes:
        dropped: Calls that could not wait for their step, or that were too many in it.
    """

    def __init__(self, builder: SpanBuilder) -> None:
        self._builder = builder
        self._waiting: deque[CollectiveCall] = deque()
        self._told: Counter[int] = Counter()
        self._silent_steps = 0
        self._is_recorded = False
        self.dropped = 0

    def note(self, records: Iterable[Record]) -> None:
        """Learn from what the rank's own hooks have recorded."""
        if not self._is_recorded and any(_is_of_nccl(record) for record in records):
            self._is_recorded = True
            self._waiting.clear()

    def add(self, call: CollectiveCall) -> None:
        """Take one call."""
        if self._is_recorded:
            return
        self._waiting.append(call)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1

    def spans(self) -> list[bytes]:
        """Return the calls whose step is closed as OTLP bytes, and forget them."""
        closed_until = self._builder.closed_until_mono_ns()
        closed: list[tuple[CollectiveCall, Parent]] = []
        later: deque[CollectiveCall] = deque()
        for call in self._waiting:
            if call.start_ns >= closed_until:
                later.append(call)
                continue
            parent = self._builder.parent_of(call.start_ns)
            if parent is not None:  # None before the first step, or between two runs of the loop
                closed.append((call, parent))
        if self._silent_steps < SILENT_STEPS:
            self._silent_steps = len({parent.step for _, parent in closed})
            if self._silent_steps < SILENT_STEPS:
                return []
        self._waiting = later
        return [self._span(call, parent) for call, parent in closed if self._is_told(parent.step)]

    def _is_told(self, step: int) -> bool:
        """Return whether one more call of a step is told."""
        self._told[step] += 1
        if len(self._told) > SILENT_STEPS:
            del self._told[min(self._told)]
        is_told = self._told[step] <= MAX_PER_STEP
        self.dropped += not is_told
        return is_told

    def _span(self, call: CollectiveCall, parent: Parent) -> bytes:
        who = self._builder.identity
        key = (call.communicator, call.sequence)
        attributes = [
            key_value(semconv.TRAINING_STEP_NUMBER, parent.step),
            key_value(semconv.COLLECTIVE_OPERATION, call.operation),
            key_value(semconv.COLLECTIVE_COMMUNICATOR_ID, call.communicator),
            key_value(semconv.COLLECTIVE_SEQUENCE, call.sequence),
            key_value(semconv.COLLECTIVE_BACKEND, BACKEND),
            key_value(semconv.COLLECTIVE_IS_POINT_TO_POINT, call.is_p2p),
            key_value(semconv.COLLECTIVE_IS_END_KNOWN, False),
        ]
        known = {
            semconv.COLLECTIVE_COMMUNICATOR_SIZE: call.members,
            semconv.COLLECTIVE_SIZE: call.size_bytes,
            semconv.COLLECTIVE_DATA_TYPE: call.data_type,
            semconv.TRAINING_PHASE: parent.phase,
        }
        attributes += [key_value(name, value) for name, value in known.items() if value is not None]
        return self._builder.span(
            f"collective.{call.operation}",
            parent.step,
            ids.collective_id(who.job, who.attempt, who.rank, *key, is_p2p=call.is_p2p),
            parent.span_id,
            (call.start_ns, call.end_ns),
            attributes,
            ids.collective_shared_id(who.job, who.attempt, *key, is_p2p=call.is_p2p),
        )


def _is_of_nccl(record: Record) -> bool:
    """Return whether a record is of a collective on devices, by its group's backend, or as its end is not known."""
    if record.kind is not RecordKind.COLLECTIVE:
        return False
    backend = (record.communicator.split("|", 3) + [""] * 4)[2]
    return BACKEND in backend or bool(record.flags & RecordFlag.END_UNKNOWN)
