"""The scheduler program on this kernel, against freezers of both versions of control groups."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from rootwalk.instrumentation.errors import UnavailableError
from support import workloads
from support.bpf_programs import LoneBackend

pytestmark = pytest.mark.bpf

FROZEN_S = 0.5


class Freezer(NamedTuple):
    """How a version freezes: what to write where, and where it says that it is done."""

    file: str
    freeze: str
    thaw: str
    state_file: str
    state: str


FREEZERS = {
    "cgroup": Freezer("freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"),
    "cgroup2": Freezer("cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"),
}


def find_hierarchy(version: str) -> Path:
    """Return where groups with a freezer are; skip where there is none."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        if kind == version and (version == "cgroup2" or "freezer" in options.split(",")):
            return Path(folder)
    pytest.skip(f"cgroup: NO_FREEZER: {version}")


@contextmanager
def new_group(version: str) -> Iterator[Path]:
    """Make a group for the length of a block; what is in it must have ended then."""
    folder = find_hierarchy(version) / f"rootwalk-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("cgroup: NO_CGROUP_ACCESS")
    try:
        yield folder
    finally:
        folder.rmdir()


@contextmanager
def frozen(folder: Path, freezer: Freezer) -> Iterator[None]:
    """Freeze a group for the length of a block."""
    try:
        (folder / freezer.file).write_text(freezer.freeze)
        workloads.wait_until(lambda: freezer.state in (folder / freezer.state_file).read_text())
        yield
    finally:
        (folder / freezer.file).write_text(freezer.thaw)


@pytest.fixture
def backend() -> Iterator[LoneBackend]:
    try:
        opened = LoneBackend()
    except UnavailableError as error:
        pytest.skip(f"bpf: {error.reason}: {error}")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("cgroup", workloads.burn(workloads.last_cpu())),
        ("cgroup2", workloads.burn(workloads.last_cpu())),
        ("cgroup2", workloads.sleeper()),
    ],
    ids=["v1-busy", "v2-busy", "v2-asleep"],
)
def test_time_in_a_frozen_group_is_stopped(backend: LoneBackend, version: str, code: str) -> None:
    """Between what it was at least (from the group's word to the thaw) and at most (around both)."""

    def stopped_ns() -> int:
        record = backend.threads().get(target.pid)
        return record.totals.stopped_ns if record is not None else 0

    with new_group(version) as folder, workloads.python(code) as target:
        (folder / "cgroup.procs").write_text(str(target.pid))
        backend.watch(target.pid, 1)
        workloads.wait_until(lambda: target.pid in backend.threads())
        began_ns = time.monotonic_ns()
        with frozen(folder, FREEZERS[version]):
            frozen_ns = time.monotonic_ns()
            time.sleep(FROZEN_S)
            at_least_ns = time.monotonic_ns() - frozen_ns
        workloads.wait_until(lambda: stopped_ns() > 0)
        at_most_ns = time.monotonic_ns() - began_ns
        found_ns = stopped_ns()
    assert at_least_ns <= found_ns <= at_most_ns
