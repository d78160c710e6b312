"""Spans of what a program did beside its phases: collections, compilations, retries of the allocator.

Pure; who calls it owns identity and clock.
"""

from __future__ import annotations

from typing import Protocol

from rootwalk.instrumentation import ids, semconv
from rootwalk.instrumentation.identity import Identity
from rootwalk.instrumentation.otlp_wire import encode_attribute as key_value
from rootwalk.instrumentation.ring_layout import Record, RecordFlag, RecordKind
from rootwalk.instrumentation.semconv import TrainingThreadRole

__all__ = ["program_span"]


class SpanMaker(Protocol):
    """Knows the rank, and how its times become a span's."""

    identity: Identity

    def span(
        self,
        name: str,
        step: int,
        span_id: bytes,
        parent_id: bytes,
        bounds_mono_ns: tuple[int, int],
        attributes: list[bytes],
        linked_id: bytes = b"",
    ) -> bytes:
        """Return a span of the rank in a step's trace."""


def program_span(maker: SpanMaker, record: Record) -> bytes:
    """Return the span of a record that is no step, phase or collective."""
    who = maker.identity
    place = (who.job, who.attempt, record.step, who.rank)
    bounds = (record.start_mono_ns, record.end_mono_ns)
    attributes = [key_value(semconv.TRAINING_STEP_NUMBER, record.step)]
    parent_id = ids.rank_step_id(*place)
    if record.kind is RecordKind.RETRIES:
        attributes.append(key_value(semconv.TRAINING_ALLOCATOR_RETRIES, record.sequence))
        own_id = ids.program_id(*place, "allocator", bounds[0])
        return maker.span("torch.allocator", record.step, own_id, parent_id, bounds, attributes)
    if record.index is not None:
        parent_id = ids.phase_id(*place, record.index)
        attributes.append(key_value(semconv.TRAINING_PHASE, record.phase))
    is_other = record.flags & RecordFlag.OTHER_THREAD
    role = TrainingThreadRole.OTHER if is_other else TrainingThreadRole.MAIN
    attributes.append(key_value(semconv.TRAINING_THREAD_ROLE, role.value))
    if record.kind is RecordKind.COMPILATION:
        own_id = ids.program_id(*place, "compile", bounds[0])
        return maker.span("torch.compile", record.step, own_id, parent_id, bounds, attributes)
    attributes.append(key_value(semconv.CPYTHON_GC_GENERATION, record.sequence))
    own_id = ids.gc_id(*place, bounds[0])
    return maker.span("python.gc", record.step, own_id, parent_id, bounds, attributes)
