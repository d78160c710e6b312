"""The BPF programs that the kernel holds, without bpftool: by libbpf's calls over the kernel's own list."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.core_backend import OFF, ON, CoreBackend
from rootwalk.ebpf.targets import CORE, KEY, Loader, Targets
from rootwalk.instrumentation.errors import UnavailableError

# The functions of our object; the kernel keeps 15 bytes of each name.
OUR_NAMES = frozenset(
    {
        *("on_switch", "on_waking", "on_wakeup", "on_wakeup_new", "on_migrate", "on_exit"),
        *("on_fork", "on_end"),
        *("on_irq_begin", "on_irq_end", "on_soft_begin", "on_soft_end"),
        *("on_timer_begin", "on_timer_end", "on_resch_begin", "on_resch_end"),
        *("on_call_begin", "on_call_end", "on_call1_begin", "on_call1_end"),
        *("on_work_begin", "on_work_end"),
        *("on_signal", "on_born", "on_gone", "on_victim"),
        *("on_direct", "on_direct_end", "on_memcg", "on_memcg_end", "on_compact", "on_compact_end"),
        *("take_tick", "take_leave", "take_return"),
        *("on_rq_start", "on_rq_insert", "on_rq_issue", "on_rq_merge", "on_rq_complete"),
    }
)
# struct bpf_prog_info in include/uapi/linux/bpf.h: the name lies after 64 bytes, an ABI since Linux 4.15.
INFO_BYTES = 256
NAME_OFFSET = 64
NAME_BYTES = 16


class LoneBackend(CoreBackend):
    """The scheduler program with a table of watched processes of its own."""

    def __init__(self, loader: Loader = CORE, program: str | None = None) -> None:
        self._own_targets = Targets(loader=loader)
        super().__init__(self._own_targets, program=program)

    def watch(self, pid: int, slot: int, *, is_child: bool = False) -> None:
        """Watch a process and follow its threads."""
        self._own_targets.watch(pid, slot, is_child=is_child)
        super().watch(pid, slot, is_child=is_child)

    def forget(self, pid: int) -> None:
        """Stop both."""
        self._own_targets.forget(pid)
        super().forget(pid)

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Let the scheduler program hear nothing for a while, as of a kernel that leaves switches untold."""
        self._enabled.write(KEY.pack(0), OFF)
        yield
        self._enabled.write(KEY.pack(0), ON)

    def close(self) -> None:
        """Unload both programs."""
        super().close()
        self._own_targets.close()


@cache
def _why_not(loader: Loader) -> str | None:
    try:
        Targets(loader=loader).close()
    except UnavailableError as error:
        return f"bpf: {error.reason}: {error}"
    return None


def skip_without(loader: Loader) -> None:
    """Skip where a loader cannot be used at all; what it then refuses is a failure."""
    why = _why_not(loader)
    if why is not None:
        pytest.skip(why)


def list_bpf_programs() -> set[int]:
    """Return the ids of the kernel's programs that are named as ours; skip where this user may not list them."""
    library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    return {number for number in _list_ids(library) if _name(library, number) in OUR_NAMES}


def count_bpf_programs() -> int:
    """Return how many programs named as ours the kernel holds, whoever loaded them."""
    return len(list_bpf_programs())


def _list_ids(library: ctypes.CDLL) -> Iterator[int]:
    number = ctypes.c_uint32(0)
    while library.bpf_prog_get_next_id(number, ctypes.byref(number)) == 0:
        yield number.value
    if ctypes.get_errno() in (1, 13):  # EPERM, EACCES
        pytest.skip("bpf: NO_PRIVILEGE: cannot list programs")


def _name(library: ctypes.CDLL, number: int) -> str:
    descriptor = library.bpf_prog_get_fd_by_id(ctypes.c_uint32(number))
    if descriptor < 0:
        return ""  # unloaded meanwhile
    try:
        info = ctypes.create_string_buffer(INFO_BYTES)
        length = ctypes.c_uint32(INFO_BYTES)
        if library.bpf_obj_get_info_by_fd(descriptor, info, ctypes.byref(length)):
            return ""
        name: bytes = info.raw[NAME_OFFSET : NAME_OFFSET + NAME_BYTES]
        return name.split(b"\0")[0].decode()
    finally:
        os.close(descriptor)


@contextmanager
def open_targets() -> Iterator[Targets]:
    """Open the table of watched processes; skip where BPF cannot be used, but not where ours is refused."""
    try:
        opened = Targets()
    except UnavailableError as error:
        if error.reason in (Reason.LOAD_REFUSED, Reason.NO_OBJECT):
            raise
        pytest.skip(f"bpf: {error.reason}: {error}")
    try:
        yield opened
    finally:
        opened.close()
