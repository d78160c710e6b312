"""What a rank does while others wait for it, from its reports and stacks alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rootwalk.graph.hangs.live_evidence import Moment, RankEnd, RankProgress, ThreadStack
from rootwalk.graph.hangs.occupation import Doing, occupation_of
from rootwalk.graph.reasons import Reason

NS = 1_000_000_000


def reports(rates: dict[str, float] | None = None, **changes: Any) -> RankProgress:
    """Reports at 5, 10 and 15 s, whose counts grow at some rates."""
    moments = []
    for idle_s in (5.0, 10.0, 15.0):
        counts = {name: rate * idle_s for name, rate in (rates or {}).items()}
        known = {"stage": "training", "state": "sleeping"} | changes | counts
        moments.append(Moment(round((100.0 + idle_s) * NS), idle_s, **known))
    return RankProgress(1, "host", tuple(moments))


def stacks(*frames: list[str], role: str = "main") -> list[ThreadStack]:
    return [
        ThreadStack(1, 1, role, round((110.0 + 3.0 * number) * NS), tuple(one))
        for number, one in enumerate(frames)
    ]


USER = "main (/home/user/train.py:7)"
BUSY = {"cpu_s": 1.0, "main_cpu_s": 0.99}


def test_end_of_the_process_comes_first() -> None:
    found = occupation_of(1, reports(), (), RankEnd(1, 5, None, "SIGKILL"))
    assert (found.doing, found.reason) == (Doing.GONE, Reason.RANK_KILLED)
    assert found.text == "its process was ended by SIGKILL"
    killed = occupation_of(1, None, (), RankEnd(1, 5, None, "SIGKILL", is_for_memory=True))
    assert killed.reason is Reason.OOM_KILL
    crashed = occupation_of(1, None, (), RankEnd(1, 5, None, "SIGSEGV"))
    failed = occupation_of(1, None, (), RankEnd(1, 5, 1, None))
    left = occupation_of(1, None, (), RankEnd(1, 5, 0, None))
    reasons = [one.reason for one in (crashed, failed, left)]
    assert reasons == [Reason.RANK_CRASHED, Reason.RANK_CRASHED, Reason.RANK_GONE]


def test_io_that_was_over_before_is_no_work() -> None:
    """A file was read in the first seconds, and then nothing: only what grows between the last reports counts."""
    moments = tuple(
        Moment(
            round((100.0 + idle_s) * NS),
            idle_s,
            "training",
            state="sleeping",
            system_call="clock_nanosleep",
            io_bytes=50_000_000,
        )
        for idle_s in (5.0, 10.0, 15.0)
    )
    found = occupation_of(1, RankProgress(1, "host", moments))
    assert (found.doing, found.is_moving) == (Doing.ASLEEP, False)


def test_bytes_that_grow_are_work() -> None:
    found = occupation_of(1, reports({"io_bytes": 1e6}, system_call="recvfrom"))
    assert (found.doing, found.is_moving) == (Doing.RECEIVING, True)


@pytest.mark.parametrize(
    ("rows", "doing"),
    [
        (stacks(["spin (/x/t.py:5)", USER], ["spin (/x/t.py:6)", USER]), Doing.SPINNING),
        (stacks(["spin (/x/t.py:5)", USER], ["turn (/x/t.py:6)", USER]), Doing.WORKING),
        (
            stacks(["sgemm [libmkl_core.so.2]", USER], ["sgemm [libmkl_core.so.2]", USER]),
            Doing.WORKING,
        ),
        (stacks(["loop [mine.so]", USER], ["loop [mine.so]", USER]), Doing.SPINNING),
        (stacks(["spin (/x/t.py:5)", USER]), Doing.WORKING),
    ],
)
def test_running_thread_spins_where_it_stands_still(rows: list[ThreadStack], doing: Doing) -> None:
    found = occupation_of(1, reports(BUSY, state="running"), rows)
    assert found.doing is doing
    assert found.is_moving is (doing is not Doing.SPINNING)


def test_running_thread_without_any_stack_is_not_said_to_spin() -> None:
    assert occupation_of(1, reports(BUSY, state="running")).is_moving


def test_sleeper_is_asleep_whatever_its_other_threads_do() -> None:
    found = occupation_of(1, reports({"cpu_s": 1.0, "main_cpu_s": 0.0}, wait_kind="sleep"))
    assert (found.doing, found.is_moving) == (Doing.ASLEEP, False)


@pytest.mark.parametrize("changes", [{"wait_kind": "sleep"}, {"system_call": "poll"}, {}])
@pytest.mark.parametrize(
    ("wakeups", "piece_s", "is_moving"),
    [
        (50.0, 0.0004, True),  # an evaluation in small pieces
        (8.0, 0.01, True),
        (900.0, 0.000016, False),  # asks every millisecond
        (50.0, 0.00004, False),
        (20.0, 0.00036, False),  # asks a server ten times a second
        (0.0, 0.0, False),
    ],
)
def test_work_with_pauses_is_told_from_asking_again(
    wakeups: float, piece_s: float, is_moving: bool, changes: dict[str, Any]
) -> None:
    rates = {"wakeups": wakeups, "main_cpu_s": wakeups * piece_s, "cpu_s": wakeups * piece_s}
    rows = stacks(["sleep [libc.so.6]", USER], ["sleep [libc.so.6]", USER])
    found = occupation_of(1, reports(rates, **changes), rows)
    assert found.is_moving is is_moving
    assert (found.doing is Doing.WORKING) is is_moving


def test_work_with_pauses_is_given_two_minutes() -> None:
    rates = {"wakeups": 50.0, "main_cpu_s": 0.02, "cpu_s": 0.02}
    told = reports(rates, wait_kind="sleep")
    late = tuple(
        dataclasses.replace(one, idle_s=one.idle_s + 120.0, told_ns=one.told_ns + 120 * NS)
        for one in told.moments
    )
    assert occupation_of(1, told).is_moving
    assert not occupation_of(1, dataclasses.replace(told, moments=late)).is_moving


def test_rank_whose_workers_work_waits_for_work() -> None:
    found = occupation_of(1, reports({"cpu_s": 1.0, "main_cpu_s": 0.0}, system_call="poll"))
    assert (found.doing, found.is_moving) == (Doing.WORKING, True)


@pytest.mark.parametrize(("idle_s", "is_moving"), [(15.0, True), (61.0, False)])
def test_sync_of_a_file_is_given_a_minute(idle_s: float, is_moving: bool) -> None:
    moment = Moment(
        round((100.0 + idle_s) * NS), idle_s, "training", state="disk", wait_kind="file_sync"
    )
    assert occupation_of(1, RankProgress(1, None, (moment,))).is_moving is is_moving


@pytest.mark.parametrize(
    ("changes", "doing"),
    [
        ({"wait_kind": "pipe_read"}, Doing.PIPE),
        ({"wait_kind": "socket_read"}, Doing.SOCKET),
        ({"wait_kind": "file_read"}, Doing.FILE),
        ({"wait_kind": "device"}, Doing.DEVICE),
        ({"system_call": "wait4"}, Doing.CHILD),
        ({"system_call": "futex"}, Doing.LOCK),
        ({"system_call": "epoll_wait"}, Doing.POLL),
        ({"system_call": "fcntl"}, Doing.UNKNOWN),
        ({"state": "disk"}, Doing.DISK),
        ({"state": "zombie"}, Doing.GONE),
        ({"state": "frozen"}, Doing.FROZEN),
        ({"is_compiling": True}, Doing.COMPILING),
    ],
)
def test_kernel_says_what_a_rank_waits_for(changes: dict[str, Any], doing: Doing) -> None:
    found = occupation_of(1, reports(**changes))
    assert found.doing is doing
    assert found.is_moving is (doing is Doing.COMPILING)


def test_place_in_the_program_is_named() -> None:
    rows = stacks(["futex_wait [kernel]", "wait (/usr/lib/python3.11/threading.py:320)", USER])
    found = occupation_of(1, reports(system_call="futex"), rows)
    assert found.text == "waits for a lock in main (train.py:7)"
    assert found.where == "main (train.py:7)"


def test_rank_in_a_call_of_others_is_no_culprit() -> None:
    rows = stacks(["futex_wait [kernel]", "c10d::Work::wait [libtorch.so]", USER])
    assert occupation_of(1, reports(system_call="futex"), rows).doing is Doing.IN_COLLECTIVE
