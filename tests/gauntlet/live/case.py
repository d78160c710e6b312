"""What a live case is: a job, what happens in it, and what has to be said while it lasts and at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

HANG, END, NEAR = "hang", "end", "near miss"
TORCHRUN, PLAIN = "torchrun", "plain"
# How a user ends a job that hangs; the runs of a case take turns.
CTRL_C, SIGTERM, KILL_LAUNCHER = "Ctrl-C", "SIGTERM", "kill -9 of the launcher"
ENDINGS = (CTRL_C, SIGTERM, KILL_LAUNCHER, CTRL_C, CTRL_C)
FAULT_RANK = 1


@dataclass(frozen=True, slots=True)
class Scene:
    """What acts from outside may use while the job runs.

    Attributes:
        folder: Of the run.
        run_pid: Process of `rootwalk run`.
        launcher_pid: Process of torchrun, or of the plain launcher.
        ranks: Process of each rank.
        write_truth: Writes down that the fault begins now: its rank (None for none).
    """

    folder: Path
    run_pid: int
    launcher_pid: int
    ranks: Mapping[int, int]
    write_truth: Callable[[int | None], None]


Act = Callable[[Scene], None]


@dataclass(frozen=True, slots=True)
class Given:
    """What a case needs beside its job, made before it and removed after it.

    Attributes:
        settings: For the fault, as `--setting NAME=VALUE`.
        environment: For the job and its watchers.
        act: What happens from outside when the fault step is reached; None for a fault in the rank itself.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    act: Act | None = None


def nothing(_: Path) -> AbstractContextManager[Given]:
    """Give nothing: the fault is in the rank itself."""
    return nullcontext(Given())


@dataclass(frozen=True, slots=True)
class Expected:
    """What is right.

    Attributes:
        rank: The rank that is to blame; None for none.
        reasons: Codes that are right by themselves.
        function: The function that the rank is in: with it, `NOT_JOINED` is right too; empty for none.
        kinds: Kinds of the finding that are right.
        line: What the first line of the final text contains, as a regular expression; empty for anything.
        is_finding: Whether a finding has to be there.
        tolerated: Codes that may be found for any ranks, where no rank is to blame: a program that fails on every rank.
    """

    rank: int | None = None
    reasons: tuple[str, ...] = ()
    function: str = ""
    kinds: tuple[str | None, ...] = ("hang",)
    line: str = ""
    is_finding: bool = True
    tolerated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveCase:
    """One case.

    Attributes:
        text: What happens, in a sentence.
        kind: `hang`, `end` or `near miss`.
        expected: What is right.
        fault: A name of `planted.FAULTS`; empty where it comes from outside.
        fault_ranks: Who has it; empty for every rank.
        fault_step: In which step.
        steps: Of the job; only jobs that end by themselves come to the last.
        step_s: Times of a step, s, of which the runs take turns.
        ranks: Numbers of ranks, likewise.
        launchers: Likewise.
        loop: `ddp` or `by_hand`.
        given: Makes what it needs.
        settings: For the fault.
        lasts_s: Of a near miss: how long no step ends, at least; 0 for a fault.
        needs_cpu: Whether it computes, so that nothing else may run beside it.
        keeps_stdin: Whether the job's standard input is a pipe that is never written to.
        script: Another command than the training script; empty for that one.
        ends_itself: Whether the job ends without anybody ending it.
        is_before_training: Whether the fault comes before the first step.
    """

    text: str
    kind: str
    expected: Expected
    fault: str = ""
    fault_ranks: tuple[int, ...] = (FAULT_RANK,)
    fault_step: int = 60
    steps: int = 100_000
    step_s: tuple[float, ...] = (0.2,)
    ranks: tuple[int, ...] = (2,)
    launchers: tuple[str, ...] = (TORCHRUN, PLAIN)
    loop: str = "ddp"
    given: Callable[[Path], AbstractContextManager[Given]] = nothing
    settings: Mapping[str, str] = field(default_factory=dict)
    lasts_s: float = 0.0
    needs_cpu: bool = False
    keeps_stdin: bool = False
    script: str = ""
    ends_itself: bool = False
    is_before_training: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """What one run of a case takes of those that its runs take turns in.

    Attributes:
        step_s: Time of a step, s.
        ranks: Number of ranks.
        launcher: `torchrun` or `plain`.
        ending: How the job is ended.
    """

    step_s: float
    ranks: int
    launcher: str
    ending: str


def choose(case: LiveCase, number: int) -> Choice:
    """Return what a run takes.

    Args:
        case: The case.
        number: Of the run, from 0.
    """
    return Choice(
        case.step_s[number % len(case.step_s)],
        case.ranks[number // 2 % len(case.ranks)],  # not always with the same launcher
        case.launchers[number % len(case.launchers)],
        ENDINGS[number % len(ENDINGS)],
    )
