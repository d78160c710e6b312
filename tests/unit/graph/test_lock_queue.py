"""Who holds the interpreter lock, as waits tell it; lengths as measured with a thread that computes 20 of 40 ms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from rootwalk.graph.columns import Contender, JobData, OwnThread, RankRow, StallRow, WaitRow
from rootwalk.graph.lock_queue import find_holders, lock_queue_ratio

PID, MAIN, HOLDER, OTHER = 10847, 10847, 11190, 10885


def make_wait(waker: int, seconds: float, *, pid: int = PID, step: int = 91) -> StallRow:
    wait = WaitRow("interpreter_lock", None, None, None, None, pid, waker, "python")
    return StallRow(
        *(step, 1, MAIN, "main", "blocked", 0.0, seconds, 1, None, None, None, ()), wait=wait
    )


def test_thread_that_ends_the_waits_holds_the_lock() -> None:
    stalls = [make_wait(HOLDER, 0.00505) for _ in range(3)] + [make_wait(OTHER, 0.005)]
    assert find_holders(stalls, {1: PID}, [91]) == {1: HOLDER}


def test_nobody_holds_it_when_many_end_the_waits_or_another_process_does() -> None:
    many = [make_wait(HOLDER + number, 0.005) for number in range(4)]
    assert find_holders(many, {1: PID}, [91]) == {}
    assert find_holders([make_wait(HOLDER, 0.005, pid=77)], {1: PID}, [91]) == {}
    assert find_holders([make_wait(HOLDER, 0.005, step=12)], {1: PID}, [91]) == {}


def make_queue(thread: int, seconds: float) -> StallRow:
    return StallRow(
        *(91, 1, MAIN, "main", "runnable", 0.0, seconds, 1, "own", PID, None),
        (Contender(PID, "python", seconds),),
        own_thread=OwnThread(thread, "python", seconds, 1),
    )


def ratio(*stalls: StallRow) -> dict[int, float]:
    data = SimpleNamespace(stalls=stalls, ranks=[RankRow(1, "host", "host", PID)])
    return lock_queue_ratio(cast("JobData", data), {1: {PID}}, (91,))


def test_queue_behind_the_holder_is_the_locks_and_behind_others_is_not() -> None:
    waits = [make_wait(HOLDER, 0.005)]
    assert ratio(*waits, make_queue(HOLDER, 0.003), make_queue(OTHER, 0.001)) == {1: 0.75}
    assert ratio(*waits, make_queue(OTHER, 0.001)) == {}
    assert ratio(make_queue(HOLDER, 0.003)) == {}
