"""The reader of GPUs through the real nvidia-ml-py, against a stand-in of the driver's library. No GPU was there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rootwalk.ebpf.availability import Reason, Status
from rootwalk.ebpf.gpu import reader as readers
from rootwalk.ebpf.gpu.driver_process import GpuHelper
from rootwalk.ebpf.gpu.reader import NvmlReader
from rootwalk.ebpf.reader import Measurement, Occurrence, Place
from rootwalk.ebpf.readers import Readers, probe_readers
from rootwalk.graph.commands.check import render_sensors
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.errors import UnavailableError
from support import nvidia_smi
from support.nvml_standin import GIB, HEALTHY, Scenario, bus_of, has_compiler, uuid_of
from support.nvml_values import find_missing, find_value, wait_for
from support.rank_identities import identity

pytestmark = [
    pytest.mark.side_by_side,
    pytest.mark.skipif(not has_compiler(), reason="needs a C compiler"),
]

SLOT = 3
# Numbers that no process here has.
CHILD, STRANGER = 4_194_301, 4_194_302
Play = Callable[[Scenario], None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Puts the stand-in with a scenario where the binding looks for the driver's library; it plays from now on."""

    def put(scenario: Scenario) -> None:
        for name, value in scenario.write().items():
            monkeypatch.setenv(name, value)

    # Other tests keep this machine busy: a slow start is no silent driver.
    monkeypatch.setattr(readers, "FIRST_ANSWER_S", 30.0)
    return put


def helper(**options: Any) -> GpuHelper:
    command = (sys.executable, "-m", "rootwalk.ebpf.gpu.worker", "0.05")
    return GpuHelper(command, **options)


@pytest.fixture
def open_reader(play: Play) -> Iterator[Callable[[Scenario], NvmlReader]]:
    """Opens a reader of a scenario that looks twenty times a second."""
    opened: list[NvmlReader] = []

    def start(scenario: Scenario) -> NvmlReader:
        play(scenario)
        opened.append(NvmlReader(Place(), helper()))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_every_value_is_told_in_the_unit_of_the_registry(
    tmp_path: Path, open_reader: Callable[[Scenario], NvmlReader]
) -> None:
    scenario = Scenario(tmp_path / "scenario", gpus=2)
    for key, amount in {
        "field.138.4294967295": 3,
        "field.161.4": 7,
        "field.161.5": 4,
        "field.197.0": 1009,
        "pcie_replays": 13,
        "ecc_volatile.1": 5,
        "ecc_uncorrected.7": 5,
        "remapped.1": 2,
        "remapped.2": 1,
        "nvlink_state.17": 0,
        "peer.1": 1,
        "violation.1": 1.5e9,
        "field.230.0": 2,
    }.items():
        scenario.add(0, "set", key, amount)
    reader = open_reader(scenario)
    found = wait_for(reader, bool)
    assert {
        name: find_value(found, name)
        for name in (
            "training.gpu.power.limit",
            "hw.gpu.memory.usage",
            "hw.gpu.memory.limit",
            "training.gpu.pcie.replays",
            "training.gpu.nvlink.links",
            "training.gpu.peers",
            "training.gpu.recovery.action",
            "training.gpu.pcie.generation",
        )
    } == {
        "training.gpu.power.limit": 700.0,
        "hw.gpu.memory.usage": 20 * GIB,
        "hw.gpu.memory.limit": 80 * GIB,
        "training.gpu.pcie.replays": 13,
        "training.gpu.nvlink.links": 17,
        "training.gpu.peers": 1,
        "training.gpu.recovery.action": 2,
        "training.gpu.pcie.generation": 5,
    }
    # As the kernel's log names it; NVML says 00000000:18:00.0.
    address: dict[str, Any] = {"training__gpu__pci__address": "0000:18:00"}
    assert find_value(found, "training.gpu.pcie.width", **address) == 16
    gpu: dict[str, Any] = {"hw__type": "gpu"}
    assert find_value(found, "training.gpu.frequency", training__gpu__clock="sm") == 1.98e9
    assert (
        find_value(found, "training.gpu.frequency.limit", training__gpu__clock="memory") == 2.619e9
    )
    assert find_value(found, "hw.power", **gpu) == 500.0
    assert find_value(found, "hw.temperature", **gpu, hw__sensor_location="memory") == 66.0
    assert find_value(found, "hw.gpu.utilization", hw__gpu__task="general") == pytest.approx(0.97)
    assert find_value(found, "hw.gpu.io", network__io__direction="transmit") == 1009
    assert (
        find_value(found, "training.gpu.nvlink.io", network__io__direction="transmit") == 3 * 1024
    )
    assert (
        find_value(found, "training.gpu.nvlink.errors", training__gpu__nvlink__error="replay") == 11
    )
    assert find_value(found, "hw.errors", **gpu, error__type="uncorrected") == 5
    where: dict[str, Any] = {"error__type": "uncorrected", "training__gpu__memory": "sram"}
    assert find_value(found, "training.gpu.memory.errors", **where) == 5
    assert find_value(found, "training.gpu.remapped.rows", error__type="uncorrected") == 2
    assert find_value(found, "training.gpu.remap.state", training__gpu__remap__state="pending") == 1
    heat: dict[str, Any] = {"training__gpu__throttle__reason": "thermal"}
    assert find_value(found, "training.gpu.throttled.time", **heat) == pytest.approx(1.5)
    # 32 GT/s, 16 lanes, 128 of 130 bits
    assert find_value(found, "training.gpu.pcie.bandwidth.limit") == pytest.approx(63.0e9, rel=1e-3)
    assert find_missing(found) == find_missing(found, 1) == {}
    # What is told is what the registry has: every metric of GPUs, and no other attribute.
    of_gpus = {
        name
        for name in semconv.METRICS
        if name.startswith(
            ("training.gpu.", "hw.gpu.", "hw.errors", "hw.temp", "hw.pow", "hw.ener", "hw.status")
        )
    }
    of_ranks = {"training.gpu.processes", "training.gpu.process.memory"}
    assert {one.metric for one in found} == of_gpus - of_ranks - {"training.gpu.signal.missing"}
    for one in found:
        assert one.attributes.keys() <= set(semconv.METRICS[one.metric].attributes), one


