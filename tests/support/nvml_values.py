"""What the reader of GPUs tells of the stand-in, found among its measurements."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rootwalk.ebpf.gpu.reader import NvmlReader
from rootwalk.ebpf.reader import Measurement
from rootwalk.instrumentation import semconv
from support.live_check import check_measurement
from support.nvml_standin import uuid_of

__all__ = ["find_missing", "find_value", "wait_for"]


def wait_for(reader: NvmlReader, is_so: Callable[[list[Measurement]], bool]) -> list[Measurement]:
    """Look until something is told, and return all that is."""
    deadline_s = time.monotonic() + 30.0
    while True:
        reader.look()
        found = list(reader.measurements())
        for one in found:
            check_measurement(one)
        if is_so(found):
            return found
        assert time.monotonic() < deadline_s, "what is waited for does not come"
        time.sleep(0.02)


def find_value(
    found: list[Measurement], metric: str, gpu: int = 0, **attributes: Any
) -> float | None:
    """Return one value; None when it is not told."""
    wanted = {semconv.HW_ID: uuid_of(gpu)} | {
        key.replace("__", "."): text for key, text in attributes.items()
    }
    told = [one.value for one in found if one.metric == metric and one.attributes == wanted]
    assert len(told) <= 1
    return told[0] if told else None


def find_missing(found: list[Measurement], gpu: int = 0) -> dict[Any, Any]:
    """Return the metrics that a GPU does not give, with NVML's error."""
    return {
        one.attributes[semconv.TRAINING_GPU_SIGNAL]: one.attributes[
            semconv.TRAINING_GPU_SIGNAL_ERROR
        ]
        for one in found
        if one.metric == semconv.METRIC_TRAINING_GPU_SIGNAL_MISSING
        and one.attributes[semconv.HW_ID] == uuid_of(gpu)
    }
