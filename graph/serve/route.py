"""The way from one rank's device to another's, hop by hop, with what each hop counts: pure.

    rank 0 — GPU — NVLink or PCI Express — GPU — rank 1                        (one host)
    rank 0 — GPU — interfaces of its host — network — interfaces — GPU — rank 5  (two hosts)

A counter alone is no cause: a hop is "bad" only where a link is down or below what it was, "counts errors" where
something grew, "quiet" where counters were seen and none did, "not seen" where nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["COUNTERS", "Fact", "Health", "Hop", "Reading", "RouteEnd", "build_route"]


class Health(StrEnum):
    """What can be said of a hop; the value is the word that is shown."""

    BAD = "bad"
    COUNTS = "counts errors"
    QUIET = "quiet"
    UNSEEN = "not seen"


@dataclass(frozen=True, slots=True)
class _Counter:
    """How a metric speaks of a hop: what it is called, whether it is a level, and what a change of it says."""

    place: str
    words: str
    says: Health
    is_level: bool = False
    is_shown_always: bool = False


# Metrics that are read, all of the registry. A level speaks when it is below the most that it was in the window.
COUNTERS: Final[dict[str, _Counter]] = {
    "hw.network.up": _Counter("nic", "link up", Health.BAD, is_level=True),
    "hw.network.bandwidth.limit": _Counter(
        "nic", "link speed", Health.BAD, is_level=True, is_shown_always=True
    ),
    "training.nic.carrier.changes": _Counter("nic", "carrier changes", Health.BAD),
    "training.nic.events": _Counter("nic", "losses and errors of the driver", Health.COUNTS),
    "training.nic.pause.time": _Counter("nic", "paused", Health.COUNTS),
    "training.nic.pause.frames": _Counter("nic", "pause frames", Health.COUNTS),
    "system.network.errors": _Counter("nic", "errors", Health.COUNTS),
    "system.network.packet.dropped": _Counter("nic", "packets dropped", Health.COUNTS),
    "training.rdma.events": _Counter("nic", "RDMA losses, errors, congestion", Health.COUNTS),
    "training.tcp.retransmitted.segments": _Counter(
        "rank", "TCP segments sent again", Health.COUNTS
    ),
    "training.gpu.throttled.time": _Counter("gpu", "clocked down", Health.COUNTS),
    "hw.errors": _Counter("gpu", "memory errors", Health.COUNTS),
    "training.gpu.pcie.bandwidth.limit": _Counter(
        "pcie", "PCI Express link", Health.BAD, is_level=True, is_shown_always=True
    ),
    "training.gpu.nvlink.links": _Counter(
        "nvlink", "NVLinks up", Health.BAD, is_level=True, is_shown_always=True
    ),
    "training.gpu.peers": _Counter(
        "nvlink", "GPUs reached directly", Health.BAD, is_level=True, is_shown_always=True
    ),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One series over the window: its first and last value and the most that it was; `rank` None for the host's."""

    name: str
    host_id: str
    rank: int | None
    device: str | None
    first: float
    last: float
    most: float
    unit: str


@dataclass(frozen=True, slots=True)
class RouteEnd:
    """One end: a rank, its host, and the GPU that the store has for it, None where nobody said."""

    rank: int
    host_id: str
    host: str
    gpu: str | None


@dataclass(frozen=True, slots=True)
class Fact:
    """What a hop counts: words, how much in the window or the level now, and its unit."""

    words: str
    value: float
    unit: str
    is_level: bool


@dataclass(frozen=True, slots=True)
class Hop:
    """One station: `findings` are ids of findings that name it."""

    kind: str
    name: str
    health: Health
    facts: tuple[Fact, ...]
    findings: tuple[str, ...] = ()


def build_route(
    source: RouteEnd,
    target: RouteEnd,
    readings: Sequence[Reading],
    named: Iterable[tuple[str, frozenset[int], str]] = (),
) -> tuple[Hop, ...]:
    """Return the hops from source to target.

    Args:
        source: Where it begins.
        target: Where it ends.
        readings: Series of both hosts.
        named: Id, ranks and node of each finding.
    """
    found = tuple(named)
    hops = [_rank(source, readings, found), _gpu(source, readings)]
    if source.host_id == target.host_id:
        hops.append(_inside(source, target, readings))
    else:
        hops += _interfaces(source, readings)
        hops.append(_fabric(source, target, found))
        hops += _interfaces(target, readings)
    hops += [_gpu(target, readings), _rank(target, readings, found)]
    return tuple(hops)


