"""What a rule of counters is: the reasons that it comes out of, what it counts, and what that cost.

Data only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rootwalk.graph.reasons import Reason, Signal

__all__ = ["ABSENT", "Counter", "CounterRule", "Formula", "Kind", "Selection", "any_of"]

# Among the values of a selection: what has no such attribute.
ABSENT = ""
# Attribute and the values of it that count; no values: any.
Selection = tuple[str, frozenset[str]]


class Kind(StrEnum):
    """How a counter tells that something is wrong."""

    GROWTH = "growth"  # a sum that grows faster
    PART = "part"  # a sum that is a larger part of another
    RISE = "rise"  # a level that rises
    COUNT = "count"  # a level of things that are counted: one more of them
    LONGER = "longer"  # the same, of a time that the same work takes: from a small part on
    FALL = "fall"  # a level that falls
    EVENT = "event"  # a sum that stands still in healthy times
    SINCE = "since"  # the same, and what it did goes on: everything from its first move on
    MORE = "more"  # a sum of which a step has more
    LOOKS = "looks"  # the same, of what every look finds some of
    DROP = "drop"  # a sum that grows more slowly
    STEADY = "steady"  # a level that was read and did not move
    ARISEN = "arisen"  # a level that was nothing until about the first slow step
    EVEN = "even"  # a sum of which a step has as much as before, and some


class Formula(StrEnum):
    """What a movement costs, as `formulas` computes it."""

    NONE = "none"
    TIMEOUTS = "timeouts"  # at most so much
    SECONDS = "seconds"
    SECONDS_BOUND = "seconds_bound"  # at most so much
    TRANSFER_BY_LEVEL = "transfer_by_level"
    RUNNING_BY_PART = "running_by_part"
    RUNNING_BY_LEVEL = "running_by_level"
    PAGE_WAITS = "page_waits"
    FAR_PAGES = "far_pages"  # at most so much
    SWAPPED_PAGES = "swapped_pages"  # at most so much
    STEP_BY_LEVEL = "step_by_level"  # at most so much
    STEP_BY_GROWTH = "step_by_growth"  # at most so much


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter.

    `sensor` sends it; `where` are the attributes that its points must have; `device` the attribute that names what is
    counted, None for the host or the rank itself; `over` are the points that a PART is a part of. `number` counts what
    the counter is the time of: there must be more of these too, and not at the others alike. What takes longer without
    being done more often waits for somebody else.
    """

    signal: Signal
    sensor: str
    kind: Kind
    formula: Formula
    where: tuple[Selection, ...] = ()
    device: str | None = None
    is_of_rank: bool = False
    over: tuple[Selection, ...] = ()
    number: Counter | None = None
    # It speaks only of a rank that came to another's CPUs, and of both alike: who came is told by where they stood.
    is_of_move: bool = False


@dataclass(frozen=True, slots=True)
class CounterRule:
    """What lets a reason be told out of others.

    `excluded_by` are reasons whose own counters must not have moved in the same place; `stands_out` whether the
    culprit's counter must move more than those of others: what all have alike makes nobody late. Of a cause that all
    ranks have alike every rank's counter must have moved.
    """

    reason: Reason
    refines: frozenset[Reason]
    node: str
    place: str
    counters: tuple[Counter, ...]
    excluded_by: frozenset[Reason] = field(default_factory=frozenset)
    # What the same rank loses for these is the same fault's: one finding has it all.
    includes: frozenset[Reason] = field(default_factory=frozenset)
    # And for these, where it is no more than what the counter's own cause costs.
    includes_less: frozenset[Reason] = field(default_factory=frozenset)
    stands_out: bool = False
    # What there must be as much of in the slow steps as they lost, s; or that much more than before.
    needs: Counter | None = None
    needs_more: bool = False
    # Or at least half as much as the counter itself.
    needs_alike: bool = False
    # Where nobody counts that: what there must have been before the slow steps, and no more of in them.
    needs_else: Counter | None = None
    # The sensor that sees what the counter is about; where it was there, it has told it already.
    unless: str | None = None
    # What must not have moved with the slow steps, in the same place; where nobody counts it, nothing has.
    quiet: tuple[Counter, ...] = ()
    # What there must be nothing of at all in the same place.
    absent: tuple[Counter, ...] = ()
    # Times of calls in one of which the lost time must have passed, where every slow step makes some.
    waits: tuple[Counter, ...] = ()
    # Out of these the rule tells its reason only where such calls are counted.
    needs_waits: frozenset[Reason] = field(default_factory=frozenset)

    @property
    def all_counters(self) -> tuple[Counter, ...]:
        """Everything that is to be read for the rule."""
        needed = [one for one in (self.needs, self.needs_else) if one is not None]
        timed = (*self.counters, *self.waits)
        numbers = [one.number for one in timed if one.number is not None]
        return (*timed, *numbers, *needed, *self.quiet, *self.absent)


def any_of(attribute: str, *values: str) -> Selection:
    """Return the selection of an attribute with one of some values; of any where none is named.

    >>> any_of("direction", ABSENT, "device_to_host") == ("direction", frozenset({"", "device_to_host"}))
    True
    """
    return attribute, frozenset(values)
