"""Waits in words, without a kernel."""

from __future__ import annotations

import os
import select
import socket
import stat
import sys
from pathlib import Path

import pytest

from rootwalk.ebpf.events import Wait
from rootwalk.ebpf.interpreter import Interpreters, find_symbol
from rootwalk.ebpf.system_calls import CALL_KINDS, CallKind, call_kinds, call_names
from rootwalk.ebpf.waits import (
    device_number,
    file_system_name,
    is_about_files,
    wait_kind,
    wait_peer,
)
from rootwalk.instrumentation.semconv import TrainingWaitKind as Kind
from rootwalk.instrumentation.semconv import TrainingWaitPeer as Peer

NOTHING = Wait(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "")
FIFO, SOCKET, REGULAR, CHARACTER = stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFREG, stat.S_IFCHR


@pytest.mark.parametrize(
    ("call", "mode", "kind"),
    [
        ("read", FIFO, Kind.PIPE_READ),
        ("poll", FIFO, Kind.PIPE_READ),
        ("write", FIFO, Kind.PIPE_WRITE),
        ("recvfrom", SOCKET, Kind.SOCKET_READ),
        ("connect", SOCKET, Kind.SOCKET_READ),
        ("sendmsg", SOCKET, Kind.SOCKET_WRITE),
        ("pread64", REGULAR, Kind.FILE_READ),
        ("pwrite64", REGULAR, Kind.FILE_WRITE),
        ("fsync", REGULAR, Kind.FILE_SYNC),
        ("flock", REGULAR, Kind.FILE_METADATA),
        ("getdents64", stat.S_IFDIR, Kind.FILE_READ),
        ("ioctl", CHARACTER, Kind.DEVICE),
        ("ioctl", REGULAR, Kind.OTHER),
        ("openat", 0, Kind.FILE_METADATA),
        ("select", 0, Kind.POLL),
        ("clock_nanosleep", 0, Kind.SLEEP),
        ("wait4", 0, Kind.CHILD),
        ("mmap", 0, Kind.MEMORY),
        ("sync", 0, Kind.FILE_SYNC),
        (None, 0, Kind.OTHER),
    ],
)
def test_kinds(call: str | None, mode: int, kind: Kind) -> None:
    assert wait_kind(NOTHING._replace(call=7, mode=mode), call) is kind


def test_a_poll_of_one_socket_says_what_it_is_polled_for() -> None:
    wait = NOTHING._replace(call=7, mode=SOCKET, family=socket.AF_INET)
    assert wait_kind(wait._replace(poll_events=select.POLLIN), "poll") is Kind.SOCKET_READ
    assert wait_kind(wait._replace(poll_events=select.POLLOUT), "poll") is Kind.SOCKET_WRITE


def test_a_socket_of_the_machine_itself_is_as_a_pipe() -> None:
    wait = NOTHING._replace(call=45, mode=SOCKET, family=socket.AF_UNIX)
    assert wait_kind(wait, "recvfrom") is Kind.PIPE_READ
    assert wait_kind(wait, "sendto") is Kind.PIPE_WRITE


def test_a_futex_is_a_lock_or_the_interpreters() -> None:
    wait = NOTHING._replace(call=202, object=0x1000)
    assert wait_kind(wait, "futex") is Kind.LOCK
    assert wait_kind(wait, "futex", is_interpreter_lock=True) is Kind.INTERPRETER_LOCK


def test_outside_of_any_call_is_a_fault_unless_it_was_stopped() -> None:
    wait = NOTHING._replace(call=-1)
    assert wait_kind(wait, None) is Kind.FAULT
    assert wait_kind(wait, None, is_stopped=True) is Kind.STOP
    assert is_about_files(wait)


def test_file_systems_and_their_devices() -> None:
    wait = NOTHING._replace(call=0, mode=REGULAR, magic=0xEF53, device=254 << 20 | 1)
    assert (file_system_name(wait), device_number(wait)) == ("ext4", "254:1")
    assert file_system_name(wait._replace(magic=0x1234)) == "0x1234"
    assert file_system_name(wait._replace(mode=SOCKET)) is None
    assert device_number(wait._replace(mode=FIFO)) is None
    assert not is_about_files(wait._replace(mode=FIFO))


def test_where_the_other_end_is() -> None:
    def address(text: str) -> int:
        return int.from_bytes(socket.inet_aton(text), sys.byteorder)

    def at(text: str) -> Wait:
        return NOTHING._replace(family=socket.AF_INET, address=address(text))

    assert wait_peer(at("127.0.0.1")) is Peer.LOCAL
    assert wait_peer(at("10.0.0.7")) is Peer.REMOTE
    assert wait_peer(NOTHING._replace(family=socket.AF_UNIX)) is Peer.LOCAL
    assert wait_peer(NOTHING._replace(family=socket.AF_INET6)) is None
    assert wait_peer(NOTHING) is None


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_tables_of_calls(machine: str) -> None:
    names = call_names(machine)
    table = call_kinds(machine)
    numbers = {name: number for number, name in names.items()}
    assert len(table) == CALL_KINDS > max(names)
    assert len(numbers) == len(names)
    assert table[numbers["read"]] == CallKind.FILE
    assert table[numbers["ppoll"]] == CallKind.POLL
    assert table[numbers["futex"]] == CallKind.FUTEX
    assert table[numbers["clock_nanosleep"]] == 0


def test_an_architecture_that_is_not_known_has_no_calls() -> None:
    assert call_names("riscv64") == {}
    assert set(call_kinds("riscv64")) == {0}


def test_state_of_this_interpreter() -> None:
    import ctypes

    address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    interpreters = Interpreters()
    assert interpreters.holds_lock(os.getpid(), address)
    assert interpreters.holds_lock(os.getpid(), address + 512)
    assert not interpreters.holds_lock(os.getpid(), address - 1)
    assert not interpreters.holds_lock(os.getpid(), id(object()))


def test_process_without_an_interpreter_or_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/maps").write_bytes(
        b"00400000-00500000 r-xp 00000000 fe:01 5 /bin/\xff\nrubbish\n"
    )
    interpreters = Interpreters(tmp_path)
    assert not interpreters.holds_lock(7, 0x400000)
    assert not interpreters.holds_lock(8, 0x400000)


@pytest.mark.parametrize("size", [0, 10, 64, 200, 4096])
def test_files_that_are_no_programs_or_cut_off(tmp_path: Path, size: int) -> None:
    whole = Path(sys.executable).resolve().read_bytes()
    for number, data in enumerate((whole[:size], os.urandom(size), b"\x7fELF\x02" + bytes(size))):
        path = tmp_path / str(number)
        path.write_bytes(data)
        assert find_symbol(path) is None
