"""A timeline: tracks of processes, with slices, instants and arrows on them. Knows no format.

    rank 2 (host-0)   operations   |-------- step 41 --------|       slices of one track nest
                                   |-- forward --|- backward-|
                      waits                   * arrives last --.     an arrow has a number, on both of its ends
    rank 0 (host-0)   waits        |~~ waits for rank 2 ~~*~|<-'

What overlaps without nesting is put on lanes, each of which nests; they have the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["Argument", "Lane", "Process", "Slice", "Track", "lanes_of", "main_track", "wait_track"]

Argument = str | int | float | bool
# More lanes than this of one track nobody looks at; a slice that finds none is cut to fit the last.
MAX_LANES: Final = 64


class Process(NamedTuple):
    """A rank, or the job as a whole, for which the rank is None."""

    rank: int | None
    name: str


class Track(NamedTuple):
    """A row of a process; those of a process are in the order of `place`, then of their names."""

    rank: int | None
    place: int
    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took time, or an instant.

    Attributes:
        track: Where it is.
        start_ns: When it began, Unix ns on the aligned clock.
        end_ns: When it ended; None for an instant.
        name: What it is.
        category: What kind of thing it is.
        arguments: What else is known, by name with its unit.
        arrows_from: Numbers of the arrows that begin here.
        arrow_to: Number of the arrow that ends here; None without one.
    """

    track: Track
    start_ns: int
    end_ns: int | None
    name: str
    category: str
    arguments: tuple[tuple[str, Argument], ...] = ()
    arrows_from: tuple[int, ...] = ()
    arrow_to: int | None = None

    @property
    def stop_ns(self) -> int:
        """When it ended; for an instant when it was."""
        return self.start_ns if self.end_ns is None else self.end_ns


@dataclass(frozen=True, slots=True)
class Lane:
    """Slices of a track that nest, outer ones before what is in them."""

    track: Track
    number: int
    slices: Sequence[Slice]


def main_track(rank: int) -> Track:
    """Return the track of what a rank does."""
    return Track(rank, 1, "operations")


def wait_track(rank: int) -> Track:
    """Return the track of what a rank waits for."""
    return Track(rank, 0, "waits for other ranks")


def lanes_of(slices: Iterable[Slice]) -> list[Lane]:
    """Return the slices of all tracks as lanes, by rank, place and name of their track; the job's own come first."""
    by_track: dict[Track, list[Slice]] = {}
    for item in slices:
        by_track.setdefault(item.track, []).append(item)
    lanes = []
    for track in sorted(by_track, key=_order):
        nested = _nest(by_track[track])
        lanes += [Lane(track, number, lane) for number, lane in enumerate(nested)]
    return lanes


def _order(track: Track) -> tuple[int, int, str]:
    return (-1 if track.rank is None else track.rank, track.place, track.name)


def _nest(slices: list[Slice]) -> list[list[Slice]]:
    """Put each slice on the first lane where it is inside, or after, what is there."""
    # An instant comes after the slices that begin with it, so that it is inside them.
    slices.sort(key=lambda s: (s.start_ns, s.end_ns is None, -s.stop_ns, s.name))
    lanes: list[list[Slice]] = []
    open_ends: list[list[int]] = []
    for item in slices:
        for lane, ends in zip(lanes, open_ends, strict=True):
            while ends and ends[-1] <= item.start_ns and not _touches(ends[-1], item):
                ends.pop()
            if not ends or item.stop_ns <= ends[-1] or len(lanes) == MAX_LANES:
                lane.append(item)
                if item.end_ns is not None:
                    ends.append(min([item.end_ns, *ends]))
                break
        else:
            lanes.append([item])
            open_ends.append([] if item.end_ns is None else [item.end_ns])
    return lanes


def _touches(end_ns: int, item: Slice) -> bool:
    """Say whether an instant is at the very end of a slice, and so belongs to it."""
    return item.end_ns is None and end_ns == item.start_ns
