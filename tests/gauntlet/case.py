"""What a case is: a workload, what is done to it, and what a verdict has to say."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from gauntlet import cases
from gauntlet.workloads import DDP, Workload
from rootwalk.graph.commands.demo_faults import Target

NOBODY = "nobody"
RANK = "the disturbed rank"
OTHER = "the other rank"
NO_RANK = "no rank"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a disturbance itself has counted, read before any verdict is.

    Attributes:
        amount: What it did.
        unit: Of what.
        least: So much has to be there for the run to count.
    """

    amount: float
    unit: str
    least: float

    @property
    def is_enough(self) -> bool:
        """Whether the disturbance was there at all."""
        return self.amount >= self.least


class Disturbance(Protocol):
    """Something that is done to a job; `prepare` before it, `start` in it, `stop` after it and in any case."""

    def prepare(self, rank: int, folder: Path) -> None:
        """Make sure that it can be had here.

        Args:
            rank: The rank that it is meant for.
            folder: For files of its own; exists until after `stop`.

        Raises:
            UnavailableError: If it cannot, with the reason.
        """

    def options(self) -> list[str]:
        """Return what `buggy_training.py` is to be told; nothing for what comes from outside."""

    def start(self, target: Target) -> None:
        """Begin."""

    def effect(self) -> Effect:
        """Return what was done up to now; called before `stop`, and while the job may have ended."""

    def stop(self) -> None:
        """End and leave nothing behind; safe without start and twice."""


@runtime_checkable
class CanPause(Disturbance, Protocol):
    """A disturbance that can be switched off and on again in a job, at once and as often as one likes."""

    def pause(self) -> None:
        """Leave the job as it was before `start`."""

    def resume(self) -> None:
        """Do again what `start` did."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What a verdict has to say.

    Attributes:
        who: `RANK`, `OTHER` (of two), `NO_RANK` (a cause, but no rank is to blame) or `NOBODY` (healthy).
        reasons: Codes that are right.
        layers: Layers that are right.
        kind: `slow`, `hang`, or None where the job ends by it.
    """

    who: str
    reasons: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    kind: str | None = "slow"


@runtime_checkable
class NeedsEnvironment(Disturbance, Protocol):
    """A disturbance that takes more than `start`: the job and its watchers run with this environment."""

    def environment(self) -> dict[str, str]:
        """Return the variables."""


ACCUSE_NOBODY = Truth(NOBODY)


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes:
        text: What is done to which process, in a sentence.
        truth: What a verdict has to say.
        disturbance: Makes what is done; None for a healthy run.
        also: The second cause of a pair; a verdict has to have both first, in any order.
        looks_like: What it must not be taken for, or which fault this near miss looks like.
        workload: The job.
        hang: What a rank does, once, of `hanging_training.py`; None for all cases that do not hang.
        may_say: Codes that a verdict on a near miss may give, without a rank: it costs all ranks the same.
        is_quick: Whether it is one of the few that run on every change.
        may_fail: Whether the job ends with an error by what is done to it; its verdict counts all the same.
        profile_hz: How often stacks are taken of a job that hangs; 0 where its dumps are all there is.
        not_here: Why it cannot be had on any machine that this was tried on; None where it can.
    """

    text: str
    truth: Truth
    disturbance: Callable[[], Disturbance] | None
    looks_like: str = ""
    workload: Workload = DDP
    hang: str | None = None
    may_say: tuple[str, ...] = ()
    is_quick: bool = False
    not_here: str | None = None
    also: Truth | None = None
    may_fail: bool = False
    profile_hz: int = 0

    @property
    def is_fault(self) -> bool:
        """Whether somebody or something is to be named."""
        return self.truth.who != NOBODY

    @property
    def costs_nothing(self) -> bool:
        """Whether it is a near miss that may not cost its job anything."""
        return not self.is_fault and self.disturbance is not None and not self.may_say


def load_cases() -> dict[str, Case]:
    """Return all cases by the name of their file."""
    found = {}
    for module in pkgutil.iter_modules(cases.__path__):
        case = importlib.import_module(f"gauntlet.cases.{module.name}").CASE
        assert isinstance(case, Case), module.name
        found[module.name] = case
    return found
