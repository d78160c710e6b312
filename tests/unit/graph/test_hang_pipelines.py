"""Hangs of pipelines, played message by message: one host or device that stops is blamed or nobody, never a cycle.

stage 0   F0 F1 F2 F3 .. B0 .. B1        a stage sends its activations on and its gradients back; the rest
stage 1      F0 F1 F2 B0 F3 B1 ..        of the stages wait in a chain behind one that stops
stage 2         F0 B0 F1 B1 ..
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rootwalk.graph.hangs.judge import NO_MESSAGE, Hang, find_hang
from rootwalk.graph.reasons import Reason
from support.flight_dumps import FlightJob

GROUP = "0"
AHEAD = 6

# What a rank calls at once: (is a send, the other rank).
Batch = list[tuple[bool, int]]
Program = Callable[[int, int, int], list[Batch]]


def all_forward_first(stage: int, stages: int, parts: int) -> list[Batch]:
    forward: list[Batch] = []
    back: list[Batch] = []
    for _ in range(parts):
        forward += [[(False, stage - 1)]] * (stage > 0)
        forward += [[(True, stage + 1)]] * (stage < stages - 1)
        back += [[(False, stage + 1)]] * (stage < stages - 1)
        back += [[(True, stage - 1)]] * (stage > 0)
    return forward + back


def one_forward_one_back(stage: int, stages: int, parts: int) -> list[Batch]:
    """Activation and gradient of a pair of stages change places in one batch."""
    ahead = min(stages - stage - 1, parts)
    is_first, is_last = stage == 0, stage == stages - 1
    before, after = stage - 1, stage + 1
    program: list[Batch] = []
    for _ in range(ahead):
        program += [[(False, before)]] * (not is_first) + [[(True, after)]] * (not is_last)
    steady = parts - ahead
    program += [[(False, before)]] * (not is_first and steady > 0)
    for number in range(steady):
        if not is_last:
            program.append([(True, after), (False, after)])
        if not is_first:
            program.append([(True, before), *([(False, before)] if number < steady - 1 else [])])
    for _ in range(ahead):
        program += [[(False, after)]] * (not is_last) + [[(True, before)]] * (not is_first)
    return program


def round_and_round(stage: int, stages: int, parts: int) -> list[Batch]:
    """Each stage holds several parts of the model: the last one sends on to the first."""
    program: list[Batch] = []
    for number in range(parts):
        program += [[(False, (stage - 1) % stages)]] * (stage > 0 or number > 0)
        program += [[(True, (stage + 1) % stages)]] * (stage < stages - 1 or number < parts - 1)
    return program


@dataclass(slots=True)
class Play:
    """Hosts call ahead of their devices, which take the batches in order; see `run`."""

    stages: int
    programs: list[list[Batch]]
    is_buffered: bool
    last_call: dict[int, int]
    last_end: dict[int, int]
    job: FlightJob = field(init=False)

    def run(self) -> None:
        """Let hosts call and devices end until nothing moves.

        A send ends with its receive, or where the transport buffers as soon as its device gets to it.
        """
        ranks = range(self.stages)
        self.job = FlightJob(self.stages, {GROUP: ranks})
        called, done = [0] * self.stages, [0] * self.stages
        sent: dict[tuple[int, int], int] = {}
        taken: dict[tuple[int, int], int] = {}
        has_moved = True
        while has_moved:
            has_moved = False
            for rank in ranks:
                program = self.programs[rank]
                limit = min(self.last_call.get(rank, 999), len(program), done[rank] + AHEAD)
                while called[rank] < limit:
                    self._call(rank, program[called[rank]])
                    called[rank] += 1
                    has_moved = True
                if done[rank] >= min(called[rank], self.last_end.get(rank, 999)):
                    continue
                batch = program[done[rank]]
                if all(
                    self._can_end(rank, *message, called, done, sent, taken) for message in batch
                ):
                    for is_send, peer in batch:
                        key = (rank, peer) if is_send else (peer, rank)
                        counts = sent if is_send else taken
                        counts[key] = counts.get(key, 0) + 1
                    self._end(rank, len(batch))
                    done[rank] += 1
                    has_moved = True

    def _can_end(
        self,
        rank: int,
        is_send: bool,
        peer: int,
        called: list[int],
        done: list[int],
        sent: dict[tuple[int, int], int],
        taken: dict[tuple[int, int], int],
    ) -> bool:
        key = (rank, peer) if is_send else (peer, rank)
        if is_send:
            is_there = taken.get(key, 0) > sent.get(key, 0)
            return self.is_buffered or is_there or self._is_at(peer, False, rank, called, done)
        is_there = sent.get(key, 0) > taken.get(key, 0)
        return is_there or self._is_at(peer, True, rank, called, done)

    def _is_at(
        self, rank: int, is_send: bool, peer: int, called: list[int], done: list[int]
    ) -> bool:
        """Whether a rank's device has come to a message of this kind."""
        has_more = done[rank] < min(called[rank], self.last_end.get(rank, 999))
        return has_more and (is_send, peer) in self.programs[rank][done[rank]]

    def _call(self, rank: int, batch: Batch) -> None:
        for place, (is_send, peer) in enumerate(batch):
            call = self.job.send if is_send else self.job.receive
            call(rank, GROUP, peer, in_batch=place > 0)

    def _end(self, rank: int, count: int) -> None:
        unfinished = [e for e in self.job.entries[rank] if e["state"] != "completed"]
        for entry in unfinished[:count]:
            entry["state"] = "completed"


