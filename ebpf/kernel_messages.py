"""Which lines of the kernel's log are about trouble, and what they say: kind, device, number.

Of a line nothing goes on but what a pattern below names: numbers, and devices as the kernel calls them. The words for
people are written here. Pure: text in, a message out.

Source: each pattern names where the kernel or the driver prints the line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rootwalk.instrumentation.semconv import TrainingKernelMessageKind as Kind

__all__ = ["KernelMessage", "recognise"]

# A line is 1 kB at most; what is recognised stands at its beginning.
MAX_CHARACTERS = 400
PCI = r"(?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
INTERFACE = r"(?P<device>[a-z][\w.@-]{1,31})"
DISK = r"(?P<device>[a-z][\w-]{1,31})"


class KernelMessage(NamedTuple):
    """What one line says.

    Attributes:
        kind: What it is about.
        text: One line for people.
        device: What it names; None when nothing.
        code: Number of the error; None where it has none.
    """

    kind: Kind
    text: str
    device: str | None
    code: int | None


def _pattern(kind: Kind, pattern: str, text: str) -> tuple[Kind, re.Pattern[str], str]:
    return kind, re.compile(pattern, re.IGNORECASE), text


# The first that matches decides. In a text, {device}, {code} and {number} are what the pattern has named.
PATTERNS = (
    # NVIDIA's driver: nvidia.ko, "Xid Messages" of its documentation; nvidia-nvswitch for SXid.
    _pattern(
        Kind.GPU_ERROR,
        rf"^NVRM: Xid \(PCI:{PCI}\): (?P<code>\d{{1,5}})",
        "Xid {code} on GPU {device}",
    ),
    _pattern(
        Kind.GPU_ERROR,
        rf"^NVRM: The NVIDIA GPU {PCI}\b.{{1,250}}fallen off the bus",
        "GPU {device} has fallen off the bus",
    ),
    _pattern(
        Kind.NVLINK_ERROR,
        rf"nvidia-nvswitch\d*: SXid \(PCI:{PCI}\): (?P<code>\d{{1,6}})",
        "SXid {code} on NVSwitch {device}",
    ),
    # drivers/pci/pcie/aer.c, drivers/pci/pcie/dpc.c; before hardware errors: firmware reports AER as one of them.
    _pattern(
        Kind.PCIE_ERROR,
        rf"\b{PCI}: (?:AER: .{{0,60}}error|PCIe Bus Error|DPC: containment event)",
        "PCI Express error on {device}",
    ),
    # arch/x86/kernel/cpu/mce/core.c, drivers/firmware/efi/cper.c, drivers/edac/edac_mc.c, mm/memory-failure.c.
    _pattern(
        Kind.HARDWARE_ERROR,
        r"\[Hardware Error\]: (?P<device>CPU ?\d{1,5})\b",
        "machine check of {device}",
    ),
    _pattern(Kind.HARDWARE_ERROR, r"\[Hardware Error\]", "hardware error"),
    _pattern(
        Kind.HARDWARE_ERROR,
        r"^EDAC (?P<device>MC\d{1,3}): \d+ [CU]E ",
        "memory error at controller {device}",
    ),
    _pattern(Kind.HARDWARE_ERROR, r"^Memory failure: 0x", "a page of memory has failed"),
    # drivers/thermal/intel/therm_throt.c.
    _pattern(
        Kind.HARDWARE_ERROR,
        r"\b(?P<device>CPU ?\d{1,5}): (?:Core|Package) temperature.{0,20} above threshold",
        "{device} is too hot and clocked down",
    ),
    # drivers/infiniband/hw/mlx5; drivers/net/bonding/bond_main.c; drivers/net/ethernet/*; drivers/net/phy/phy.c.
    _pattern(Kind.LINK_DOWN, rf"\b{INTERFACE}: Port: \d+ Link DOWN\b", "link of {device} is down"),
    _pattern(Kind.LINK_UP, rf"\b{INTERFACE}: Port: \d+ Link ACTIVE\b", "link of {device} is up"),
    _pattern(
        Kind.LINK_DOWN,
        rf"\(slave {INTERFACE}\): link status definitely down",
        "link of {device} is down",
    ),
    _pattern(
        Kind.LINK_UP,
        rf"\(slave {INTERFACE}\): link status definitely up",
        "link of {device} is up",
    ),
    _pattern(
        Kind.LINK_DOWN,
        rf"\b{INTERFACE}:? (?:NIC |Copper )?Link (?:is )?down\b",
        "link of {device} is down",
    ),
    _pattern(
        Kind.LINK_UP,
        rf"\b{INTERFACE}:? (?:NIC |Copper )?Link (?:is )?up\b",
        "link of {device} is up",
    ),
    # mm/oom_kill.c.
    _pattern(
        Kind.OUT_OF_MEMORY,
        r"out of memory: Kill(?:ed)? process (?P<number>\d{1,9})\b",
        "the kernel killed process {number} for memory",
    ),
    # kernel/hung_task.c.
    _pattern(
        Kind.HUNG_TASK,
        r"^INFO: task .{1,80} blocked .{0,20}for more than (?P<number>\d{1,6}) seconds",
        "a task is blocked for more than {number} s",
    ),
    # kernel/watchdog.c, kernel/watchdog_perf.c, kernel/rcu/tree_stall.h.
    _pattern(
        Kind.LOCKUP,
        r"BUG: soft lockup - (?P<device>CPU#\d{1,5}) stuck for (?P<number>\d{1,6})s",
        "{device} was stuck for {number} s",
    ),
    _pattern(
        Kind.LOCKUP,
        r"hard LOCKUP on (?P<device>cpu \d{1,5})\b",
        "{device} was stuck with interrupts off",
    ),
    _pattern(Kind.LOCKUP, r"^rcu: INFO: rcu_\w{1,20} .{0,20}stall", "a CPU was stuck (RCU stall)"),
    # block/blk-core.c, fs/buffer.c, fs/ext4/super.c, fs/xfs/xfs_message.c, drivers/nvme/host/pci.c, net/sunrpc/clnt.c.
    _pattern(
        Kind.IO_ERROR,
        rf"\bI/O error(?:, dev| on dev(?:ice)?) {DISK}\b",
        "read or write error of {device}",
    ),
    _pattern(
        Kind.IO_ERROR,
        rf"^EXT4-fs error \(device {DISK}\)",
        "file system error on {device}",
    ),
    _pattern(
        Kind.IO_ERROR,
        rf"^EXT4-fs \({DISK}\): Remounting filesystem read-only",
        "file system of {device} is read-only after an error",
    ),
    _pattern(
        Kind.IO_ERROR,
        rf"^XFS \({DISK}\): .{{0,40}}(?:I/O error|Corruption|shut ?down)",
        "file system error on {device}",
    ),
    _pattern(
        Kind.IO_ERROR,
        rf"^nvme {DISK}: I/O .{{1,80}}timeout",
        "{device} does not answer in time",
    ),
    _pattern(
        Kind.IO_ERROR,
        r"^(?P<device>nfs): server .{1,80} (?:not responding|timed out)",
        "a file server ({device}) does not answer",
    ),
)


def recognise(line: str) -> KernelMessage | None:
    """Return what a line of the kernel's log says; None for the many that say nothing of trouble.

    >>> recognise("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.").text
    'Xid 79 on GPU 0000:3b:00'
    """
    line = line[:MAX_CHARACTERS]
    for kind, pattern, text in PATTERNS:
        found = pattern.search(line)
        if found is not None:
            named = found.groupdict()
            device, code = named.get("device"), named.get("code")
            return KernelMessage(kind, text.format(**named), device, int(code) if code else None)
    return None
