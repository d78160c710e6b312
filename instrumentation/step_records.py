"""Writes the records of steps, phases and garbage collections into a rank's ring; `tracker` decides when.

Where phases are marked on the device, a record waits for those before it until the device has passed its marks.
"""

from __future__ import annotations

from functools import partial

from rootwalk.instrumentation.device_marks import Mark, PhaseMarks
from rootwalk.instrumentation.gc_watch import GcWatch
from rootwalk.instrumentation.shared_ring import NO_PHASE, RecordFlag, RecordKind, RingWriter

__all__ = ["StepRecords"]

# Monotonic time, ns, and CPU time of the training thread's collections up to then, ns.
Moment = tuple[int, int]


class StepRecords:
    """Knows how records look, and not what a step is.

    Args:
        ring: Where records go.
        watch: Counts garbage collections.

    Attributes:
        marks: What marks the phases in the device's stream; None where nothing does.
        probe_ns: What a fixed piece of work took at the end of the step, ns; None where it was not done.
    """

    def __init__(self, ring: RingWriter, watch: GcWatch) -> None:
        self._ring = ring
        self._watch = watch
        self.marks: PhaseMarks | None = None
        self.probe_ns: int | None = None

    def gc_between(self, start_gc_ns: int, end_gc_ns: int) -> int | None:
        """Return the difference; None when collections were not seen."""
        return end_gc_ns - start_gc_ns if self._watch.is_installed else None

    def write_step(self, step: int, began: Moment, ended: Moment, flags: int) -> None:
        """Write a step, and the long collections up to its end."""
        self._write_collections(step, ended[0], NO_PHASE, 0, ended[0])
        self._write(
            RecordKind.STEP,
            began[0],
            ended[0],
            step,
            flags=flags,
            gc_ns=self.gc_between(began[1], ended[1]),
            probe_ns=self.probe_ns,
        )
        self.probe_ns = None

    def write_phase(
        self,
        step: int,
        string: int,
        began: Moment,
        ended: Moment,
        index: int,
        flags: int,
        marks: tuple[Mark | None, Mark | None],
    ) -> None:
        """Write a phase between two marks, and the long collections up to its end."""
        self._write_collections(step, ended[0], index, string, began[0])
        self._write(
            RecordKind.PHASE,
            began[0],
            ended[0],
            step,
            flags=flags,
            string=string,
            index=index,
            gc_ns=self.gc_between(began[1], ended[1]),
            marks=marks,
        )

    def _write_collections(
        self, step: int, end: int, index: int, string: int, phase_start: int
    ) -> None:
        """Write the long collections that began before `end`; those before `phase_start` lie between phases."""
        for one in self._watch.take_before(end):
            is_inside = one.start_mono_ns >= phase_start
            self._write(
                RecordKind.GC,
                one.start_mono_ns,
                one.end_mono_ns,
                step,
                flags=0 if one.is_main else RecordFlag.OTHER_THREAD,
                index=index if is_inside else NO_PHASE,
                sequence=one.generation,
                phase=string if is_inside else 0,
            )
        if self._watch.dropped:
            self._ring.count_dropped(self._watch.take_dropped())

    def _write(
        self,
        *fields: int,
        marks: tuple[Mark | None, Mark | None] | None = None,
        **named: int | None,
    ) -> None:
        """Write a record, where phases are marked on the device after those that wait for it."""
        if self.marks is None:
            self._ring.write(*fields, **named)  # type: ignore[arg-type]
        else:
            self.marks.write(marks, partial(self._ring.write, *fields, **named))  # type: ignore[arg-type]