def accused(hang: Hang) -> set[tuple[Reason, tuple[int, ...]]]:
    return {(blame.reason, blame.ranks) for blame in hang.blames}


PROGRAMS = (all_forward_first, one_forward_one_back, round_and_round)


@pytest.mark.parametrize("is_buffered", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_pipeline_without_a_fault_ends(program: Program, is_buffered: bool) -> None:
    for stages in range(2, 7):
        play = Play(stages, [program(s, stages, 8) for s in range(stages)], is_buffered, {}, {})
        play.run()
        assert find_hang(play.job.records()).operations == ()


@pytest.mark.parametrize("is_buffered", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_host_that_stops_is_blamed_and_no_cycle_is_seen(
    program: Program, is_buffered: bool
) -> None:
    named = hung = 0
    for seed in range(120):
        choose = random.Random(seed)  # noqa: S311  (seeded faults)
        stages = choose.randrange(2, 8)
        programs = [program(s, stages, 8) for s in range(stages)]
        rank = choose.randrange(stages)
        stop = {rank: choose.randrange(len(programs[rank]))}
        play = Play(stages, programs, is_buffered, stop, {})
        play.run()
        hang = find_hang(play.job.records())
        assert accused(hang) <= {(Reason.NOT_JOINED, (rank,))}, (seed, stages, stop)
        hung += bool(hang.operations)
        named += bool(hang.blames)
    assert hung > 80
    assert named > 0.6 * hung


@pytest.mark.parametrize("is_buffered", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_device_that_stops_is_no_sure_cycle(program: Program, is_buffered: bool) -> None:
    # With buffers the dumps may be those of ranks that receive before they send: then it is said, but with little
    # confidence. Without, the messages that wait pair up, and nobody is blamed for them.
    for seed in range(120):
        choose = random.Random(seed)  # noqa: S311  (seeded faults)
        stages = choose.randrange(2, 8)
        programs = [program(s, stages, 8) for s in range(stages)]
        rank = choose.randrange(stages)
        stop = {rank: choose.randrange(len(programs[rank]))}
        play = Play(stages, programs, is_buffered, {}, stop)
        play.run()
        blames = find_hang(play.job.records()).blames
        assert is_buffered or not blames
        for blame in blames:
            is_cycle = blame.reason is Reason.COLLECTIVE_DEADLOCK
            assert not is_cycle or (rank in blame.ranks and blame.certainty <= NO_MESSAGE)


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_receives_in_a_ring_before_the_sends_are_a_cycle(stages: int, is_ahead: bool) -> None:
    # Each receives from the one before it first, and then sends to the next: nobody ever sends.
    job = FlightJob(stages, {GROUP: range(stages)})
    for rank in range(stages):
        job.receive(rank, GROUP, (rank - 1) % stages)
        if is_ahead:
            job.send(rank, GROUP, (rank + 1) % stages)
    (blame,) = find_hang(job.records()).blames
    assert (blame.reason, blame.ranks) == (Reason.COLLECTIVE_DEADLOCK, tuple(range(stages)))
    assert len(blame.cycle) == stages
