"""Ranks that stand still, on a clock that the test moves, with real rings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rootwalk.ebpf.process_facts import ProcessFacts, ProcessReader, Usage
from rootwalk.ebpf.progress import ProgressWatch
from rootwalk.ebpf.reader import Occurrence
from rootwalk.instrumentation.communicator import Communicator
from rootwalk.instrumentation.flight_file import flight_path, write_flight
from rootwalk.instrumentation.semconv import TrainingProcessState, TrainingWaitKind
from rootwalk.instrumentation.shared_ring import RingReader, Stage
from support.live_check import check_occurrence
from support.rings import Rank

S = 1_000_000_000
ROUND_S = 0.5
RANK, COLLECTIVE = "training.rank.progress", "training.collective.progress"
STACK, FLIGHT = "training.rank.stack", "training.flight_recorder.dump"
IDLE, USUAL = "training.progress.idle_time", "training.progress.usual_time"


@dataclass
class Frames:
    """Where a thread stands."""

    pid: int
    tid: int
    name: str = "python"
    role: str = "main"
    frames: tuple[str, ...] = ("sleep (train.py:57)",)
    system_call: str | None = "clock_nanosleep"


@dataclass
class Snapshots:
    """Takes one stack, and remembers of whom."""

    taken: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)

    def take(self, pid: int, children: Collection[int] = ()) -> Sequence[Frames]:
        self.taken.append((pid, tuple(children)))
        return [Frames(pid, pid), Frames(pid, pid + 1, frames=())]

    def forget(self, pid: int) -> None:
        self.forgotten.append(pid)

    def close(self) -> None:
        pass


class Processes(ProcessReader):
    """A process that uses a CPU second and an MB a second, and never sleeps unless the test says so."""

    def __init__(self) -> None:
        self.reads = 0
        self.seconds = 0.0
        self.sleeps: int | None = 7

    def wakeups(self, pid: int, tid: int) -> int | None:
        self.reads += 1
        return self.sleeps

    def usage(self, pid: int, tid: int, children: Collection[int]) -> Usage:
        self.reads += 1
        return Usage(int(self.seconds * S), None, self.sleeps, int(self.seconds * 1_000_000))

    def facts(self, pid: int, tid: int) -> ProcessFacts:
        self.reads += 1
        return ProcessFacts(TrainingProcessState.SLEEPING, TrainingWaitKind.LOCK, "futex")

    def forget(self, pid: int) -> None:
        pass


@dataclass
class Watched:
    """A rank as the agent watches it."""

    slot: int
    pid: int
    ring: RingReader | None
    helpers: set[int] = field(default_factory=lambda: {12, 11})


class Bench:
    """A rank with a ring, a watch, and the clock of both."""

    def __init__(self, folder: Path, *, has_ring: bool = True, has_hooks: bool = False) -> None:
        self.rank = Rank(folder)
        self.clock = self.rank.clock
        self.clock.now_ns = 100 * S
        self.processes, self.snapshots = Processes(), Snapshots()
        self.watched = Watched(3, 4000, self.rank.reader if has_ring else None)
        self.watch = ProgressWatch(
            self.snapshots, self.processes, has_hooks=has_hooks, now=self.clock
        )

    def look(self) -> list[Occurrence]:
        found = self.watch.update([self.watched], ROUND_S)
        for one in found:
            check_occurrence(one)
        return found

    def wait(self, seconds: float) -> list[Occurrence]:
        """Look twice a second for so long."""
        found = []
        for _ in range(int(seconds / ROUND_S)):
            self.clock.now_ns += int(ROUND_S * S)
            self.processes.seconds += ROUND_S
            found += self.look()
        return found

    def step(self) -> None:
        """Run a step of a second."""
        for phase in ("forward", "backward", "optimizer"):
            now_ns = self.clock.now_ns
            self.rank.phase(phase, now_ns, now_ns + S // 4)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path)
    yield opened
    opened.rank.close()


def of(found: list[Occurrence], name: str) -> list[dict[str, Any]]:
    return [dict(one.attributes) for one in found if one.event == name]


def test_a_rank_that_moves_is_not_told_and_not_read(bench: Bench) -> None:
    for _ in range(60):
        bench.step()
        assert bench.look() == []
    assert bench.processes.reads == 0
    assert bench.snapshots.taken == []


def test_a_rank_that_stands_still_is_told_again_and_again(bench: Bench) -> None:
    bench.step()
    bench.look()
    idle = [one[IDLE] for one in of(bench.wait(1400), RANK)]
    often = [float(seconds) for seconds in range(5, 61, 5)]
    seldom = [float(seconds) for seconds in range(75, 601, 15)]
    assert idle == [*often, *seldom, *(float(s) for s in range(660, 1401, 60))]


def test_stacks_are_taken_a_few_times_and_of_the_children_too(bench: Bench) -> None:
    bench.step()
    bench.look()
    found = [one for one in bench.wait(500) if one.event == STACK]
    began = 100 * S + 3 * S // 4
    assert [(one.mono_ns - began) / S for one in found] == [10, 13, 16, 30, 60, 120, 240, 480]
    assert set(bench.snapshots.taken) == {(4000, (11, 12))}
    assert found[0].attributes == {
        "process.pid": 4000,
        "thread.id": 4000,
        "thread.name": found[0].attributes["thread.name"],
        "training.thread.role": "main",
        "training.stack.frames": ("sleep (train.py:57)",),
        "training.wait.system_call": "clock_nanosleep",
    }


def test_the_flight_recorder_that_a_rank_has_written_is_sent_once(bench: Bench) -> None:
    bench.step()
    bench.look()
    write_flight(bench.rank.writer.path, '{"version": "2.9"}')
    found = [one for one in bench.wait(60) if one.event == FLIGHT]
    assert [(one.text, dict(one.attributes)) for one in found] == [
        ('{"version": "2.9"}', {"process.pid": 4000})
    ]
    assert not flight_path(bench.rank.writer.path).exists()


def test_what_it_does_instead_is_told_since_it_last_moved(bench: Bench) -> None:
    bench.step()
    bench.look()
    bench.processes.sleeps = 9
    first, second = of(bench.wait(10), RANK)
    assert first["training.process.state"] == "sleeping"
    assert first["training.wait.kind"] == "lock"
    assert first["training.wait.system_call"] == "futex"
    # Noted after two seconds without a movement.
    assert first["training.progress.cpu_time"] == 3.0
    assert second["training.progress.io_size"] == 8_000_000
    assert second["training.progress.wakeups"] == 0
    assert "training.progress.main_cpu_time" not in second
    assert first["training.step.number"] == 0
    assert first["training.progress.stage"] == "training"
    assert first["training.progress.is_compiling"] is False


def test_it_is_told_once_when_it_goes_on(bench: Bench) -> None:
    bench.step()
    bench.look()
    bench.wait(7)
    bench.step()
    found = bench.look()
    assert [one.event for one in found] == [RANK]
    assert found[0].attributes[IDLE] == 0.0
    assert "training.process.state" not in found[0].attributes
    assert bench.look() == []
    bench.wait(3)
    bench.step()
    assert bench.look() == []  # nothing was told that could be over


def test_the_usual_time_is_the_longest_before_and_not_that_of_the_first_step(bench: Bench) -> None:
    bench.look()
    assert USUAL not in of(bench.wait(40), RANK)[-1]
    bench.step()  # the first, after 40 s
    bench.look()
    (first,) = of(bench.wait(8), RANK)[:1]
    assert first[USUAL] == 0.75
    bench.step()  # after a pause of 8 s
    bench.look()
    (second,) = of(bench.wait(6), RANK)
    assert second[USUAL] == pytest.approx(8.75)


def test_communicators_are_told_at_the_moment_of_their_rank(bench: Bench) -> None:
    small = Communicator(bench.rank.tracker, "a|2|gloo|default_pg")
    large = Communicator(bench.rank.tracker, "b|4|nccl|tp", members=(0, 2, 4, 6))
    Communicator(bench.rank.tracker, "c|2|gloo|never called")
    bench.step()
    small.begin(1, "all_reduce", 64, is_p2p=False)
    large.begin(2, "broadcast", 8, is_p2p=False, root=4)
    large.end(2, is_known=False)
    bench.look()
    found = bench.wait(5)
    assert len({one.mono_ns for one in found}) == 1
    one, other = of(found, COLLECTIVE)
    assert one == {
        "collective.communicator.id": "a",
        "collective.communicator.name": "default_pg",
        "collective.communicator.size": 2,
        "collective.communicator.ranks": (0, 1),  # as large as the job
        "collective.backend": "gloo",
        "collective.is_point_to_point": False,
        "collective.sequence": 1,
        "collective.ended_sequence": 0,
        "collective.operation": "all_reduce",
        "collective.size": 64,
        "collective.pending_time": 5.0,
    }
    assert other["collective.communicator.ranks"] == (0, 2, 4, 6)
    assert (other["collective.root"], other["collective.ended_sequence"]) == (4, 0)
    assert "collective.pending_time" not in other


def test_an_agent_that_stood_still_itself_counts_none_of_that(bench: Bench) -> None:
    group = Communicator(bench.rank.tracker, "a|2|gloo|g")
    bench.step()
    group.begin(1, "all_reduce", 64, is_p2p=False)
    bench.look()
    bench.wait(3)
    bench.clock.now_ns += 300 * S  # everything stood still
    assert bench.look() == []
    found = bench.wait(3)
    assert [one[IDLE] for one in of(found, RANK)] == [5.0]
    assert [one["collective.pending_time"] for one in of(found, COLLECTIVE)] == [5.0]


def test_stacks_that_take_long_are_no_stoppage(bench: Bench) -> None:
    def take(pid: int, children: Collection[int] = ()) -> Sequence[Frames]:
        bench.clock.now_ns += 8 * S
        return []

    bench.snapshots.take = take  # type: ignore[method-assign]
    bench.step()
    bench.look()
    bench.wait(9.5)
    bench.wait(1)
    (told,) = of(bench.wait(0.5), RANK)
    assert told[IDLE] > 18.0


def test_a_rank_that_moved_while_the_agent_stood_still_is_not_idle(bench: Bench) -> None:
    bench.step()
    bench.look()
    bench.wait(2)
    bench.step()
    bench.clock.now_ns += 30 * S
    assert bench.look() == []
    bench.clock.now_ns += S // 2
    bench.look()
    bench.step()
    bench.look()
    (told,) = of(bench.wait(6), RANK)
    assert told[USUAL] < 5


def test_an_agent_that_comes_late_knows_since_when(bench: Bench) -> None:
    bench.step()
    bench.clock.now_ns += 40 * S
    (told,) = of(bench.look(), RANK)
    assert told[IDLE] == 40.0


def test_an_agent_that_comes_late_knows_since_when_a_rank_waits_for_the_others(
    bench: Bench,
) -> None:
    bench.rank.tracker.begin_rendezvous()
    bench.clock.now_ns += 20 * S
    (told,) = of(bench.look(), RANK)
    assert told[IDLE] == 20.0


def test_a_compilation_is_told_while_it_is_open(bench: Bench) -> None:
    bench.step()
    start = bench.rank.tracker.begin_compilation()
    bench.look()
    assert [one["training.progress.is_compiling"] for one in of(bench.wait(6), RANK)] == [True]
    bench.rank.tracker.end_compilation(start, is_main=True)
    (told,) = bench.look()
    assert told.attributes["training.progress.is_compiling"] is False


def test_the_stage_before_the_first_step_is_told(bench: Bench) -> None:
    stages = []
    begins: list[Callable[[], None]] = [
        lambda: None,
        bench.rank.tracker.begin_rendezvous,
        lambda: bench.rank.tracker.end_rendezvous(is_made=True),
        bench.step,
    ]
    for begin in begins:
        begin()
        bench.look()
        stages += [one["training.progress.stage"] for one in of(bench.wait(6), RANK)]
    assert stages == ["started", "rendezvous", "initialised", "training"]
    assert bench.rank.reader.stage == Stage.TRAINING


def test_a_rank_without_a_ring_moves_when_its_thread_goes_to_sleep(tmp_path: Path) -> None:
    bench = Bench(tmp_path, has_ring=False)
    for sleeps in range(10):
        bench.processes.sleeps = sleeps
        bench.clock.now_ns += 2 * S
        assert bench.look() == []
    (told,) = of(bench.wait(7), RANK)
    assert told[IDLE] == 6.0  # it is looked at every 2 s
    assert "training.progress.stage" not in told
    assert "training.progress.is_compiling" not in told
    bench.processes.sleeps = None  # gone
    assert bench.wait(30) == []
    bench.rank.close()


def test_a_rank_with_hooks_and_no_ring_has_not_come_to_its_process_group(tmp_path: Path) -> None:
    bench = Bench(tmp_path, has_ring=False, has_hooks=True)
    bench.look()
    told = of(bench.wait(7), RANK)
    assert {one["training.progress.stage"] for one in told} == {"started"}
    bench.watched.ring = bench.rank.reader
    assert [one.attributes[IDLE] for one in bench.look()] == [0.0]
    bench.rank.close()


def test_a_rank_that_has_ended_is_forgotten(bench: Bench) -> None:
    bench.look()
    bench.watch.forget(3, 4000)
    assert bench.snapshots.forgotten == [4000]
    assert bench.wait(4) == []
