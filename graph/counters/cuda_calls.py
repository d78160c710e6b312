"""Which of a rank's calls of CUDA, as our kernel probes count them, speak for which reason; as data.

    waits for the device   of a stream, an event, the device; copies from the device   ACCIDENTAL_SYNC
    calls for memory       of the device: allocate, free                               ALLOCATOR
    more to do             launches of graphs, bytes copied to the device              neither: it has more work

Time in such calls proves nothing alone: a rank whose device is slow waits longer in them, and so does one whose device
waits for a peer in a collective. Only a rank that makes more of them than before, and than its peers, does something
else than before; their time is then the most that it cost. Times are those of all of a rank's threads.

Runtime and driver are counted apart, since calls of one are seen in the other; either speaks. Launches of kernels are
counted at level 2 only, and asked for nothing. No GPU was there: see `tests/integration/test_cuda_reasons.py`.
"""

from __future__ import annotations

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

__all__ = ["CALLS_FOR_MEMORY", "CALLS_THAT_WAIT", "MORE_TO_DO", "WAITING_CALLS"]

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
CALLS_FOR_MEMORY: Final = tuple(
    _timed(layer, _calls(Call.ALLOCATE, Call.FREE)) for layer in (Layer.RUNTIME, Layer.DRIVER)
)
MORE_TO_DO: Final = (
    _counter(Signal.CUDA_CALLS, Formula.NONE, _calls(Call.GRAPH_LAUNCH)),
    _counter(Signal.CUDA_COPIED, Formula.NONE, _copies(Direction.HOST_TO_DEVICE.value)),
)
