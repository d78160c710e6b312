"""Steps and phases of one rank, as its own calls tell them; `communicator` has its collectives.

    data_load   forward   backward          optimizer | data_load ...
    |---------|---------|--[#7]--[#8]-----|---------| |
    ^ step k begins where step k-1's update ended      ^ step k ends with its last update

Steps tile a rank's time. A step is written when the next thing begins, because only then is it known that no further
optimiser follows in it. Knows the ring and the clock; must not know torch. Nothing here is thread-safe beyond the
interpreter lock: phases come from one thread, collectives may come from several.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from rootwalk.instrumentation.device_marks import Mark, PhaseMarks
from rootwalk.instrumentation.gc_watch import GcWatch
from rootwalk.instrumentation.shared_ring import (
    NO_PHASE,
    LiveState,
    RecordFlag,
    RecordKind,
    RingWriter,
    Stage,
)
from rootwalk.instrumentation.timed_collectives import TimedCollectives

__all__ = ["StepTracker"]

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
EVALUATION = "evaluation"


class StepTracker:
    """Turns hook calls into ring records.

    Args:
        ring: Where records go.
        now: The monotonic clock, ns.
        watch: Where garbage collections are counted; None where nobody does.
    """

    def __init__(
        self,
        ring: RingWriter,
        now: Callable[[], int] = time.monotonic_ns,
        watch: GcWatch | None = None,
    ) -> None:
        self.ring = ring
        self.now = now
        self._watch = GcWatch(now) if watch is None else watch
        self._step = 0
        self._step_start = 0
        self._step_start_gc = 0
        self._pending_end = 0
        self._pending_end_gc = 0
        self._next_index = 0
        self._phase = ""
        self._phase_start = 0
        self._phase_start_gc = 0
        self._phase_index = NO_PHASE
        self._phase_string = 0
        self._last_phase_end = 0
        self._last_phase_end_gc = 0
        self._has_forward = False
        self._has_update = False
        self._probe_ns: int | None = None
        self._thread = 0
        self._is_training = False
        self._marks: PhaseMarks | None = None
        self._phase_mark: Mark | None = None
        self._last_mark: Mark | None = None
        self.timed: TimedCollectives | None = None

    def watch_device(self, marks: PhaseMarks) -> None:
        """Mark the phases in the device's stream from now on."""
        if self._marks is None:
            self._marks = marks

    @property
    def marks(self) -> PhaseMarks | None:
        """What marks the phases in the device's stream; None where nobody does."""
        return self._marks

    def begin_phase(self, name: str) -> bool:
        """Begin a phase; return whether it counts. Nested phases, and phases of other threads, do not."""
        thread = threading.get_ident()
        if thread != self._thread:
            if self._thread and name == "data_load":
                return False  # a thread that prefetches input
            self._thread = thread
            self.ring.set_thread(threading.get_native_id())
        if self._phase:
            is_training = name in (BACKWARD, OPTIMIZER) and self._phase == EVALUATION
            if self._phase != OPTIMIZER and not is_training:
                return False
            # an optimiser that evaluates a closure, or one that raised; an evaluation that nobody has ended
            self.end_phase()
        now, gc_ns = self._mark()
        mark = None if self._marks is None else self._marks.mark()
        if not (name == OPTIMIZER and self._pending_end):
            self._enter(now, gc_ns)
        if name == BACKWARD and not self._has_forward:
            self._write_derived_forward(now, gc_ns, mark)
        if name == FORWARD:
            self._has_forward = True
        elif name == BACKWARD:
            self._has_forward = False
        self._open(name, now, gc_ns)
        self._phase_mark = mark
        return True

    def end_phase(self) -> None:
        """End the open phase; the end of an optimiser update may be the end of the step."""
        if not self._phase:
            return
        now, gc_ns = self._mark()
        began = (self._phase_start, self._phase_start_gc)
        mark = None if self._marks is None else self._marks.mark()
        marks = (self._phase_mark, mark)
        self._write_phase(self._phase_string, began, (now, gc_ns), self._phase_index, 0, marks)
        self._last_mark = mark
        if self._phase == OPTIMIZER or self._has_update:
            self._pending_end, self._pending_end_gc = now, gc_ns
            self._has_update = False
        self._phase = ""
        self._phase_index = NO_PHASE
        self._last_phase_end, self._last_phase_end_gc = now, gc_ns
        self._publish(now, gc_ns)

    def end_optimizer(self) -> None:
        """End an optimiser update, also one whose phase a closure has ended before."""
        if self._phase == OPTIMIZER:
            self.end_phase()
        elif self._phase:
            self._has_update = True  # an optimiser that runs inside the backward pass ends with it
        else:
            self._pending_end, self._pending_end_gc = self._mark()
            self._publish(self._pending_end, self._pending_end_gc)

    def close(self) -> None:
        """Write what is still open, and say that no record will follow."""
        now, gc_ns = self._mark()
        if self._pending_end:
            self._close_step()
        elif self._step_start:
            self._write_step(now, gc_ns, RecordFlag.INCOMPLETE)
        if self.timed is not None:
            self.timed.flush()
        if self._marks is not None:
            self._marks.flush()
        self.ring.close()

    def _mark(self) -> tuple[int, int]:
        """Return the time, ns, and the CPU time of the main thread's collections up to then, ns.

        A collection between the two readings would count on the wrong side of the mark, so they are repeated.
        """
        gc_ns = self._watch.main_cpu_ns
        while True:
            now = self.now()
            if gc_ns == self._watch.main_cpu_ns:
                return now, gc_ns
            gc_ns = self._watch.main_cpu_ns

    def _gc_between(self, start_gc_ns: int, end_gc_ns: int) -> int | None:
        """Return the difference; None when collections were not seen."""
        return end_gc_ns - start_gc_ns if self._watch.is_installed else None

    def _enter(self, now: int, gc_ns: int) -> None:
        """Note that something begins: it ends a step whose update is done, and it begins the first."""
        if self._pending_end:
            self._close_step()
        if not self._step_start:
            self._step_start, self._step_start_gc = now, gc_ns
            self._last_phase_end, self._last_phase_end_gc = now, gc_ns
            self._watch.take_before(now)  # of no step

    def _close_step(self) -> None:
        self._write_step(self._pending_end, self._pending_end_gc, 0)
        self._step += 1
        self._step_start = self._last_phase_end = self._pending_end
        self._step_start_gc = self._last_phase_end_gc = self._pending_end_gc
        self._pending_end = 0
        self._next_index = 0
        self._has_forward = False

    def _write(
        self,
        *fields: int,
        marks: tuple[Mark | None, Mark | None] | None = None,
        **named: int | None,
    ) -> None:
        """Write a record, where phases are marked on the device after those that wait for it."""
        if self._marks is None:
            self.ring.write(*fields, **named)  # type: ignore[arg-type]
        else:
            self._marks.write(marks, partial(self.ring.write, *fields, **named))  # type: ignore[arg-type]

    def _write_step(self, end: int, end_gc: int, flags: int) -> None:
        self._write_collections(end, NO_PHASE, 0, end)
        self._write(
            RecordKind.STEP,
            self._step_start,
            end,
            self._step,
            flags=flags,
            gc_ns=self._gc_between(self._step_start_gc, end_gc),
            probe_ns=self._probe_ns,
        )
        self._probe_ns = None

    def _open(self, name: str, now: int, gc_ns: int) -> None:
        self._phase = name
        self._phase_start, self._phase_start_gc = now, gc_ns
        self._phase_index = self._next_index
        self._phase_string = self.ring.intern(name)
        self._next_index += 1
        if not self._is_training:  # a collective before the first phase is not yet training
            self._is_training = True
            self.ring.set_stage(Stage.TRAINING, now)
        self._publish(now, gc_ns)

    def _write_derived_forward(self, now: int, gc_ns: int, mark: Mark | None) -> None:
        """Without a wrapped forward pass, it is what lies between the last phase and the backward pass."""
        string = self.ring.intern(FORWARD)
        flags = RecordFlag.DERIVED
        began = (self._last_phase_end, self._last_phase_end_gc)
        marks = (self._last_mark, mark)
        self._write_phase(string, began, (now, gc_ns), self._next_index, flags, marks)
        self._next_index += 1

    def _write_phase(
        self,
        string: int,
        began: tuple[int, int],
        ended: tuple[int, int],
        index: int,
        flags: int,
        marks: tuple[Mark | None, Mark | None],
    ) -> None:
        """Write a phase between two marks, and the long collections up to its end."""
        self._write_collections(ended[0], index, string, began[0])
        self._write(
            RecordKind.PHASE,
            began[0],
            ended[0],
            self._step,
            flags=flags,
            string=string,
            index=index,
            gc_ns=self._gc_between(began[1], ended[1]),
            marks=marks,
        )

    def _write_collections(self, end: int, index: int, string: int, phase_start: int) -> None:
        """Write the long collections that began before `end`; those before `phase_start` lie between phases."""
        for one in self._watch.take_before(end):
            is_inside = one.start_mono_ns >= phase_start
            self._write(
                RecordKind.GC,
                one.start_mono_ns,
                one.end_mono_ns,
                self._step,
                flags=0 if one.is_main else RecordFlag.OTHER_THREAD,
                index=index if is_inside else NO_PHASE,
                sequence=one.generation,
                phase=string if is_inside else 0,
            )
        if self._watch.dropped:
            self.ring.count_dropped(self._watch.take_dropped())

    def _publish(self, now: int, gc_ns: int) -> None:
        self.ring.set_live(
            LiveState(
                self._step,
                self._step_start,
                self._phase_index,
                self._phase_start,
                self._pending_end,
                now,
                self._gc_between(self._step_start_gc, gc_ns),
            ),
            self._phase_string if self._phase else 0,
        )

    def begin_rendezvous(self) -> None:
        """Note that the calling thread waits for the other ranks, to make a process group."""
        if not self._thread:
            self.ring.set_thread(threading.get_native_id())
        self.ring.set_stage(Stage.RENDEZVOUS, self.now())

    def end_rendezvous(self, *, is_made: bool) -> None:
        """Note that the wait is over, and whether there is a process group now."""
        before = Stage.INITIALISED if is_made else Stage.STARTED
        self.ring.set_stage(Stage.TRAINING if self._is_training else before, self.now())

    @property
    def step(self) -> int:
        """The number of the step that goes on."""
        return self._step

    @property
    def has_stepped(self) -> bool:
        """Whether an optimiser update has ended: what comes before the first one is no training."""
        return self._step > 0 or self._pending_end > 0

    @property
    def is_evaluating(self) -> bool:
        """Whether an evaluation is open."""
        return self._phase == EVALUATION

    def begin_compilation(self) -> int:
        """Note that a compilation begins, which is a part of the step that follows; return when, ns."""
        now, gc_ns = self._mark()
        if self._pending_end:
            self._enter(now, gc_ns)
        self.ring.set_compiling(now)
        return now

    def end_compilation(self, start: int, *, is_main: bool) -> None:
        """Write a compilation that began at a moment of `begin_compilation`, if a step has begun."""
        self.ring.set_compiling(0)
        if not self._step_start:
            return
        is_inside = self._phase != "" and start >= self._phase_start
        self.ring.write(
            RecordKind.COMPILATION,
            start,
            self.now(),
            self._step,
            flags=0 if is_main else RecordFlag.OTHER_THREAD,
            index=self._phase_index if is_inside else NO_PHASE,
            phase=self._phase_string if is_inside else 0,
        )

    def note_retries(self, count: int) -> None:
        """Write how often the allocator of device memory had to ask again in the step that has just ended."""
        if self._step_start and self._pending_end:
            bounds = (self._step_start, self._pending_end)
            self.ring.write(RecordKind.RETRIES, *bounds, self._step, sequence=count)

    def note_probe(self, probe_ns: int) -> None:
        """Keep what a fixed piece of work took, for the step that has just ended."""
        if self._pending_end:
            self._probe_ns = probe_ns

    def begin_collective(self) -> tuple[int, int, int, int]:
        """Note that a collective is called; return (time, step, phase index, phase string) for its record."""
        if self._pending_end or not self._step_start:
            now, gc_ns = self._mark()
            self._enter(now, gc_ns)
        else:
            now = self.now()
        return now, self._step, self._phase_index, self._phase_string