@pytest.mark.parametrize(
    ("keys", "metric"),
    [
        (("clock.1", "clock.2"), "training.gpu.frequency"),
        (("power_mw",), "hw.power"),
        (("temperature.0", "field.82.0"), "hw.temperature"),
        (("memory_total",), "hw.gpu.memory.usage"),
        (("ecc_volatile.0", "ecc_volatile.1"), "hw.errors"),
        (("pcie_generation",), "training.gpu.pcie.bandwidth.limit"),
        (("field.91.0",), "training.gpu.nvlink.links"),
        (("field.197.0", "field.198.0"), "hw.gpu.io"),
        (("reasons", "violation.0", "violation.1", "violation.2"), "training.gpu.throttled.time"),
        (("remapped.0",), "training.gpu.remapped.rows"),
        (("peer.1",), "training.gpu.peers"),
    ],
)
def test_what_a_gpu_does_not_have_is_missing_with_its_reason_and_never_zero(
    tmp_path: Path,
    open_reader: Callable[[Scenario], NvmlReader],
    keys: tuple[str, ...],
    metric: str,
) -> None:
    assert all(key in HEALTHY or key.startswith("peer.") for key in keys)
    found = wait_for(open_reader(Scenario(tmp_path / "scenario", gpus=2).drop(keys)), bool)
    of_first = [one for one in found if one.attributes[semconv.HW_ID] == uuid_of(0)]
    assert [one for one in of_first if one.metric == metric] == []
    assert find_missing(found)[metric] == "NOT_SUPPORTED"


def test_fields_of_one_gpu_leave_nothing_in_those_of_the_next(
    tmp_path: Path, open_reader: Callable[[Scenario], NvmlReader]
) -> None:
    scenario = Scenario(tmp_path / "scenario", gpus=2)
    wide, narrow = 2**32 + 5, 7  # of the second the driver writes 32 bits
    for gpu, amount in enumerate((wide, narrow)):
        scenario.add(gpu, "set", "field.197.0", amount)
    found = wait_for(open_reader(scenario), bool)
    sent = {"network__io__direction": "transmit"}
    assert find_value(found, semconv.METRIC_HW_GPU_IO, 0, **sent) == wide
    assert find_value(found, semconv.METRIC_HW_GPU_IO, 1, **sent) == narrow


