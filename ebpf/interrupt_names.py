"""What an interrupt is called: soft ones by their vector, those of devices by what the driver has asked for.

A name tells devices apart and not their queues: a network card may have hundreds.
"""

from __future__ import annotations

import re
from pathlib import Path

from rootwalk.ebpf.plain_text import plain_name
from rootwalk.instrumentation.semconv import TrainingInterruptKind

__all__ = ["InterruptNames"]

# include/linux/interrupt.h, unchanged since 2.6.39.
SOFT_NAMES = (
    "HI",
    "TIMER",
    "NET_TX",
    "NET_RX",
    "BLOCK",
    "IRQ_POLL",
    "TASKLET",
    "SCHED",
    "HRTIMER",
    "RCU",
)
# `enum local_vector` of programs/interrupts.h; a call of one CPU and of many is the same to whom it interrupts.
LOCAL_NAMES = ("local_timer", "reschedule", "call_function", "call_function", "irq_work")
UNKNOWN = "unknown"
# The number of a queue: after a separator, or after a letter when there is another number before it.
QUEUE_NUMBER = re.compile(r"(.*\d.*[a-z]|.*[-._:])\d+", re.IGNORECASE)
# Devices of a host that interrupt: some eight network cards, as many GPUs, sixteen disks. Later ones are one.
MAX_DEVICES = 64
MAX_CHARACTERS = 48


def device_name(actions: bytes) -> str:
    """Return the name of a device without the number of its queue.

    >>> [device_name(name) for name in (b"virtio3-input.0", b"eth0-TxRx-31", b"nvme0q12", b"eth0")]
    ['virtio3-input', 'eth0-TxRx', 'nvme0q', 'eth0']
    >>> device_name(b"mlx5_comp37@pci:0000:3b:00.0")
    'mlx5_comp@pci:0000:3b:00.0'
    """
    head, at, place = plain_name(actions.strip(), MAX_CHARACTERS).partition("@")
    queue = QUEUE_NUMBER.fullmatch(head)
    if queue is not None:
        head = queue[1].rstrip("-._:")
    return head + at + place or UNKNOWN


class InterruptNames:
    """Remembers names: one file is read when a number is seen for the first time.

    Args:
        root: Where /sys is.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._folder = root / "sys/kernel/irq"
        self._devices: dict[int, str] = {}

    def name(self, kind: TrainingInterruptKind, number: int) -> str:
        """Return what an interrupt is called.

        Args:
            kind: What sort it is.
            number: Its number, or its vector.
        """
        if kind is TrainingInterruptKind.DEVICE:
            return self._device(number)
        names = SOFT_NAMES if kind is TrainingInterruptKind.SOFT else LOCAL_NAMES
        return names[number] if number < len(names) else UNKNOWN

    def _device(self, number: int) -> str:
        known = self._devices.get(number)
        if known is None:
            known, others = self._read_device(number), set(self._devices.values())
            if known not in others and len(others) >= MAX_DEVICES:
                known = UNKNOWN
            self._devices[number] = known
        return known

    def _read_device(self, number: int) -> str:
        """Return the name by /sys/kernel/irq: what /proc/interrupts shows, without a column for every CPU."""
        try:
            return device_name((self._folder / str(number) / "actions").read_bytes())
        except OSError:
            return UNKNOWN
