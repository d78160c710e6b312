"""The frames that explain why a rank spends more time than its peers, or than itself before.

    culprit   main;step;backward 0.40          peers   main;step;backward 0.40
              main;step;log;write 0.06

    seconds in log      0.06 of 0.06 are more than the peers'
    seconds in main     0.06 of 0.46

A frame that the others have as well tells little, and one that holds a part of the excess tells a part of it: the
product of both, excess times its part of the frame's own time, is highest at the place where the stacks part. Frames
that are always met together say the same; of those the innermost one that is the job's own code is named. What is
left without the stacks of that frame is asked again. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from rootwalk.graph.profiles.frames import Frame, Stack

__all__ = ["MAX_FRAMES", "FrameExcess", "StackTimes", "find_excess", "reference_of"]

# Frames that are named: people read three.
MAX_FRAMES: Final = 3
# A frame must explain so much of what there is to explain, stand out by so much of its own time, and by so many
# standard deviations of its samples.
MIN_PART: Final = 0.2
MIN_DIFFERENCE: Final = 0.1
MIN_SIGMAS: Final = 3.0
# A second frame that explains less than this part of what the first one does is noise beside it.
MIN_OF_FIRST: Final = 0.25
# Scores that differ by less are the same stacks; of the job's own code so much less will do: that can be changed.
TIE: Final = 0.005
OWN_TIE: Final = 0.10
# A caller that has so much of a frame's time is the one that people look for.
MIN_CALLER: Final = 0.5


@dataclass(slots=True)
class StackTimes:
    """What was measured of one rank in one stretch of time.

    Attributes:
        seconds: A step, by stack.
        elsewhere: The same stretch in the other kind of time (on a CPU, off it), only to tell frames apart.
        steps: How many steps the profiles cover, whole ones and parts.
        period_s: Between two samples; 0 where everything was measured.
    """

    seconds: dict[Stack, float] = field(default_factory=dict)
    elsewhere: dict[Stack, float] = field(default_factory=dict)
    steps: float = 0.0
    period_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FrameExcess:
    """A frame with its seconds a step, and those of the peers' median and of its own history; None unknown.

    `caller` is the job's own function that called it, where it is none itself.
    """

    frame: Frame
    caller: Frame | None
    value: float
    peers: float | None
    history: float | None

    @property
    def label(self) -> str:
        """What people read: the frame, after the caller that is told."""
        return (
            self.frame.label if self.caller is None else f"{self.caller.label} > {self.frame.label}"
        )


def find_excess(
    culprit: StackTimes,
    peers: Sequence[StackTimes],
    history: StackTimes | None,
    explained_s: float,
    frames: Sequence[Frame],
) -> list[FrameExcess]:
    """Return the frames that explain an excess, the one that tells most first; none where nobody can compare.

    Args:
        culprit: The rank in the window.
        peers: Other ranks in the window.
        history: The rank before it; None where nobody sampled it.
        explained_s: Seconds a step that are to be explained.
        frames: By their numbers.
    """
    if not peers and history is None:
        return []
    found: list[FrameExcess] = []
    taken: set[int] = set()
    best_score = 0.0
    while len(found) < MAX_FRAMES:
        times = _Inclusive(culprit, peers, history, frozenset(taken))
        scores = {
            number: score
            for number in times.culprit
            if (score := times.score(number, explained_s, culprit)) > 0.0
        }
        if not scores:
            break
        top = max(scores.values())
        if top < MIN_OF_FIRST * best_score:
            break
        best_score = best_score or top
        number = _choose(scores, culprit.seconds, frames)
        found.append(times.describe(number, frames, culprit))
        taken.add(number)
    return found


def reference_of(peers: Sequence[StackTimes], history: StackTimes | None) -> dict[Stack, float]:
    """Return what stacks usually take: the median of the peers, without any what the rank took before."""
    if not peers:
        return {} if history is None else dict(history.seconds)
    stacks = {stack for peer in peers for stack in peer.seconds}
    return {stack: median(peer.seconds.get(stack, 0.0) for peer in peers) for stack in stacks}


class _Inclusive:
    """Seconds a step in each frame and all that it called, without the stacks of some frames."""

    def __init__(
        self,
        culprit: StackTimes,
        peers: Sequence[StackTimes],
        history: StackTimes | None,
        without: frozenset[int],
    ) -> None:
        self.culprit = _by_frame(culprit.seconds, without)
        self._elsewhere = _by_frame(culprit.elsewhere, without)
        self._peers = [_by_frame(peer.seconds, without) for peer in peers]
        self._history = None if history is None else _by_frame(history.seconds, without)
        self._without = without

    def usual(self, number: int) -> tuple[float | None, float | None]:
        """Return what a frame takes the peers, and what it took before."""
        peers = median(peer.get(number, 0.0) for peer in self._peers) if self._peers else None
        return peers, None if self._history is None else self._history.get(number, 0.0)

    def score(self, number: int, explained_s: float, culprit: StackTimes) -> float:
        """Return how much a frame tells, 0 where it may be chance."""
        value = self.culprit[number]
        # A rank may always have had what its peers have not, and all may have got more of something.
        usual = max(known for known in self.usual(number) if known is not None)
        excess = value - usual
        if excess < MIN_PART * explained_s or excess < MIN_DIFFERENCE * value:
            return 0.0
        if culprit.steps <= 0.0:
            return 0.0
        # Samples are counted: of n the scatter is the root of n.
        sigma = math.sqrt((value + usual) * culprit.period_s / culprit.steps)
        if excess < MIN_SIGMAS * sigma:
            return 0.0
        return excess * excess / (value + self._elsewhere.get(number, 0.0))

    def describe(self, number: int, frames: Sequence[Frame], culprit: StackTimes) -> FrameExcess:
        """Return a frame with its seconds, and who called it."""
        frame = frames[number]
        caller = None
        if not frame.is_own_code:
            caller = _caller(number, culprit.seconds, self.culprit[number], frames, self._without)
        return FrameExcess(frame, caller, self.culprit[number], *self.usual(number))


def _by_frame(seconds: Mapping[Stack, float], without: frozenset[int]) -> dict[int, float]:
    result: dict[int, float] = {}
    for stack, value in seconds.items():
        members = set(stack)  # a recursion is one frame
        if without and not without.isdisjoint(members):
            continue
        for number in members:
            result[number] = result.get(number, 0.0) + value
    return result


def _choose(
    scores: Mapping[int, float], seconds: Mapping[Stack, float], frames: Sequence[Frame]
) -> int:
    """Return which of the frames that tell most to name: the innermost of the job's own, else the outermost."""
    top = max(scores.values())
    tied = {number for number, score in scores.items() if score >= top * (1.0 - TIE)}
    near = {number for number, score in scores.items() if score >= top * (1.0 - OWN_TIE)}
    longest = max(
        (stack for stack in seconds if not tied.isdisjoint(stack)),
        key=lambda stack: (len(tied.intersection(stack)), seconds[stack], stack),
    )
    best = [number for number in longest if number in tied and frames[number].is_own_code]
    own = best or [number for number in longest if number in near and frames[number].is_own_code]
    return own[-1] if own else next(number for number in longest if number in tied)


def _caller(
    number: int,
    seconds: Mapping[Stack, float],
    total: float,
    frames: Sequence[Frame],
    without: frozenset[int],
) -> Frame | None:
    """Return the job's own function from which a frame was reached for most of its time."""
    by_caller: dict[int, float] = {}
    for stack, value in seconds.items():
        if number not in stack or not without.isdisjoint(stack):
            continue
        above = stack[: stack.index(number)]
        own = next((n for n in reversed(above) if frames[n].is_own_code), None)
        if own is not None:
            by_caller[own] = by_caller.get(own, 0.0) + value
    if not by_caller:
        return None
    best = max(by_caller, key=lambda n: (by_caller[n], frames[n]))
    return frames[best] if by_caller[best] >= MIN_CALLER * total else None
