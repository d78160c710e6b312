"""Which of a rank's calls of CUDA, as our kernel probes count them, speak for which reason; as data.

    waits for the device   of a stream, an event, the device; copies from the device   ACCIDENTAL_SYNC
    calls for memory       of the device: allocate, free                               ALLOCATOR
    more to do             launches of graphs, bytes copied to the device              neither: it has more work

A rank that makes more of them than before, and than its peers, does something else than before; their time is then the
most that it cost. As many that take longer are no accident: its device is slow, or waits for a peer in a collective.
They say that a late rank waited for its device (UNKNOWN_GPU) where its peers do not wait longer; what else the device
tells says why. Times are those of all of a rank's threads.

Runtime and driver are counted apart, since calls of one are seen in the other; either speaks. Launches of kernels are
counted at level 2 only, and asked for nothing. See `tests/integration/test_cuda_reasons.py`: made-up counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rootwalk.graph.counters.rule import (
    ABSENT,
    Counter,
    Formula,
    Kind,
    Selection,
    any_of,
)
from rootwalk.graph.reasons import Signal
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingCudaCallKind as Call
from rootwalk.instrumentation.semconv import TrainingCudaCopyDirection as Direction
from rootwalk.instrumentation.semconv import TrainingCudaLayer as Layer

__all__ = ["AS_MANY_CALLS", "CALLS_FOR_MEMORY", "CALLS_THAT_WAIT", "LONGER_CALLS", "MORE_TO_DO"]
__all__ += ["TIME_FOR_DEVICE", "WAITING_CALLS"]

_SENSOR: Final = "cuda"


def _calls(*kinds: Call) -> Selection:
    return any_of(semconv.TRAINING_CUDA_CALL_KIND, *(kind.value for kind in kinds))


def _copies(*directions: str) -> Selection:
    return any_of(semconv.TRAINING_CUDA_COPY_DIRECTION, *directions)


def _counter(
    signal: Signal, formula: Formula, *where: Selection, number: Counter | None = None
) -> Counter:
    return Counter(signal, _SENSOR, Kind.LOOKS, formula, where, is_of_rank=True, number=number)


def _timed(layer: Layer, *where: Selection) -> Counter:
    """Return the time in some calls of a layer, with their number."""
    chosen = (any_of(semconv.TRAINING_CUDA_LAYER, layer.value), *where)
    number = _counter(Signal.CUDA_CALLS, Formula.NONE, *chosen)
    return _counter(Signal.CUDA_TIME, Formula.SECONDS_BOUND, *chosen, number=number)


CALLS_THAT_WAIT: Final = tuple(
    _timed(
        layer,
        _calls(Call.STREAM_SYNC, Call.DEVICE_SYNC, Call.EVENT_SYNC, Call.COPY),
        _copies(ABSENT, Direction.DEVICE_TO_HOST.value),
    )
    for layer in (Layer.RUNTIME, Layer.DRIVER)
)
WAITING_CALLS: Final = tuple(one.number for one in CALLS_THAT_WAIT if one.number is not None)
# Of a rank that waits for its device: everything in which it may, copies to the device too.
TIME_FOR_DEVICE: Final = tuple(
    _counter(
        Signal.CUDA_TIME,
        Formula.SECONDS_BOUND,
        any_of(semconv.TRAINING_CUDA_LAYER, layer.value),
        _calls(Call.STREAM_SYNC, Call.DEVICE_SYNC, Call.EVENT_SYNC, Call.COPY),
        number=number,
    )
    for layer, number in zip((Layer.RUNTIME, Layer.DRIVER), WAITING_CALLS, strict=True)
)
# The same, whether or not there are more of them.
LONGER_CALLS: Final = tuple(replace(one, number=None) for one in TIME_FOR_DEVICE)
CALLS_FOR_MEMORY: Final = tuple(
    _timed(layer, _calls(Call.ALLOCATE, Call.FREE)) for layer in (Layer.RUNTIME, Layer.DRIVER)
)
MORE_TO_DO: Final = tuple(
    _counter(signal, Formula.NONE, any_of(semconv.TRAINING_CUDA_LAYER, layer.value), what)
    for layer in (Layer.RUNTIME, Layer.DRIVER)
    for signal, what in (
        (Signal.CUDA_CALLS, _calls(Call.GRAPH_LAUNCH)),
        (Signal.CUDA_COPIED, _copies(Direction.HOST_TO_DEVICE.value)),
    )
)
# A rank that waits longer for the same: what must stand still.
AS_MANY_CALLS: Final = (*WAITING_CALLS, *MORE_TO_DO)