def _rank(
    end: RouteEnd, readings: Sequence[Reading], named: Sequence[tuple[str, frozenset[int], str]]
) -> Hop:
    mine = [r for r in readings if r.rank == end.rank and COUNTERS[r.name].place == "rank"]
    health, facts = _judge(mine)
    findings = tuple(id_ for id_, ranks, _ in named if end.rank in ranks)
    return Hop("rank", f"rank {end.rank} on {end.host}", health, facts, findings)


def _gpu(end: RouteEnd, readings: Sequence[Reading]) -> Hop:
    mine = _of_gpu(end, readings, ("gpu", "pcie"))
    health, facts = _judge(mine)
    return Hop("GPU", end.gpu or f"GPU of rank {end.rank}", health, facts)


def _of_gpu(end: RouteEnd, readings: Sequence[Reading], places: tuple[str, ...]) -> list[Reading]:
    return [
        r
        for r in readings
        if r.host_id == end.host_id
        and COUNTERS[r.name].place in places
        and (r.rank == end.rank or (r.rank is None and end.gpu is not None and r.device == end.gpu))
    ]


def _inside(source: RouteEnd, target: RouteEnd, readings: Sequence[Reading]) -> Hop:
    mine = _of_gpu(source, readings, ("nvlink",)) + _of_gpu(target, readings, ("nvlink",))
    health, facts = _judge(mine)
    name = "NVLink" if any(r.name == "training.gpu.nvlink.links" for r in mine) else "inside"
    return Hop("link", f"{name} {source.host}", health, facts)


def _interfaces(end: RouteEnd, readings: Sequence[Reading]) -> list[Hop]:
    """Return a hop for each interface that counted something, and one for all the others."""
    mine = [r for r in readings if r.host_id == end.host_id and COUNTERS[r.name].place == "nic"]
    devices = sorted({r.device or "" for r in mine})
    hops = []
    quiet: list[str] = []
    for device in devices:
        health, facts = _judge([r for r in mine if (r.device or "") == device])
        if health in (Health.BAD, Health.COUNTS):
            hops.append(Hop("interface", f"{device or 'interface'} of {end.host}", health, facts))
        else:
            quiet.append(device)
    if quiet or not hops:
        chosen = [r for r in mine if (r.device or "") in quiet]
        health, facts = _judge(chosen)
        names = ", ".join(name for name in quiet if name) or "interfaces"
        facts = facts if len(quiet) == 1 else ()
        hops.append(Hop("interface", f"{names} of {end.host}", health, facts))
    return hops


def _fabric(
    source: RouteEnd, target: RouteEnd, named: Sequence[tuple[str, frozenset[int], str]]
) -> Hop:
    """Return the network between: nobody reads switches, so only a finding can speak of it."""
    findings = tuple(
        id_
        for id_, _, node in named
        if node.startswith("path:") and {source.host, target.host} & set(node[5:].split("/"))
    )
    return Hop("network", f"between {source.host} and {target.host}", Health.UNSEEN, (), findings)


def _judge(readings: Sequence[Reading]) -> tuple[Health, tuple[Fact, ...]]:
    """Return what some series say together: the worst, and what to show of each."""
    health = Health.QUIET if readings else Health.UNSEEN
    facts = []
    for reading in sorted(readings, key=lambda r: (r.name, r.device or "", r.rank or 0)):
        counter = COUNTERS[reading.name]
        if counter.is_level:
            is_worse = reading.last < reading.most
            value = reading.last
        else:
            value = max(reading.last - reading.first, 0.0)
            is_worse = value > 0.0
        if is_worse:
            health = counter.says if health is not Health.BAD else health
        if is_worse or counter.is_shown_always:
            facts.append(Fact(counter.words, value, reading.unit, counter.is_level))
    return health, tuple(facts)
