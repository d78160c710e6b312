"""Steps and phases of one rank, as its own calls tell them; `communicator` has its collectives.

    data_load   forward   backward          optimizer | data_load ...
    |---------|---------|--[#7]--[#8]-----|---------| |
    ^ step k begins where step k-1's update ended      ^ step k ends with its last update

Steps tile a rank's time. A step is written when the next thing begins, because only then is it known that no further
optimiser follows in it. Knows the ring and the clock; must not know torch. Nothing here is thread-safe beyond the
interpreter lock: phases count from one thread (`training_thread`), collectives may come from several.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

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
from rootwalk.instrumentation.step_records import StepRecords
from rootwalk.instrumentation.timed_collectives import TimedCollectives
from rootwalk.instrumentation.training_thread import TrainingThread
from rootwalk.instrumentation.update_cycle import UpdateCycle

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
        self._records = StepRecords(ring, self._watch)
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
        self._is_training = False
        self._update_key = 0
        self._is_marked = False  # the program says itself where its steps end
        self._cycle = UpdateCycle()
        self.thread = TrainingThread()
        self._phase_mark: Mark | None = None
        self._last_mark: Mark | None = None
        self.timed: TimedCollectives | None = None

    def watch_device(self, marks: PhaseMarks) -> None:
        """Mark the phases in the device's stream from now on."""
        if self._records.marks is None:
            self._records.marks = marks

    @property
    def marks(self) -> PhaseMarks | None:
        """What marks the phases in the device's stream; None where nobody does."""
        return self._records.marks

    def begin_phase(self, name: str, key: int = 0) -> bool:
        """Begin a phase; return whether it counts. Nested phases, and phases of other threads, do not.

        Args:
            name: Name of the phase.
            key: Of an optimiser's update: which optimiser.
        """
        if name == OPTIMIZER and self._phase == BACKWARD:
            return False  # it ends with the pass, which may run in a thread of the device's
        if not self._claim(name):
            return False
        if self._phase:
            is_training = name in (BACKWARD, OPTIMIZER) and self._phase == EVALUATION
            if self._phase != OPTIMIZER and not is_training:
                return False
        if name == OPTIMIZER and not self._cycle.begin(key):
            return False  # an optimiser inside another one's update
        if self._phase == OPTIMIZER:
            self._leave_optimizer()  # it evaluates a closure, or one that raised
        elif self._phase:
            self.end_phase()  # an evaluation that nobody has ended
        now, gc_ns = self._mark()
        mark = None if self._records.marks is None else self._records.marks.mark()
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

    def _claim(self, phase: str) -> bool:
        """Return whether a phase of the calling thread counts, which is the training thread from now on."""
        thread = self.thread.ident
        if not self.thread.claim(phase):
            return False
        if thread != self.thread.ident:
            self._move_to_thread()
        return True

    def _move_to_thread(self) -> None:
        """End what another thread has left open: the calling thread trains from now on."""
        self.ring.set_thread(threading.get_native_id())
        self._cycle.abandon()
        if self._phase:
            self.end_phase()
        self._watch.follow_thread(self.thread.ident)

    def _leave_optimizer(self) -> None:
        """Take back an update's phase: what came before a closure's passes was not yet the update."""
        self._next_index = self._phase_index
        self._phase, self._phase_index = "", NO_PHASE

    def end_phase(self) -> None:
        """End the open phase; the end of an optimiser update may be the end of the step."""
        if not self._phase or not self.thread.is_current:
            return
        now, gc_ns = self._mark()
        began = (self._phase_start, self._phase_start_gc)
        mark = None if self._records.marks is None else self._records.marks.mark()
        marks = (self._phase_mark, mark)
        self._records.write_phase(
            self._step, self._phase_string, began, (now, gc_ns), self._phase_index, 0, marks
        )
        self._last_mark = mark
        if self._has_update:
            self._has_update = False
            self._note_update(self._update_key, now, gc_ns)
        self._phase = ""
        self._phase_index = NO_PHASE
        self._last_phase_end, self._last_phase_end_gc = now, gc_ns
        if self._cycle.is_open:  # back from a closure
            self._open(OPTIMIZER, now, gc_ns)
            self._phase_mark = mark
        else:
            self._publish(now, gc_ns)

    def end_optimizer(self, key: int = 0) -> None:
        """End an optimiser's update, also one inside the backward pass, which any thread may run."""
        if not (self.thread.is_current or self._phase == BACKWARD):
            return
        if self._phase and self._phase != OPTIMIZER:
            if not self._has_update:
                self._update_key = key
            self._has_update = True  # with the pass ends the update of all its optimisers
        elif self._cycle.end(key):
            if self._phase:
                self._has_update, self._update_key = True, key
                self.end_phase()
            else:
                now, gc_ns = self._mark()
                self._note_update(key, now, gc_ns)
                self._publish(now, gc_ns)

    def _note_update(self, key: int, now: int, gc_ns: int) -> None:
        """Note that an update is done: the step may be done with it."""
        if not self._is_marked and (self._pending_end or self._cycle.closes_step(key)):
            self._pending_end, self._pending_end_gc = now, gc_ns

    def end_step(self) -> None:
        """End the step, or begin the first, because the program says so; from now on only that ends steps."""
        if not self._claim(OPTIMIZER):
            return
        if self._phase:
            self.end_phase()
        now, gc_ns = self._mark()
        if self._is_marked or not self._step_start:
            self._enter(now, gc_ns)  # nothing has begun since the last one
        if self._step_start < now:
            self._pending_end, self._pending_end_gc = now, gc_ns
        self._is_marked = True
        self._publish(now, gc_ns)

    def close(self) -> None:
        """Write what is still open, and say that no record will follow."""
        now, gc_ns = self._mark()
        if self._pending_end:
            self._close_step()
        elif self._step_start:
            self._write_step(now, gc_ns, RecordFlag.INCOMPLETE)
        if self.timed is not None:
            self.timed.flush()
        if self._records.marks is not None:
            self._records.marks.flush()
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

    def _write_step(self, end: int, end_gc: int, flags: int) -> None:
        began = (self._step_start, self._step_start_gc)
        self._records.write_step(self._step, began, (end, end_gc), flags)

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
        self._records.write_phase(
            self._step, string, began, (now, gc_ns), self._next_index, flags, marks
        )
        self._next_index += 1

    def _publish(self, now: int, gc_ns: int) -> None:
        self.ring.set_live(
            LiveState(
                self._step,
                self._step_start,
                self._phase_index,
                self._phase_start,
                self._pending_end,
                now,
                self._records.gc_between(self._step_start_gc, gc_ns),
            ),
            self._phase_string if self._phase else 0,
        )

    def begin_rendezvous(self) -> None:
        """Note that the calling thread waits for the other ranks, to make a process group."""
        if not self.thread.ident:
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
            self._records.probe_ns = probe_ns

    def begin_collective(self) -> tuple[int, int, int, int]:
        """Note that a collective is called; return (time, step, phase index, phase string) for its record."""
        if self._pending_end or not self._step_start:
            now, gc_ns = self._mark()
            self._enter(now, gc_ns)
        else:
            now = self.now()
        return now, self._step, self._phase_index, self._phase_string