def test_a_part_that_is_missing_does_not_hide_the_rest_of_its_metric(
    tmp_path: Path, open_reader: Callable[[Scenario], NvmlReader]
) -> None:
    reader = open_reader(Scenario(tmp_path / "scenario").drop(("field.82.0", "violation.1")))
    found = wait_for(reader, bool)
    of_gpu: dict[str, Any] = {"hw__type": "gpu"}
    assert find_value(found, "hw.temperature", **of_gpu, hw__sensor_location="core") == 55.0
    assert find_value(found, "hw.temperature", **of_gpu, hw__sensor_location="memory") is None
    assert find_missing(found) == {}


def test_time_of_a_bit_is_added_up_where_the_driver_keeps_no_sum(
    tmp_path: Path, open_reader: Callable[[Scenario], NvmlReader]
) -> None:
    scenario = Scenario(tmp_path / "scenario")
    scenario.add(0, "set", "reasons", 0x2, at_s=8.0).add(0, "set", "reasons", 0x0, at_s=11.0)
    reader = open_reader(scenario)
    pinned: dict[str, Any] = {"training__gpu__throttle__reason": "setting"}
    name = "training.gpu.throttled.time"
    begun = wait_for(reader, lambda found: (find_value(found, name, **pinned) or 0.0) > 0.0)
    assert find_value(begun, "training.gpu.throttle.state", **pinned) == 1
    state = "training.gpu.throttle.state"
    ended = wait_for(reader, lambda found: find_value(found, state, **pinned) == 0)
    # Looks on a busy machine may come late: what lies before one counts as its bit says.
    assert find_value(ended, name, **pinned) == pytest.approx(3.0, abs=1.0)


def test_rank_is_told_of_the_gpu_that_it_computes_on(
    tmp_path: Path, open_reader: Callable[[Scenario], NvmlReader]
) -> None:
    scenario = Scenario(tmp_path / "scenario", gpus=2)
    scenario.add(1, "process", os.getpid(), 5 * GIB).add(1, "process", CHILD, GIB)
    scenario.add(1, "process", STRANGER, 2 * GIB, at_s=8.0)
    reader = open_reader(scenario)
    reader.meet(SLOT, identity(0))
    reader.watch(os.getpid(), SLOT)
    reader.watch(CHILD, SLOT)  # a rank and its child are one
    name = "training.gpu.processes"
    found = wait_for(reader, lambda told: find_value(told, name, 1) == 1)
    assert find_value(found, "training.gpu.process.memory", 1) == 6 * GIB
    assert {one.slot for one in found if one.metric == "training.gpu.frequency"} == {None, SLOT}
    of_rank = {one.attributes[semconv.HW_ID] for one in found if one.slot == SLOT}
    assert of_rank == {uuid_of(1)}
    wait_for(reader, lambda told: find_value(told, name, 1) == 2)
    reader.forget(os.getpid())
    reader.forget(CHILD)
    assert {one.slot for one in reader.measurements()} == {None}


@pytest.mark.parametrize(
    ("power_limit", "bus", "different"),
    [
        ("700.00", "00000000:18:00.0", None),
        ("[N/A]", "00000000:18:00.0", None),
        ("650.00", "00000000:18:00.0", "power.limit 650.00, ours [700.0]"),
        ("700.00", "00000000:3B:00.0", "0000:3b:00, ours {'0000:18:00'}"),
    ],
)
def test_the_reader_is_held_against_what_nvidia_smi_says(
    tmp_path: Path,
    open_reader: Callable[[Scenario], NvmlReader],
    power_limit: str,
    bus: str,
    different: str | None,
) -> None:
    found = wait_for(open_reader(Scenario(tmp_path / "scenario", gpus=1)), bool)
    row = f"{uuid_of(0)}, {bus}, 81920, {power_limit}, 1980, 2619, 2619, 16, 55, 498.71"
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\necho '{row}'\n")
    command.chmod(0o755)
    (gpu,) = nvidia_smi.ask(str(command))
    differences = nvidia_smi.find_differences([gpu], found)
    assert len(differences) == (different is not None)
    assert different is None or different in differences[0]
    assert "not found" in nvidia_smi.find_differences([gpu | {"uuid": "GPU-1"}], found)[0]


