"""What an H200 was recorded to say to the sensors: NVML's values, the kernel's line of an Xid."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rootwalk.ebpf.gpu.reader import measure_device
from rootwalk.ebpf.kernel_messages import recognise
from rootwalk.ebpf.reader import Measurement
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingKernelMessageKind as Kind
from support.live_check import check_measurement

RECORDED = Path(__file__).parents[2] / "data" / "hardware_h200"
# Two ranks share the GPU.
SLOTS = (3, 4)
MIB = 2**20
# The driver's Xid names it by the same.
ADDRESS = "0000:00:06"


@pytest.fixture
def told() -> dict[str, Any]:
    """Return what the helper process told of the driver and its one GPU."""
    value: dict[str, Any] = json.loads((RECORDED / "nvml.json").read_text("utf-8"))
    return value


@pytest.fixture
def found(told: dict[str, Any]) -> list[Measurement]:
    """Return what the reader measures of that."""
    (device,) = told["devices"]
    return list(measure_device(device, told["driver"], SLOTS, {}))


def test_what_a_real_gpu_says_is_in_the_registry_once_for_each_rank(
    found: list[Measurement],
) -> None:
    for one in found:
        check_measurement(one)
    series = Counter((one.metric, one.slot, *sorted(one.attributes.items())) for one in found)
    assert set(series.values()) == {1}
    of_ranks = [{one.metric for one in found if one.slot == slot} for slot in SLOTS]
    assert of_ranks[0] == of_ranks[1]
    assert len(of_ranks[0]) == 26


@pytest.mark.parametrize(
    ("metric", "attributes", "unit", "value"),
    [
        # As nvidia-smi wrote it of such a GPU: 143771 MiB, 700.00 W, 1980 MHz, 3201 MHz, 16 lanes, generation 5.
        ("hw.gpu.memory.limit", {}, "By", 143_771 * MIB),
        ("training.gpu.power.limit", {}, "W", 700.0),
        ("training.gpu.frequency.limit", {"training.gpu.clock": "sm"}, "Hz", 1.980e9),
        ("training.gpu.frequency", {"training.gpu.clock": "memory"}, "Hz", 3.201e9),
        (
            "training.gpu.pcie.width",
            {"training.gpu.pci.address": ADDRESS},
            "{lane}",
            16,
        ),
        ("training.gpu.pcie.generation", {}, "1", 5),
        # 16 lanes of 32 GT/s, 128 bits of 130.
        ("training.gpu.pcie.bandwidth.max", {}, "By/s", 16 * 32e9 / 8 * 128 / 130),
    ],
)
def test_values_have_the_units_that_their_metrics_say(
    found: list[Measurement], metric: str, attributes: dict[str, str], unit: str, value: float
) -> None:
    wanted = attributes.items()
    told = [one for one in found if one.metric == metric and one.attributes.items() >= wanted]
    assert semconv.METRICS[metric].unit == unit
    assert tuple(one.slot for one in told) == SLOTS
    assert [one.value for one in told] == pytest.approx([value] * len(SLOTS))


def test_a_gpu_alone_in_a_virtual_machine_has_no_nvlink(found: list[Measurement]) -> None:
    missing = {
        one.attributes[semconv.TRAINING_GPU_SIGNAL]: one.attributes[
            semconv.TRAINING_GPU_SIGNAL_ERROR
        ]
        for one in found
        if one.metric == semconv.METRIC_TRAINING_GPU_SIGNAL_MISSING
    }
    assert missing == {
        semconv.METRIC_TRAINING_GPU_NVLINK_LINKS: "NOT_SUPPORTED",
        semconv.METRIC_TRAINING_GPU_NVLINK_IO: "NOT_SUPPORTED",
        semconv.METRIC_TRAINING_GPU_NVLINK_ERRORS: "NOT_SUPPORTED",
    }
    assert not [one for one in found if one.metric.startswith("training.gpu.nvlink")]


def test_the_kernels_line_of_a_real_xid_is_recognised() -> None:
    """A kernel of ours wrote to an address that is nobody's."""
    line = (RECORDED / "kernel.txt").read_text("utf-8").partition("] ")[2].rstrip()
    message = recognise(line)
    assert message is not None
    assert (message.kind, message.device, message.code) == (Kind.GPU_ERROR, ADDRESS, 31)
    assert message.text == "Xid 31 on GPU 0000:00:06"
