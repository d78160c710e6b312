"""The kernel's own log, with lines that the test writes into it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.kernel_log import KernelLogReader
from rootwalk.ebpf.reader import Place
from rootwalk.instrumentation.errors import UnavailableError
from support.live_check import check_measurement, check_occurrence

KMSG = Path("/dev/kmsg")
# The kernel takes ten lines in five seconds from one who writes; each write here is another one.
LINES = 13


@pytest.fixture
def reader() -> Iterator[KernelLogReader]:
    if not os.access(KMSG, os.W_OK):
        pytest.skip("kernel_log: needs root to write into the kernel's log")
    try:
        opened = KernelLogReader(Place())
    except UnavailableError as error:
        pytest.skip(f"kernel_log: {error.reason}")
    yield opened
    opened.close()
    opened.close()


def write(line: str) -> None:
    """Write one line as the kernel would, but for its source; people who find it see where it is from."""
    with KMSG.open("w") as log:
        log.write(f"<4>rootwalk test: {line}\n")


def test_lines_are_told_once_and_counted_all(reader: KernelLogReader) -> None:
    device = f"rw{uuid.uuid4().hex[:8]}"
    for _ in range(LINES):
        write(f"mlx5_core 0000:3b:00.0 {device}: Link down")
    write("nothing of interest")
    write(f"mlx5_core 0000:3b:00.0 {device}: Link up")
    told = [
        one
        for one in reader.occurrences()
        if one.attributes.get("training.kernel.message.device") == device
    ]
    for one in told:
        check_occurrence(one)
    assert [(one.text, one.is_bad) for one in told] == [
        (f"link of {device} is down", True),
        (f"link of {device} is up", False),
    ]
    measured = list(reader.measurements())
    for value in measured:
        check_measurement(value)
    counts = {one.attributes["training.kernel.message.kind"]: one.value for one in measured}
    assert counts["link_down"] == LINES
    assert list(reader.occurrences()) == []


def test_what_was_there_before_is_not_told(reader: KernelLogReader) -> None:
    write("bnxt_en 0000:c1:00.0 rwbefore: NIC Link is Down")
    later = KernelLogReader(Place())
    try:
        assert not [
            one for one in later.occurrences() if "rwbefore" in str(one.attributes.values())
        ]
    finally:
        later.close()