def test_gpus_come_go_and_are_reset(
    tmp_path: Path, open_reader: Callable[[Scenario], NvmlReader]
) -> None:
    scenario = Scenario(tmp_path / "scenario", gpus=3)
    scenario.add(-1, "set", "count", 2)
    scenario.add(-1, "set", "count", 3, at_s=8.0).add(-1, "set", "count", 2, at_s=16.0)
    scenario.add(0, "fail", "all", 15, at_s=23.0).add(0, "fail", "all", 0, at_s=31.0)
    scenario.add(0, "set", "pcie_replays", 13)
    reader = open_reader(scenario)

    def gpus(found: list[Measurement]) -> set[object]:
        return {
            one.attributes[semconv.HW_ID] for one in found if one.metric == "hw.gpu.memory.limit"
        }

    def failed(found: list[Measurement]) -> set[object]:
        states = [one for one in found if one.metric == "hw.status" and one.value == 1]
        return {
            one.attributes[semconv.HW_ID]
            for one in states
            if one.attributes[semconv.HW_STATE] == "failed"
        }

    first, second, third = (uuid_of(index) for index in range(3))
    wait_for(reader, lambda found: gpus(found) == {first, second})
    wait_for(reader, lambda found: gpus(found) == {first, second, third})
    wait_for(reader, lambda found: gpus(found) == {first, second})
    lost = wait_for(reader, lambda found: first not in gpus(found))
    assert reader.degraded is Reason.DEVICE_LOST
    assert find_value(lost, "training.gpu.pcie.replays") is None
    # It is still the same GPU, and said to be lost, also while the driver begins again and tells no UUID of it.
    deadline_s = time.monotonic() + 3.0
    while time.monotonic() < deadline_s:
        reader.look()
        assert failed(list(reader.measurements())) == {first}
        time.sleep(0.2)
    found = wait_for(reader, lambda found: gpus(found) == {first, second})
    assert not failed(found)
    assert reader.degraded is None


def test_stand_in_plays_what_is_written_meanwhile(
    tmp_path: Path, open_reader: Callable[[Scenario], NvmlReader]
) -> None:
    scenario = Scenario(tmp_path / "scenario", gpus=2)
    reader = open_reader(scenario)
    wait_for(reader, lambda found: find_value(found, "training.gpu.pcie.generation") == 5)
    for generation in (3, 2):
        scenario.add(0, "set", "pcie_generation", generation, at_s=scenario.now_s())
        scenario.change()
    wait_for(reader, lambda found: find_value(found, "training.gpu.pcie.generation") == 2)


def test_peers_that_are_no_longer_reached_are_seen_within_a_look_at_the_links(
    tmp_path: Path, open_reader: Callable[[Scenario], NvmlReader]
) -> None:
    scenario = Scenario(tmp_path / "scenario", gpus=2)
    reader = open_reader(scenario)
    wait_for(reader, lambda found: find_value(found, "training.gpu.peers") == 2)
    scenario.add(0, "set", "peer.1", 1, at_s=scenario.now_s()).change()
    wait_for(reader, lambda found: find_value(found, "training.gpu.peers") == 1)


@pytest.mark.parametrize(
    ("function", "code", "reason"),
    [
        ("nvmlInitWithFlags", 9, Reason.NO_DRIVER),
        ("nvmlInitWithFlags", 18, Reason.DRIVER_MISMATCH),
        ("nvmlInitWithFlags", 4, Reason.NO_DEVICE_PERMISSION),
        ("nvmlInitWithFlags", 15, Reason.DEVICE_LOST),
        ("nvmlInitWithFlags", 999, Reason.NVML_FAILED),
    ],
)
def test_why_nothing_can_be_read_is_said(
    tmp_path: Path, play: Play, function: str, code: int, reason: Reason
) -> None:
    play(Scenario(tmp_path / "scenario").add(-1, "fail", function, code))
    (found,) = probe_readers(Place(), kinds=[NvmlReader])
    assert (found.sensor, found.status, found.reason) == ("nvml", Status.UNAVAILABLE, reason)
    assert reason.value in render_sensors([found])
    with pytest.raises(UnavailableError, match=r"cannot read GPUs: saw .*; needs"):
        NvmlReader(Place())


def test_no_gpus_are_none(tmp_path: Path, play: Play) -> None:
    play(Scenario(tmp_path / "scenario", gpus=0))
    (found,) = probe_readers(Place(), kinds=[NvmlReader])
    assert (found.status, found.reason) == (Status.UNAVAILABLE, Reason.NO_DEVICE)


