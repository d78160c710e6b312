"""What the lifecycle program tells, decoded and put into words."""

from __future__ import annotations

import signal
import struct
from typing import Any

import pytest

from rootwalk.ebpf.lifecycle import (
    EVENT,
    SIGNALS,
    LifecycleEvent,
    LifecycleKind,
    decode_events,
    signal_name,
    tell_end,
    tell_oom,
    tell_signal,
)
from rootwalk.ebpf.reader import Occurrence
from rootwalk.instrumentation import semconv
from support.live_check import check_occurrence


def event(kind: LifecycleKind = LifecycleKind.SIGNAL, **changes: Any) -> LifecycleEvent:
    """Process 100 of slot 3 is stopped by process 77 of nobody's."""
    stopped = LifecycleEvent(5, kind, 100, 3, 0, signal.SIGSTOP, 77, 0, 0, b"gdb\0\0")
    return stopped._replace(**changes)


def check_registry(occurrence: Occurrence) -> None:
    check_occurrence(occurrence)
    types = {"int": int, "string": str, "boolean": bool}
    for name, value in occurrence.attributes.items():
        assert type(value) is types[semconv.ATTRIBUTES[name]], name


def test_layout_is_as_large_as_that_of_the_program() -> None:
    assert EVENT.size == 56


def test_events_of_a_piece_of_the_ring() -> None:
    body = EVENT.pack(5, 0, 100, 3, 0, 19, 77, 0, 0, b"gdb")
    found, used = decode_events((struct.pack("<II", 56, 0) + body) * 2)
    assert [one._replace(sender_name=b"gdb\0\0") for one in found] == [event()] * 2
    assert used == 128


def test_a_signal_names_its_sender() -> None:
    told = tell_signal(event())
    assert told.text == "process 100 was sent SIGSTOP by gdb (pid 77)"
    assert (told.mono_ns, told.slot, told.is_bad) == (5, 3, True)
    assert told.attributes == {
        "process.pid": 100,
        "training.process.is_child": False,
        "training.signal.name": "SIGSTOP",
        "training.signal.sender.pid": 77,
        "training.signal.sender.name": "gdb",
    }
    check_registry(told)


def test_the_kernel_has_no_process_id() -> None:
    told = tell_signal(event(sender_pid=0, sender_name=b"\0", number=signal.SIGKILL))
    assert told.text == "process 100 was sent SIGKILL by the kernel"
    assert "training.signal.sender.pid" not in told.attributes
    assert told.attributes["training.signal.sender.name"] == "kernel"
    check_registry(told)


@pytest.mark.parametrize(
    ("number", "sender_slot", "is_bad"),
    [
        (signal.SIGTERM, 0, True),
        (signal.SIGTERM, 4, True),  # another rank
        (signal.SIGTERM, 3, False),  # a rank ends its own loader worker
        (signal.SIGABRT, 3, True),  # abort(): sent to oneself, and a crash
        (signal.SIGCONT, 0, False),
    ],
)
def test_what_is_worth_a_warning(number: int, sender_slot: int, is_bad: bool) -> None:
    assert tell_signal(event(number=number, sender_slot=sender_slot)).is_bad is is_bad


def test_a_ranks_own_name_for_itself_stays_here() -> None:
    foreign = tell_signal(event(sender_name=b"alice-job"))
    own = tell_signal(event(sender_name=b"alice-job", sender_slot=3))
    assert foreign.attributes["training.signal.sender.name"] == "alice-job"
    assert str(own.attributes["training.signal.sender.name"]).startswith("thread-")
    assert "alice" not in own.text


def test_names_with_newlines_and_broken_text() -> None:
    told = tell_signal(event(sender_name=b"a\nb\xff\0zz"))
    assert told.attributes["training.signal.sender.name"] == "a\ufffdb\ufffd"
    assert "\n" not in told.text


@pytest.mark.parametrize(
    ("number", "words", "attributes"),
    [
        (0, "ended with code 0", {"process.exit.code": 0}),
        (7 << 8, "ended with code 7", {"process.exit.code": 7}),
        (9, "was ended by SIGKILL", {"training.signal.name": "SIGKILL"}),
        (11 | 0x80, "was ended by SIGSEGV", {"training.signal.name": "SIGSEGV"}),  # with a core
    ],
)
def test_ends(number: int, words: str, attributes: dict[str, object]) -> None:
    told = tell_end(event(LifecycleKind.END, number=number, flags=1), was_asked=False)
    assert told.text == f"process 100 (a child of the rank) {words}"
    about = {"process.pid": 100, "training.process.is_child": True}
    assert told.attributes == about | attributes
    assert told.is_bad is (number != 0)
    check_registry(told)


def test_an_end_that_the_rank_asked_for_is_not_bad() -> None:
    assert not tell_end(event(LifecycleKind.END, number=15, flags=1), was_asked=True).is_bad


def test_a_kill_for_memory() -> None:
    told = tell_oom(event(LifecycleKind.OOM))
    assert told.text == "the kernel kills process 100 for memory"
    check_registry(told)


def test_signals_are_those_that_matter() -> None:
    assert {"SIGSTOP", "SIGKILL", "SIGSEGV", "SIGTERM"} <= {number.name for number in SIGNALS}
    assert not {"SIGCHLD", "SIGALRM", "SIGPIPE", "SIGUSR1"} & {number.name for number in SIGNALS}
    assert all(0 < number < 64 for number in SIGNALS)
    assert (signal_name(9), signal_name(63)) == ("SIGKILL", "SIG63")
