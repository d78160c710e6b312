"""Lines of the kernel's log: what they say, what stays here, and what was lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf.kernel_log import (
    MAX_RECORDS,
    QUIET_NS,
    KernelLog,
    KernelLogReader,
    decode_record,
    read_records,
)
from rootwalk.ebpf.kernel_messages import recognise
from rootwalk.ebpf.reader import Place
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.semconv import TrainingKernelMessageKind as Kind
from support.live_check import check_occurrence

S = 1_000_000_000

# Recorded: lines that this kernel cannot be made to print, as public reports show them; numbers and names changed.
RECORDED = [
    # NVIDIA drivers 470, 570 and 580.
    (
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=4411, name=python3, GPU has fallen off the bus.",
        (Kind.GPU_ERROR, "0000:3b:00", 79),
    ),
    (
        "NVRM: Xid (PCI:0019:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)",
        (Kind.GPU_ERROR, "0019:01:00", 149),
    ),
    (
        "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has"
        "\\x0aNVRM: fallen off the bus and is not responding to commands.",
        (Kind.GPU_ERROR, "0000:b3:00.0", None),
    ),
    (
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt",
        (Kind.NVLINK_ERROR, "0000:04:00.0", 22013),
    ),
    # Kernels 4.9, 5.4, 6.1 and 6.14.
    (
        "pcieport 0000:00:1d.0: AER: Multiple Corrected error received: id=00e8",
        (Kind.PCIE_ERROR, "0000:00:1d.0", None),
    ),
    (
        "nvme 0000:03:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        (Kind.PCIE_ERROR, "0000:03:00.0", None),
    ),
    (
        "pcieport 0000:00:1c.5: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=00e5(Receiver ID)",
        (Kind.PCIE_ERROR, "0000:00:1c.5", None),
    ),
    (
        "pcieport 0000:80:1b.4: AER: Uncorrectable (Non-Fatal) error message received from 0000:80:1b.4",
        (Kind.PCIE_ERROR, "0000:80:1b.4", None),
    ),
    (
        "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 4: a600000000020408",
        (Kind.HARDWARE_ERROR, "CPU 0", None),
    ),
    (
        "mce: [Hardware Error]: Machine check events logged",
        (Kind.HARDWARE_ERROR, None, None),
    ),
    (
        "EDAC MC1: 262 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0)",
        (Kind.HARDWARE_ERROR, "MC1", None),
    ),
    (
        "mce: CPU13: Package temperature is above threshold, cpu clock is throttled (total events = 2)",
        (Kind.HARDWARE_ERROR, "CPU13", None),
    ),
    ("mlx5_core 0000:3b:00.0 enp59s0f0np0: Link down", (Kind.LINK_DOWN, "enp59s0f0np0", None)),
    ("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE", (Kind.LINK_UP, "mlx5_5", None)),
    ("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN", (Kind.LINK_DOWN, "mlx5_5", None)),
    (
        "igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps Full Duplex, Flow Control: RX",
        (Kind.LINK_UP, "eno1", None),
    ),
    ("bnxt_en 0000:c1:00.0 ens1f0: NIC Link is Down", (Kind.LINK_DOWN, "ens1f0", None)),
    (
        "bond0: (slave ens1f0): link status definitely down, disabling slave",
        (Kind.LINK_DOWN, "ens1f0", None),
    ),
    (
        "watchdog: BUG: soft lockup - CPU#49 stuck for 22s! [migration/49:314]",
        (Kind.LOCKUP, "CPU#49", None),
    ),
    ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", (Kind.LOCKUP, None, None)),
    (
        "INFO: task kworker/u8:4:167 blocked for more than 120 seconds.",
        (Kind.HUNG_TASK, None, None),
    ),
    (
        "Memory cgroup out of memory: Killed process 4411 (python3) total-vm:1048kB, UID:1000 pgtables:1kB",
        (Kind.OUT_OF_MEMORY, None, None),
    ),
    (
        "Out of memory: Killed process 4411 (alice job) total-vm:1kB, anon-rss:1kB, UID:1000",
        (Kind.OUT_OF_MEMORY, None, None),
    ),
    ("print_req_error: I/O error, dev sdl, sector 41942912", (Kind.IO_ERROR, "sdl", None)),
    (
        "Buffer I/O error on dev nvme0n1p2, logical block 0, async page read",
        (Kind.IO_ERROR, "nvme0n1p2", None),
    ),
    ("nvme nvme0: I/O 309 (Write) QID 1 timeout, aborting", (Kind.IO_ERROR, "nvme0", None)),
    (
        "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
        (Kind.IO_ERROR, "sda1", None),
    ),
    ("nfs: server 10.0.0.27 not responding, still trying", (Kind.IO_ERROR, "nfs", None)),
]
HARMLESS = [
    "mlx5_core 0004:01:00.0: Port module event: module 0, Cable plugged",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth12: link becomes ready",
    "EXT4-fs (md127p3): re-mounted 0f3cd65a r/w. Quota mode: none.",
    "EXT4-fs (vda): mounted filesystem with ordered data mode",
    "mce: CPU supports 7 MCE banks",
    "mce: Using 22 MCE banks",
    "pcieport 0000:80:1b.4: AER: enabled with IRQ 26",
    "audit: type=1400 apparmor=DENIED name=/home/alice/secret",
    "",
]


@pytest.mark.parametrize(("line", "expected"), RECORDED)
def test_recorded_lines(line: str, expected: tuple[Kind, str | None, int | None]) -> None:
    found = recognise(line)
    assert found is not None
    assert (found.kind, found.device, found.code) == expected


def test_every_kind_has_a_recorded_line() -> None:
    assert {expected[0] for _, expected in RECORDED} == set(Kind)


@pytest.mark.parametrize("line", HARMLESS)
def test_lines_without_trouble(line: str) -> None:
    assert recognise(line) is None


def test_names_of_processes_and_servers_stay_here() -> None:
    texts = {found.text for line, _ in RECORDED if (found := recognise(line)) is not None}
    private = ("python3", "alice", "kworker", "migration", "10.0.0", "comm", "1000", "inode")
    assert not [text for text in texts for word in private if word in text]
    assert "the kernel killed process 4411 for memory" in texts
    assert "a task is blocked for more than 120 s" in texts


@given(st.text(max_size=500))
def test_any_line_is_survived(line: str) -> None:
    found = recognise(line)
    assert found is None or "\n" not in found.text


def raw(sequence: int, text: str, seconds: float = 1.0) -> bytes:
    return f"6,{sequence},{int(seconds * 1e6)},-;{text}\n SUBSYSTEM=pci\n".encode()


XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def test_record() -> None:
    record = decode_record(b"4,77,2500000,-,caller=T1;a line\xff\n SUBSYSTEM=x\n")
    assert record == (77, 2_500_000_000, "a line\ufffd")


@pytest.mark.parametrize("garbage", [b"", b"abc", b"6;x", b"6,a,b,-;x", b"6,1,-5,-;x", b";;;"])
def test_garbage_is_no_record(garbage: bytes) -> None:
    assert decode_record(garbage) is None
    assert KernelLog().take(garbage, S) is None


def test_a_line_of_trouble_is_an_event_by_the_registry() -> None:
    told = KernelLog().take(raw(1, XID, 1.5), 2 * S)
    assert told is not None
    assert (told.text, told.mono_ns, told.is_bad, told.slot) == (
        "Xid 79 on GPU 0000:3b:00",
        1_500_000_000,
        True,
        None,
    )
    check_occurrence(told)
    assert told.attributes == {
        "training.kernel.message.kind": "gpu_error",
        "training.kernel.message.device": "0000:3b:00",
        "training.kernel.message.code": 79,
    }


@pytest.mark.parametrize("seconds", [0.5, 9.0])  # now is 2 s: too old, in the future
def test_a_time_that_cannot_be_right_is_replaced(seconds: float) -> None:
    told = KernelLog().take(raw(1, XID, seconds), 2 * S)
    assert told is not None
    assert told.mono_ns == 2 * S


def test_a_link_that_comes_up_is_no_warning() -> None:
    told = KernelLog().take(raw(1, "tg3 0000:02:00.0 eth0: Link is up at 1000 Mbps"), S)
    assert told is not None
    assert not told.is_bad


def test_a_flood_is_told_once_in_10_s_and_counted() -> None:
    log = KernelLog()
    told = [log.take(raw(n, XID), S + n * S) is not None for n in range(25)]
    assert [n for n, was_told in enumerate(told) if was_told] == [0, 10, 20]
    assert log.counts == {Kind.GPU_ERROR: 25}
    assert QUIET_NS == 10 * S


def test_another_device_and_another_number_are_news() -> None:
    log = KernelLog()
    lines = [XID, XID.replace("3b", "3c"), XID.replace("79", "48"), XID]
    assert [log.take(raw(n, line), S) is not None for n, line in enumerate(lines)] == [
        True,
        True,
        True,
        False,
    ]


def test_lines_that_were_overwritten_are_counted() -> None:
    log = KernelLog()
    for sequence in (5, 6, 106, 107):
        log.take(raw(sequence, "x"), S)
    assert log.lost == 99


def test_reading_goes_on_after_what_was_overwritten_and_ends_where_there_is_nothing() -> None:
    answers: list[bytes | Exception] = [b"a", BrokenPipeError(), b"b", BlockingIOError(), b"c"]

    def read() -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert list(read_records(read)) == [b"a", b"b"]
    assert answers == [b"c"]


def test_a_flood_does_not_stop_the_round() -> None:
    assert len(list(read_records(lambda: b"x"))) == MAX_RECORDS


def test_no_log_here(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        KernelLogReader(Place(tmp_path))
    assert caught.value.reason == "NO_KERNEL_LOG"
    assert "/dev/kmsg" in str(caught.value)
