"""What the interrupt program tells, decoded, and what interrupts are called."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rootwalk.ebpf.interrupt_names import MAX_DEVICES, InterruptNames, device_name
from rootwalk.ebpf.interrupts import LOCAL_HOOKS, SPELL_EVENT, TOTAL, TOTAL_KEY, decode_spells
from rootwalk.ebpf.kernel_hooks import find_missing_hooks
from rootwalk.instrumentation.semconv import TrainingInterruptKind as Kind


def test_layouts_are_as_large_as_those_of_the_program() -> None:
    # As the static asserts at the end of programs/interrupts.h.
    assert (TOTAL_KEY.size, TOTAL.size, SPELL_EVENT.size) == (12, 16, 32)


def test_spells_of_a_piece_of_the_ring() -> None:
    body = SPELL_EVENT.pack(10, 30, 5, 3, 0)
    piece = (struct.pack("<II", len(body), 0) + body) * 2
    assert decode_spells(piece) == ([(10, 30, 5, 3)] * 2, 80)


@pytest.mark.parametrize(
    ("kind", "number", "name"),
    [
        (Kind.SOFT, 3, "NET_RX"),
        (Kind.SOFT, 9, "RCU"),
        (Kind.SOFT, 10, "unknown"),
        (Kind.LOCAL, 0, "local_timer"),
        (Kind.LOCAL, 3, "call_function"),
        (Kind.LOCAL, 77, "unknown"),
    ],
)
def test_vectors(kind: Kind, number: int, name: str) -> None:
    assert InterruptNames().name(kind, number) == name


@pytest.mark.parametrize(
    ("actions", "name"),
    [
        # As drivers name their vectors: virtio_net, ixgbe, mlx5, nvme, a serial port, two drivers on one line.
        (b"virtio2-input.0\n", "virtio2-input"),
        (b"eth0-TxRx-31\n", "eth0-TxRx"),
        (b"mlx5_comp37@pci:0000:3b:00.0\n", "mlx5_comp@pci:0000:3b:00.0"),
        (b"mlx5_async0@pci:0000:3b:00.0\n", "mlx5_async@pci:0000:3b:00.0"),
        (b"nvme0q12\n", "nvme0q"),
        (b"ttyS0\n", "ttyS0"),
        (b"eth0\n", "eth0"),
        (b"ehci_hcd:usb1,uhci_hcd:usb2\n", "ehci_hcd:usb1,uhci_hcd:usb"),
        (b"arch_timer\n", "arch_timer"),
        (b"\n", "unknown"),
        (b"a\nb\xff\0c", "a\ufffdb\ufffd"),
        (b"x" * 500, "x" * 48),
    ],
)
def test_devices(actions: bytes, name: str) -> None:
    assert device_name(actions) == name


def write_actions(root: Path, number: int, actions: str) -> None:
    folder = root / "sys/kernel/irq" / str(number)
    folder.mkdir(parents=True)
    (folder / "actions").write_text(actions + "\n")


def test_devices_are_read_once_and_queues_are_one(tmp_path: Path) -> None:
    for queue in range(3):
        write_actions(tmp_path, 40 + queue, f"eth0-TxRx-{queue}")
    names = InterruptNames(tmp_path)
    assert {names.name(Kind.DEVICE, number) for number in (40, 41, 42)} == {"eth0-TxRx"}
    (tmp_path / "sys/kernel/irq/40/actions").write_text("other\n")
    assert names.name(Kind.DEVICE, 40) == "eth0-TxRx"
    assert names.name(Kind.DEVICE, 999) == "unknown"


def test_there_are_never_more_names_than_a_host_has_devices(tmp_path: Path) -> None:
    letters = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(2 * MAX_DEVICES)]
    for number, letter in enumerate(letters):
        write_actions(tmp_path, number, f"dev-{letter}")
    names = InterruptNames(tmp_path)
    found = {names.name(Kind.DEVICE, number) for number in range(len(letters))}
    assert len(found) == MAX_DEVICES + 1
    assert "unknown" in found


def test_hooks_that_the_kernel_lacks(tmp_path: Path) -> None:
    types = tmp_path / "sys/kernel/btf/vmlinux"
    types.parent.mkdir(parents=True)
    types.write_bytes(b"\x9f\xeb\0btf_trace_softirq_entry\0btf_trace_irq_work_entry2\0")
    hooks = ["softirq_entry", "irq_work_entry", "softirq"]
    assert find_missing_hooks(hooks, tmp_path) == {"irq_work_entry", "softirq"}
    assert find_missing_hooks(hooks, tmp_path / "nowhere") == set(hooks)


def test_both_ends_of_an_interrupt_are_left_out_together() -> None:
    assert LOCAL_HOOKS["on_call1_begin"] == "call_function_single_entry"
    assert LOCAL_HOOKS["on_call1_end"] == "call_function_single_exit"
    assert len(LOCAL_HOOKS) == 10
