"""Totals that are told now and then, as intervals; one thread of known states, told as the kernel would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf.events import (
    EventFlag,
    SampledInterval,
    SchedEvent,
    ThreadExit,
    ThreadState,
    ThreadSum,
    ThreadTotals,
)
from rootwalk.ebpf.partition import RankPartition
from rootwalk.ebpf.thread_sums import ThreadSums

MS = 1_000_000
LEADER = int(EventFlag.LEADER)
NOTHING = ThreadTotals(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class Thread:
    """Does what the test says, and tells it as `sched.bpf.c` does with waits of 1 ms and sums of 5 ms."""

    def __init__(self, born_ns: int = 1000) -> None:
        self.now_ns = self.told_ns = born_ns
        self.totals = NOTHING
        self.has_untold = False
        self.records: list[SchedEvent | ThreadExit | ThreadSum] = []

    def run(self, duration_ns: int) -> None:
        self.now_ns += duration_ns
        self._add(running_ns=duration_ns)
        self._tell(5 * MS)

    def block(self, duration_ns: int) -> None:
        self._wait(duration_ns, ThreadState.BLOCKED, "blocked_ns")

    def want(self, duration_ns: int) -> None:
        """Wait for a CPU on which another process runs."""
        self._wait(duration_ns, ThreadState.RUNNABLE, "runnable_ns", "foreign_ns")

    def _wait(self, duration_ns: int, state: ThreadState, *parts: str) -> None:
        is_long = duration_ns >= MS
        if is_long:
            self._tell(0)
        start_ns, self.now_ns = self.now_ns, self.now_ns + duration_ns
        self._add(**dict.fromkeys(parts, duration_ns))
        if not is_long:
            self.has_untold = True
            self._tell(5 * MS)
            return
        ran = (duration_ns, 0, 0, 0) if state == ThreadState.RUNNABLE else (0, 0, 0, 0)
        self.told_ns = self.now_ns
        self.records.append(
            SchedEvent(start_ns, self.now_ns, 7, 7, 1, 0, state, LEADER, "t", ran, ())
        )

    def _add(self, **parts: int) -> None:
        new = {name: getattr(self.totals, name) + ns for name, ns in parts.items()}
        self.totals = self.totals._replace(switches=self.totals.switches + 1, **new)

    def _tell(self, every_ns: int) -> None:
        if self.has_untold and self.now_ns - self.told_ns >= every_ns:
            self.records.append(ThreadSum(self.now_ns, 7, 7, 1, LEADER, "t", self.totals))
            self.told_ns, self.has_untold = self.now_ns, False


STATES = st.sampled_from(["run", "block", "want"])
LIVES = st.lists(st.tuples(STATES, st.integers(1, 4 * MS)), min_size=1, max_size=60)


@given(LIVES)
def test_intervals_add_up_to_what_the_thread_did(life: list[tuple[str, int]]) -> None:
    thread = Thread()
    for what, duration_ns in life:
        getattr(thread, what)(duration_ns)
    thread._tell(0)
    found = ThreadSums().resolve(thread.records)
    sums = [one for one in found if isinstance(one, SampledInterval)]
    events = [one for one in found if isinstance(one, SchedEvent)]
    assert len(sums) + len(events) == len(thread.records)
    runnable = sum(one.runnable_ns for one in sums)
    runnable += sum(e.end_ns - e.start_ns for e in events if e.state == ThreadState.RUNNABLE)
    blocked = sum(one.blocked_ns for one in sums)
    blocked += sum(e.end_ns - e.start_ns for e in events if e.state == ThreadState.BLOCKED)
    assert (runnable, blocked) == (thread.totals.runnable_ns, thread.totals.blocked_ns)
    assert sum(one.foreign_ns for one in sums) == sum(one.runnable_ns for one in sums)
    bounds = [(one.start_ns, one.end_ns) for one in sums]
    bounds += [(event.start_ns, event.end_ns) for event in events]
    reached_ns = 0
    for start_ns, end_ns in sorted(bounds):
        assert start_ns >= reached_ns  # nothing is told twice
        reached_ns = end_ns


@given(LIVES)
def test_the_partition_of_the_whole_time_is_right(life: list[tuple[str, int]]) -> None:
    thread = Thread()
    for what, duration_ns in life:
        getattr(thread, what)(duration_ns)
    thread._tell(0)
    partition = RankPartition("core", 0)
    for record in ThreadSums().resolve(thread.records):
        assert not isinstance(record, ThreadExit)
        partition.add(record)
    times = partition.main_times(1000, thread.now_ns)
    assert times is not None
    assert (times.running_ns, times.runnable_ns, times.blocked_ns) == (
        thread.totals.running_ns,
        thread.totals.runnable_ns,
        thread.totals.blocked_ns,
    )


def test_the_first_sum_of_a_thread_from_before_tells_nothing() -> None:
    thread = Thread(born_ns=1000)
    for _ in range(3):
        thread.run(5 * MS)
        thread.block(MS // 2)
    thread._tell(0)
    sums = ThreadSums()
    sums.begin(2 * MS)  # a change of level: what it did up to then was told in another way
    told = [one for one in sums.resolve(thread.records) if isinstance(one, SampledInterval)]
    assert [one.blocked_ns for one in told] == [MS // 2, MS // 2]


def test_a_number_that_another_thread_has_now_gives_no_negative_time() -> None:
    old, new = Thread(), Thread(born_ns=90 * MS)
    old.block(MS // 2)
    old.run(6 * MS)
    new.block(MS // 4)
    new.run(6 * MS)
    found = ThreadSums().resolve([*old.records, *new.records])  # its end was lost
    assert [one.blocked_ns for one in found if isinstance(one, SampledInterval)] == [MS // 2]
    ended = ThreadExit(80 * MS, 7, 7, 1, LEADER, "t", old.totals)
    found = ThreadSums().resolve([*old.records, ended, *new.records])
    blocked = [one.blocked_ns for one in found if isinstance(one, SampledInterval)]
    assert blocked == [MS // 2, MS // 4]
