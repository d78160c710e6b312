"""Which rank of a job failed first: synthetic ends of 2, 4 and 64 ranks on one and two hosts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rootwalk.graph.ends.events import (
    LastStep,
    ProcessEvents,
    RankEnd,
    RankException,
    RunEnd,
    SentSignal,
)
from rootwalk.graph.ends.failure import EndKind, JobFailure, find_failure

MS = 1_000_000
SECOND = 1_000 * MS
STEP_NS = 100 * MS
# The last steps end here.
T = 1_000 * SECOND
LAUNCHER = 900


@dataclass
class Story:
    """What happened to the ranks of a job, in ms after the last step."""

    ranks: int = 2
    hosts: int = 1
    ends: list[RankEnd] = field(default_factory=list)
    signals: list[SentSignal] = field(default_factory=list)
    exceptions: list[RankException] = field(default_factory=list)
    run: RunEnd | None = None

    def host(self, rank: int) -> str:
        return f"h{rank * self.hosts // self.ranks}"

    def end(
        self, rank: int, ms: float, code: int | None = None, signal: str | None = None
    ) -> Story:
        host, time_ns = self.host(rank), T + round(ms * MS)
        self.ends.append(RankEnd(rank, time_ns, host, host, 1000 + rank, code, signal))
        return self

    def sent(self, rank: int, ms: float, name: str, sender: int | None, by: str = "x") -> Story:
        self.signals.append(SentSignal(rank, T + round(ms * MS), name, sender, by))
        return self

    def raised(self, rank: int, ms: float, name: str, frame: str = "step (train.py:57)") -> Story:
        host, time_ns = self.host(rank), T + round(ms * MS)
        self.exceptions.append(
            RankException(rank, time_ns, host, host, 1000 + rank, name, (frame,))
        )
        return self

    def ran(
        self, ms: float, code: int | None = 1, signal: str | None = None, by: str = "command"
    ) -> Story:
        self.run = RunEnd(T + round(ms * MS), None if signal else code, signal, by)
        return self

    def launcher_ends_others(self, but: int, ms: float) -> Story:
        for rank in range(self.ranks):
            if rank != but:
                self.sent(rank, ms, "SIGTERM", LAUNCHER, "torchrun")
                self.end(rank, ms + 20, signal="SIGTERM")
        return self

    def judge(self, *, uncertainty_ms: float = 0.0, is_aligned: bool = True) -> JobFailure | None:
        def by_time(one: RankEnd | SentSignal | RankException) -> int:
            return one.time_ns

        steps = {
            rank: LastStep(99, T - STEP_NS, T, self.host(rank), self.host(rank))
            for rank in range(self.ranks)
        }
        events = ProcessEvents(
            (),
            tuple(sorted(self.ends, key=by_time)),
            tuple(sorted(self.signals, key=by_time)),
            steps,
            tuple(sorted(self.exceptions, key=by_time)),
            () if self.run is None else (self.run,),
        )
        return find_failure(
            events,
            usual_step_ns=STEP_NS,
            uncertainty_ns=uncertainty_ms * MS,
            is_aligned=is_aligned,
            world_size=self.ranks,
        )


def found(failure: JobFailure | None) -> tuple[EndKind, int | None] | None:
    if failure is None:
        return None
    return failure.kind, None if failure.culprit is None else failure.culprit.rank


@pytest.mark.parametrize("ranks", [2, 4, 64])
@pytest.mark.parametrize("hosts", [1, 2])
def test_rank_that_failed_first_among_its_victims(ranks: int, hosts: int) -> None:
    story = Story(ranks, hosts).raised(1, 50, "ValueError").end(1, 900, code=1)
    story.raised(0, 60, "RuntimeError", "backward (train.py:60)").end(0, 500, code=1)
    story.launcher_ends_others(1, 1000).ran(1500)
    failure = story.judge(uncertainty_ms=1.0)
    assert found(failure) == (EndKind.EXCEPTION, 1)
    assert failure is not None
    assert 0 in failure.victims


def test_lost_connection_that_is_seen_first_is_the_victim() -> None:
    story = Story(4, 2).raised(0, 50, "DistBackendError").end(0, 90, code=1)
    story.raised(3, 400, "ValueError").end(3, 800, code=1).ran(1500)
    assert found(story.judge(uncertainty_ms=1.0)) == (EndKind.EXCEPTION, 3)


@pytest.mark.parametrize(
    ("signal", "kind"), [("SIGKILL", EndKind.KILLED), ("SIGSEGV", EndKind.CRASH)]
)
def test_signals(signal: str, kind: EndKind) -> None:
    story = Story(2).sent(1, 10, signal, 4411, "bash").end(1, 11, signal=signal)
    story.raised(0, 15, "RuntimeError").end(0, 300, code=1).ran(900)
    assert found(story.judge()) == (kind, 1)


def test_exit_code_of_one_rank_and_the_launcher_s_kill_of_the_other() -> None:
    story = Story(2).end(1, 10, code=1)
    story.sent(0, 20, "SIGKILL", LAUNCHER, "srun").end(0, 21, signal="SIGKILL").ran(100)
    assert found(story.judge()) == (EndKind.EXIT_CODE, 1)


def test_rank_killed_by_hand_and_the_others_by_the_launcher() -> None:
    story = Story(4).sent(2, 10, "SIGTERM", 77, "bash").end(2, 12, signal="SIGTERM")
    story.launcher_ends_others(2, 100).ran(500)
    assert found(story.judge()) == (EndKind.KILLED, 2)


def test_scheduler_that_ends_all_ranks_accuses_nobody() -> None:
    story = Story(4, 2)
    for rank in range(4):
        story.sent(rank, 10 + rank, "SIGTERM", 50 + rank // 2, "slurmstepd")
        story.end(rank, 40 + rank, signal="SIGTERM")
    assert found(story.judge()) == (EndKind.TERMINATED, None)


@pytest.mark.parametrize("how", ["KeyboardInterrupt", "ValueError"])
def test_what_follows_ctrl_c_accuses_nobody(how: str) -> None:
    story = Story(2).sent(0, 5, "SIGINT", None).sent(1, 5, "SIGINT", None)
    story.raised(1, 10, how).end(1, 100, code=1).end(0, 120, signal="SIGINT")
    assert found(story.ran(200, code=130, by="user").judge()) == (EndKind.INTERRUPTED, None)


def test_rank_that_failed_before_the_user_pressed_a_key_is_named() -> None:
    story = Story(2).raised(1, 50, "ValueError").end(1, 300, code=1)
    story.sent(0, 30_000, "SIGINT", None).end(0, 30_100, signal="SIGINT")
    assert found(story.ran(30_200, by="user").judge()) == (EndKind.EXCEPTION, 1)


def test_launcher_that_is_killed_is_no_rank() -> None:
    story = Story(2).ran(10, signal="SIGKILL")
    story.raised(0, 300, "DistNetworkError").end(0, 400, code=1).end(1, 2500, signal="SIGTERM")
    assert found(story.judge()) == (EndKind.COMMAND_KILLED, None)


def test_watchdog_s_abort_of_a_rank_that_waited_blames_nobody() -> None:
    story = Story(2).sent(0, 600_000, "SIGABRT", 1000, "python").end(0, 600_000, signal="SIGABRT")
    story.sent(1, 600_500, "SIGTERM", LAUNCHER, "torchrun").end(1, 600_600, signal="SIGTERM")
    assert found(story.ran(601_000).judge()) == (EndKind.ABORTED, None)


def test_abort_in_the_middle_of_steps_is_a_crash() -> None:
    story = Story(2).sent(0, 30, "SIGABRT", 1000, "python").end(0, 31, signal="SIGABRT")
    assert found(story.launcher_ends_others(0, 100).ran(400).judge()) == (EndKind.CRASH, 0)


def test_two_that_fail_within_what_clocks_can_tell() -> None:
    story = Story(4, 2).raised(0, 50, "ValueError").raised(3, 50.5, "KeyError")
    story.end(0, 90, code=1).end(3, 90, code=1).ran(500)
    failure = story.judge(uncertainty_ms=2.0)
    assert failure is not None
    assert (found(failure), failure.rivals) == ((EndKind.EXCEPTION, 0), (3,))
    assert story.judge(uncertainty_ms=0.1) != failure


def test_all_ranks_that_fail_alike() -> None:
    story = Story(4).ran(900)
    for rank in range(4):
        story.raised(rank, 50 + rank, "KeyError").end(rank, 200 + rank, code=1)
    failure = story.judge()
    assert failure is not None
    assert (found(failure), failure.alike) == ((EndKind.EXCEPTION, 0), (1, 2, 3))


def test_ends_without_codes_come_in_the_order_of_their_absence() -> None:
    story = Story(2).end(1, 1000).end(0, 9000).ran(9500)
    failure = story.judge()
    assert failure is not None
    assert (found(failure), failure.rivals) == ((EndKind.RANK_GONE, 1), ())


def test_hosts_whose_clocks_nothing_compares_name_only_the_only_one() -> None:
    story = Story(2, 2).raised(1, 50, "ValueError").end(1, 90, code=1)
    story.raised(0, 10, "RuntimeError").end(0, 90, code=1).ran(500)
    assert found(story.judge(is_aligned=False)) == (EndKind.EXCEPTION, 1)
    story = Story(2, 2).end(1, 90, code=1).end(0, 80, signal="SIGKILL").ran(500)
    assert found(story.judge(is_aligned=False)) == (EndKind.COMMAND_FAILED, None)


def test_end_of_all_with_code_0_is_well() -> None:
    assert found(Story(2).end(0, 10, code=0).end(1, 11, code=0).judge()) == (
        EndKind.COMPLETED,
        None,
    )
    assert found(Story(2).ran(10, code=0).judge()) == (EndKind.COMPLETED, None)


def test_ends_of_which_only_the_absence_is_known_may_be_good_ones() -> None:
    assert Story(2).end(1, 100).end(0, 900).judge() is None
    assert Story(2).end(1, 100).judge() is None
    assert found(Story(2).end(1, 100).end(0, 900).ran(1000, code=0).judge()) == (
        EndKind.COMPLETED,
        None,
    )


def test_job_that_goes_on_has_no_end() -> None:
    assert Story(2).judge() is None
    assert Story(2).end(0, 10, code=0).judge() is None