@pytest.mark.parametrize(
    ("key", "amount", "reason"),
    [("mig", 1, Reason.MIG), ("virtualization", 2, Reason.VGPU)],
)
def test_gpu_that_is_a_part_or_has_parts(
    tmp_path: Path, play: Play, key: str, amount: int, reason: Reason
) -> None:
    play(Scenario(tmp_path / "scenario").add(0, "set", key, amount))
    (found,) = probe_readers(Place(), kinds=[NvmlReader])
    assert (found.status, found.reason) == (Status.DEGRADED, reason)


def test_refused_call_is_told_and_the_others_go_on(
    tmp_path: Path, open_reader: Callable[[Scenario], NvmlReader]
) -> None:
    scenario = Scenario(tmp_path / "scenario").add(0, "fail", "nvmlDeviceGetPowerUsage", 4)
    reader = open_reader(scenario)
    found = wait_for(reader, bool)
    assert find_missing(found) == {"hw.power": "NO_PERMISSION"}
    assert reader.degraded is Reason.NO_DEVICE_PERMISSION


def test_call_that_never_returns_costs_that_reader_only(tmp_path: Path, play: Play) -> None:
    scenario = Scenario(tmp_path / "scenario")
    scenario.add(0, "fail", "nvmlDeviceGetTemperature", -1, at_s=7.0)
    play(scenario)
    own = helper(deadline_s=1.0, restart_s=3600.0)
    reader = NvmlReader(Place(), own)
    all_of_them = Readers(others=[reader])
    with closing(all_of_them):
        slowest_s, deadline_s = 0.0, time.monotonic() + 30.0
        while reader.missing is None and time.monotonic() < deadline_s:
            begin_s = time.thread_time()
            all_of_them.look()
            all_of_them.measurements()
            slowest_s = max(slowest_s, time.thread_time() - begin_s)
            time.sleep(0.02)
        assert reader.missing in (Reason.DRIVER_SILENT, Reason.READER_FAILED)
        assert slowest_s < 0.5
        assert all_of_them.losses()["gpu_driver_silent"] == 1
        assert all_of_them.measurements() == []
        (now,) = all_of_them.states(probe_readers(Place(Path("/nowhere")), kinds=[NvmlReader]))
        assert now.status is Status.UNAVAILABLE
    assert own.silences == 1


def test_start_that_never_returns_holds_nobody_up(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(Scenario(tmp_path / "scenario").add(-1, "fail", "nvmlInitWithFlags", -1))
    monkeypatch.setattr(readers, "FIRST_ANSWER_S", 0.5)
    (found,) = probe_readers(Place(), kinds=[NvmlReader])
    assert (found.status, found.reason) == (Status.UNAVAILABLE, Reason.DRIVER_SILENT)


def test_drivers_errors_are_told_where_the_kernels_log_is_not_read(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    can_read = os.access

    def can_read_others(path: object, mode: int) -> bool:
        return "kmsg" not in str(path) and can_read(str(path), mode)

    monkeypatch.setattr(os, "access", can_read_others)
    scenario = Scenario(tmp_path / "scenario", gpus=2).add(1, "xid", 79, at_s=6.0)
    play(scenario)
    with closing(NvmlReader(Place(), helper())) as reader:
        deadline_s = time.monotonic() + 30.0
        told: list[Occurrence] = []
        while not told and time.monotonic() < deadline_s:
            reader.look()
            told = list(reader.occurrences())
            time.sleep(0.05)
    (one,) = told
    assert one.text == "Xid 79 on GPU 0000:19:00"
    assert bus_of(1) == "00000000:19:00.0"
    assert one.attributes["training.kernel.message.code"] == 79


def test_deprecated_package_in_the_way_is_named(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(Scenario(tmp_path / "scenario"))
    old = tmp_path / "path" / "pynvml"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("def nvmlInit(): pass\n")
    monkeypatch.setenv("PYTHONPATH", str(old.parent))
    (found,) = probe_readers(Place(), kinds=[NvmlReader])
    assert (found.status, found.reason) == (Status.UNAVAILABLE, Reason.WRONG_NVML_PACKAGE)


def test_missing_package_is_named(
    tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(Scenario(tmp_path / "scenario"))
    gone = tmp_path / "path"
    gone.mkdir()
    (gone / "pynvml.py").write_text("raise ImportError('not installed')\n")
    monkeypatch.setenv("PYTHONPATH", str(gone))
    (found,) = probe_readers(Place(), kinds=[NvmlReader])
    assert (found.status, found.reason) == (Status.UNAVAILABLE, Reason.NO_NVML_PACKAGE)
