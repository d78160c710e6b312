"""One rank's ring on its way to the endpoint: records read, spans built once, the cursor moved when acknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable

from rootwalk.ebpf.discovery import is_process_alive, read_start_ticks
from rootwalk.ebpf.events import SchedEvent
from rootwalk.ebpf.levels import HIGHEST_LEVEL
from rootwalk.ebpf.nccl_spans import NcclSpans
from rootwalk.ebpf.partition import RankPartition
from rootwalk.ebpf.reader import CollectiveCall
from rootwalk.ebpf.stalls import StallCollector
from rootwalk.ebpf.wait_details import WaitDetails
from rootwalk.instrumentation import ids
from rootwalk.instrumentation.export import EncodedSpans, build_resource_spans
from rootwalk.instrumentation.shared_ring import (
    RankException,
    Record,
    RecordKind,
    RingReader,
)
from rootwalk.instrumentation.step_spans import SpanBuilder

__all__ = ["RankStream"]

STEP_SCOPE = "rootwalk.instrumentation"
STALL_SCOPE = "rootwalk.ebpf"
# About 1.5 MB of protobuf; what is more waits in the ring.
MAX_RECORDS = 2048
# An asynchronous collective may be reported some time after its step was closed.
PARTITION_MARGIN_NS = 5_000_000_000


class RankStream:
    """Everything of one rank that is not acknowledged yet.

    Args:
        reader: The rank's ring.
        partition: Where its threads' time went; None when no sensor tells.
        details: Looks up processes that ran in a thread's place.
        waits: Tells what blocked threads waited for.
        level: 0 sends no stalls; may be changed.

    Attributes:
        steps: Steps that were read so far.
    """

    def __init__(
        self,
        reader: RingReader,
        partition: RankPartition | None,
        details: Callable[[int], tuple[str | None, str | None]],
        waits: WaitDetails,
        level: int,
    ) -> None:
        self.identity = reader.identity
        self._reader = reader
        self._start_ticks = reader.start_ticks or read_start_ticks(reader.identity.pid)
        self._builder = SpanBuilder(reader.identity, reader.clock)
        self._partition = partition
        self._stalls: StallCollector | None = None
        if partition is not None:
            self._stalls = StallCollector(self._builder, partition.sensor, details, waits)
        self._nccl = NcclSpans(self._builder)
        self.level = level
        self._asked: int | None = None
        self.steps = 0
        self._has_lock = False
        self._gone_ns: int | None = None
        self._alive_ns: int | None = None
        self._records: list[Record] = []
        self._record_count = 0  # those of `_records` that lie in the ring
        self._step_spans: list[bytes] = []
        self._stall_spans: list[bytes] = []
        self._is_complete = False
        self._has_read_all = False

    @property
    def device(self) -> str | None:
        """The GPU that the rank uses, by its UUID; None where it is not known, or none, or several."""
        return self._builder.device

    @device.setter
    def device(self, device: str | None) -> None:
        self._builder.device = device

    def losses(self) -> dict[str, int]:
        """Return what was lost so far, by `rootwalk.drop.reason`.

        Records that the rank could not write, stalls and calls of NCCL that could not wait for their step.
        """
        return {
            "ring_full": self._reader.dropped,
            "stalls_full": self._stalls.dropped if self._stalls else 0,
            "nccl_calls_full": self._nccl.dropped,
        }

    @property
    def is_alive(self) -> bool:
        """Whether the rank's process runs, and is still the program that wrote the ring."""
        return (
            self._start_ticks is not None
            and not self._reader.is_superseded
            and is_process_alive(self.identity.pid, self._start_ticks)
        )

    @property
    def start_ticks(self) -> int | None:
        """When the rank's process started, clock ticks since boot; None where it was gone already."""
        return self._start_ticks

    @property
    def gone_mono_ns(self) -> int | None:
        """When the rank's process was first seen to be gone, ns; None while it runs, as another program perhaps."""
        return self._gone_ns

    @property
    def alive_mono_ns(self) -> int | None:
        """When the rank's process was last seen to run, ns; None where it never was."""
        return self._alive_ns

    @property
    def closed_mono_ns(self) -> int | None:
        """When the rank has said itself that no record will follow, ns; None where it has not."""
        return self._reader.closed_mono_ns

    @property
    def ring(self) -> RingReader | None:
        """The ring, while this agent reads it and its rank still writes it."""
        is_open = self._has_lock and self._gone_ns is None and not self._is_complete
        return self._reader if is_open and not self._reader.is_superseded else None

    def take_exception(self) -> RankException | None:
        """Return the exception that ends the rank's program, once; None for none."""
        exception = self._reader.exception() if self._has_lock else None
        if exception is None or exception.is_sent:
            return None
        self._reader.mark_exception_sent()
        return exception

    @property
    def broken(self) -> str | None:
        """What was seen in the ring that no rank writes; None for nothing."""
        return self._reader.broken

    @property
    def is_finished(self) -> bool:
        """Whether the process is gone and everything that it told is acknowledged."""
        return self._is_complete

    def read(self) -> None:
        """Take the next records, before the scheduler is read: then what it tells covers them."""
        if not self._has_lock:
            self._has_lock = self._reader.try_lock()
            if not self._has_lock:
                return
        self._reader.heartbeat()
        self._has_read_all = False
        is_alive = self.is_alive
        if is_alive:
            self._alive_ns = time.monotonic_ns()
        elif self._gone_ns is None and not self._reader.is_superseded:
            # One that was gone before this agent came has ended after the last that it wrote.
            last_ns = self._reader.moved_mono_ns() if self._start_ticks is None else 0
            self._gone_ns = last_ns or time.monotonic_ns()
        if self._records or self._step_spans or self._stall_spans:
            return  # the last ones are not acknowledged
        self._records = self._reader.read(MAX_RECORDS)
        self._record_count = len(self._records)
        self._nccl.note(self._records)
        self.steps += sum(record.kind is RecordKind.STEP for record in self._records)
        self._has_read_all = self._record_count < MAX_RECORDS
        if not is_alive and not self._records:
            self._records = self._reader.final_records()
            self._is_complete = not self._records

    def take(self, event: SchedEvent) -> None:
        """Remember a stall of one of the rank's threads."""
        if self._stalls is not None and self.level > 0:
            self._stalls.add(event)

    def take_call(self, call: CollectiveCall) -> None:
        """Remember a call of NCCL; such are told one by one at the highest level."""
        if self.level == HIGHEST_LEVEL:
            self._nccl.add(call)

    def ask_rank(self, level: int | None) -> None:
        """Ask the rank's own hooks for another level; None for what they were started with."""
        if level != self._asked and self._has_lock:
            self._reader.ask_level(level)
            self._asked = level

    def ask_trace(self, steps: int) -> bool:
        """Ask the rank to trace its next steps with PyTorch's profiler; return whether it can be asked."""
        if self._has_lock:
            self._reader.ask_trace(steps)
        return self._has_lock

    def limit_stalls(self, per_step: int | None) -> None:
        """Tell only so many waits for a CPU, and so many other stalls, of each step; None for all."""
        if self._stalls is not None:
            self._stalls.max_per_step = per_step

    def end_thread(self, tid: int) -> None:
        """Remember that a thread has ended."""
        if self._stalls is not None:
            self._stalls.end_thread(tid)

    def batch(self) -> EncodedSpans | None:
        """Return what is to be sent now; the same again until it is acknowledged. None when there is nothing."""
        if not self._step_spans and not self._stall_spans:
            self._step_spans = self._builder.spans(self._records, self._partition)
            self._stall_spans = self._stalls.spans() if self._stalls is not None else []
            self._stall_spans += self._nccl.spans()
        if not self._step_spans and not self._stall_spans:
            return None
        return build_resource_spans(
            self.identity.resource_attributes(),
            {STEP_SCOPE: self._step_spans, STALL_SCOPE: self._stall_spans},
        )

    def context_of(self, mono_ns: int) -> tuple[bytes, bytes] | None:
        """Return trace and span id of the phase or step that a moment before the last `read` falls in.

        Of a step that goes on, the ids are known before its record is; None where it cannot be told which step it is.
        """
        who = self.identity
        parent = self._builder.parent_of(mono_ns)
        if parent is not None:
            return ids.trace_id(who.job, who.attempt, parent.step), parent.span_id
        step = self._builder.open_step(mono_ns)
        if step is None or not self._has_read_all or not self.is_alive:
            return None
        span_id = ids.rank_step_id(who.job, who.attempt, step, who.rank)
        return ids.trace_id(who.job, who.attempt, step), span_id

    def phase_of(self, mono_ns: int) -> str | None:
        """Return the phase that a moment falls in; None between phases, and while its step is not closed."""
        parent = self._builder.parent_of(mono_ns)
        return parent.phase if parent is not None else None

    def collective_of(self, mono_ns: int) -> str | None:
        """Return the operation of a collective that was under way at a moment; None while it is not over."""
        return self._builder.collective_of(mono_ns)

    def acknowledge(self) -> None:
        """Move on: what `batch` returned is durable at the other end."""
        if self._records:
            self._reader.advance(self._record_count)
            if not self._record_count:  # these came from the header, after the last record
                self._is_complete = True
        self._records, self._record_count = [], 0
        self._step_spans, self._stall_spans = [], []
        if self._partition is not None:
            self._partition.forget_before(
                self._builder.closed_until_mono_ns() - PARTITION_MARGIN_NS
            )

    def abandon(self) -> None:
        """Remove the ring although its rank may go on writing: nobody will read it."""
        if self._has_lock:
            self._reader.unlink()

    def close(self) -> None:
        """Release the ring; remove it when its rank is gone and nothing is left in it."""
        if self._is_complete and self._has_lock:
            self._reader.unlink()
        self._reader.close()
