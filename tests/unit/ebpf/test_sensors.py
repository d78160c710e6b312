"""The capability probe on machines made by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rootwalk.ebpf import sensors
from rootwalk.ebpf.availability import Reason, Sensor, Status
from rootwalk.ebpf.bcc_backend import LIMITS
from rootwalk.graph.commands.check import render_sensors
from rootwalk.instrumentation.errors import UnavailableError
from support.fake_cgroups import FakeCgroups


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/schedstat").write_text("1 2 3\n")
    (tmp_path / "proc/self/mountinfo").write_text("22 1 0:20 / /proc rw - proc proc rw\n")
    return tmp_path


def refuse(reason: Reason) -> tuple[str, str | None]:
    raise UnavailableError("cannot load: saw a test; needs none", reason=reason, hint=reason.hint)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_sentence_and_a_hint(reason: Reason) -> None:
    assert reason.value == reason.name
    assert Reason[reason.value] is reason
    assert len(reason.sentence) > 10
    assert len(reason.hint) > 10


def test_scheduler_by_bpf(machine: Path) -> None:
    found = sensors.probe_sched(machine, (), lambda _: ("core", None))
    assert (found.status, found.backend, found.reason) == (Status.AVAILABLE, "core", None)


def test_scheduler_by_bcc_says_why(machine: Path) -> None:
    found = sensors.probe_sched(machine, (), lambda _: ("bcc", "saw no libbpf"))
    assert (found.status, found.backend, found.detail) == (Status.AVAILABLE, "bcc", "saw no libbpf")


@pytest.mark.parametrize("reason", [Reason.NO_BTF, Reason.NO_PRIVILEGE, Reason.NO_LIBBPF])
def test_scheduler_falls_back_to_proc_and_says_why(machine: Path, reason: Reason) -> None:
    found = sensors.probe_sched(machine, (), lambda _: refuse(reason))
    assert (found.status, found.backend, found.reason) == (Status.DEGRADED, "proc", reason)


def test_scheduler_without_anything(tmp_path: Path) -> None:
    found = sensors.probe_sched(tmp_path, (), lambda _: refuse(Reason.NO_BTF))
    assert (found.status, found.backend) == (Status.UNAVAILABLE, None)


def test_without_bpf_is_a_choice_and_not_a_lack(machine: Path) -> None:
    found = sensors.probe_sched(machine, ["bpf"], lambda _: ("core", None))
    assert (found.status, found.reason) == (Status.DEGRADED, Reason.SWITCHED_OFF)


def test_kernel_without_types(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        sensors.probe_bpf(tmp_path)
    assert caught.value.reason == "NO_BTF"


@pytest.mark.parametrize(
    ("version", "status", "reason"),
    [
        ("2.15.0", Status.AVAILABLE, None),
        ("2.16.1+cu130", Status.AVAILABLE, None),
        ("2.4.1", Status.DEGRADED, Reason.OLD_TORCH),
        (None, Status.UNAVAILABLE, Reason.NO_TORCH),
    ],
)
def test_torch(machine: Path, version: str | None, status: Status, reason: Reason | None) -> None:
    found = sensors.probe_instrumentation(machine, version)
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize(
    ("releases", "status", "reason"),
    [
        (["torch 2.11.0+cu130, CUDA 13.0"], Status.DEGRADED, Reason.OLD_TORCH),
        (["torch 2.15.0", "torch 2.8.0, service 7"], Status.DEGRADED, Reason.OLD_TORCH),
        (["torch 2.15.0, CUDA 13.2", ""], Status.AVAILABLE, None),
    ],
)
@pytest.mark.parametrize("own", ["2.15.0", "2.4.1", None])
def test_torch_of_the_ranks_decides_and_not_that_of_the_agent(
    machine: Path, own: str | None, releases: list[str], status: Status, reason: Reason | None
) -> None:
    probed = [sensors.probe_instrumentation(machine, own)]
    (found,) = sensors.with_torch_of_ranks(probed, releases)
    assert (found.status, found.reason) == (status, reason)
    assert sensors.with_torch_of_ranks(probed, []) == probed


def test_hooks_that_are_switched_off_stay_so(machine: Path) -> None:
    everything = sensors.probe_sensors(["instrumentation"], machine)
    (found,) = [
        one
        for one in sensors.with_torch_of_ranks(everything, ["torch 2.15.0"])
        if one.sensor == "instrumentation"
    ]
    assert found.reason is Reason.SWITCHED_OFF


@pytest.mark.parametrize(
    ("version", "backend"), [("v1", "cgroup1"), ("v2", "cgroup2"), ("hybrid", "cgroup1")]
)
def test_control_groups(tmp_path: Path, version: str, backend: str) -> None:
    FakeCgroups(tmp_path, version)
    found = sensors.probe_cgroup(tmp_path)
    assert (found.status, found.reason, found.backend) == (Status.AVAILABLE, None, backend)


def test_no_control_groups(machine: Path) -> None:
    assert sensors.probe_cgroup(machine).reason is Reason.NO_CGROUP


def test_control_groups_that_limit_nothing(tmp_path: Path) -> None:
    # Version 1: the file is there, the kernel does not count; version 2: without the controller, without cpu.max.
    one = FakeCgroups(tmp_path / "one", "v1")
    (one.mount / "cpu.stat").write_text("")
    two = FakeCgroups(tmp_path / "two", "v2")
    (two.mount / "cgroup.controllers").write_text("io memory\n")
    three = FakeCgroups(tmp_path / "three", "v2")
    (three.group("a", None) / "cpu.max").unlink()
    three.move("self", "/a")
    for machine in (one, two, three):
        found = sensors.probe_cgroup(machine.root)
        assert (found.status, found.reason) == (Status.UNAVAILABLE, Reason.NO_CPU_LIMITS)


def test_names_are_those_that_without_takes(machine: Path) -> None:
    everything = sensors.probe_sensors(["bpf", "procfs", "psi"], machine)
    assert tuple(sensor.sensor for sensor in everything) == sensors.SENSOR_NAMES
    reasons = {sensor.sensor: sensor.reason for sensor in everything}
    assert reasons["procfs"] is reasons["psi"] is Reason.SWITCHED_OFF


def test_table_says_what_bcc_cannot_do(machine: Path) -> None:
    found = sensors.probe_sched(machine, (), lambda _: ("bcc", f"saw no libbpf; {LIMITS}"))
    words = " ".join(render_sensors([found]).split())
    assert "sched available bcc - saw no libbpf; BCC compiled" in words
    assert words.endswith("lifecycle need libbpf")


def test_table_fits_80_columns() -> None:
    everything = [Sensor("sched", Status.DEGRADED, reason, 1, "proc") for reason in Reason]
    assert max(len(line) for line in render_sensors(everything).splitlines()) <= 80


def test_stacks_need_what_the_scheduler_is_read_with() -> None:
    def open_nothing(_cpu: int, _hz: int) -> int:
        return os.open(os.devnull, os.O_RDONLY)

    core = Sensor("sched", Status.AVAILABLE, None, 1, "core")
    assert sensors.probe_stacks(core, (), open_nothing).status is Status.AVAILABLE
    proc = Sensor("sched", Status.DEGRADED, Reason.NO_BTF, 0, "proc", "saw none")
    found = sensors.probe_stacks(proc, (), open_nothing)
    assert (found.status, found.reason, found.detail) == (
        Status.UNAVAILABLE,
        Reason.NO_BTF,
        "saw none",
    )
    bcc = Sensor("sched", Status.AVAILABLE, None, 1, "bcc", "saw no libbpf")
    assert sensors.probe_stacks(bcc, (), open_nothing).reason is Reason.NO_LIBBPF
    assert sensors.probe_stacks(core, ["bpf"], open_nothing).reason is Reason.SWITCHED_OFF


def test_stacks_without_the_right_to_a_clock_say_so() -> None:
    def refuse_clock(_cpu: int, _hz: int) -> int:
        raise UnavailableError("cannot open: no", reason=Reason.NO_PRIVILEGE, hint="none")

    core = Sensor("sched", Status.AVAILABLE, None, 1, "core")
    assert sensors.probe_stacks(core, (), refuse_clock).reason is Reason.NO_PRIVILEGE
