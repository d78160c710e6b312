"""Which rank of the job each member of a communicator is, from the members that some files name; pure.

A line of NCCL Inspector has the member's place in one communicator. Where one communicator has every process that was
seen, its places are the ranks, as the world's communicator has them. Where none has (tensor and data parallel groups
without a world), processes are numbered by host and pid: a name that is the same every time, and not the job's rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rootwalk.graph.importers.nccl_inspector_format import Member

__all__ = ["RankNumbers"]

_DIGITS: Final = re.compile(r"(\d+)")

_Process = tuple[str, int]


class RankNumbers:
    """The ranks of a set of files.

    Args:
        members: Everybody who recorded a line of them; may repeat.

    Attributes:
        world_size: Members of the world's communicator, else processes.
        is_told: Whether a communicator tells the ranks; if not, processes are numbered.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        places: dict[_Process, dict[str, set[int]]] = {}
        sizes: dict[str, int] = {}
        self._process_at: dict[tuple[str, int], _Process] = {}
        for member in members:
            process = (member.host, member.pid)
            places.setdefault(process, {}).setdefault(member.communicator, set()).add(member.place)
            sizes[member.communicator] = member.size
            self._process_at[member.communicator, member.place] = process
        shared = set.intersection(*(set(own) for own in places.values())) if places else set()
        self._world = min(shared, key=lambda name: (-sizes[name], name), default=None)
        self.is_told = self._world is not None
        self._rank_of_process: dict[_Process, int] = {}
        for number, process in enumerate(sorted(places, key=_natural)):
            own = places[process]
            # Of a process with several devices only the world's own lines say which of its ranks they are of.
            if all(len(several) == 1 for several in own.values()):
                rank = number if self._world is None else min(own[self._world])
                self._rank_of_process[process] = rank
        self.world_size = len(places) if self._world is None else sizes[self._world]

    def rank_of(self, member: Member) -> int | None:
        """Return the rank of a member; None if its process has several and the line does not say which."""
        if member.communicator == self._world:
            return member.place
        return self._rank_of_process.get((member.host, member.pid))

    def rank_at(self, communicator: str, place: int) -> int | None:
        """Return the rank at a place of a communicator; None if nobody there recorded a line."""
        if communicator == self._world:
            return place
        process = self._process_at.get((communicator, place))
        return None if process is None else self._rank_of_process.get(process)


def _natural(process: _Process) -> tuple[list[tuple[int, str]], int]:
    """Return what processes are ordered by: node9 comes before node10."""
    parts = _DIGITS.split(process[0])
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts], process[1]
