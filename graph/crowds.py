"""Strangers that stand in the way of all ranks of a host about equally: a crowd of the host, and no rank's contention.

    rank 0 |####|a|###|b|####|      processes of one name go from CPU to CPU:
    rank 1 |###|b|####|a|####|      who meets which of them says nothing of a rank

Processes of one name are one crowd unless they are known to be of different control groups. Where a rank of the host
is spared, or one loses several times as much as another, they are on that rank's CPUs: it stays the rank's contention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rootwalk.graph.causes import Crowd
from rootwalk.graph.columns import JobData
from rootwalk.graph.contenders import ProcessNames, process_names

__all__ = ["STANDING_OUT", "find_crowds"]

# A rank stands out from the others where it lost at least this many times as much as the least.
STANDING_OUT = 2.0


def find_crowds(
    data: JobData, own: Mapping[int, set[int]], stood_s: Mapping[int, Mapping[int, float]]
) -> tuple[Crowd, ...]:
    """Return the crowds of all hosts.

    Args:
        data: Telemetry on the aligned clock.
        own: Processes of each rank; those of the job are no strangers.
        stood_s: By rank, how much longer than before it stood behind each stranger, seconds; ranks of which nothing
            was read are missing, and nothing is said of all ranks of their hosts.
    """
    ranks_of_host: dict[str, list[int]] = {}
    for row in data.ranks:
        ranks_of_host.setdefault(row.host_id, []).append(row.rank)
    crowds: list[Crowd] = []
    for host_id, ranks in sorted(ranks_of_host.items()):
        if len(ranks) > 1 and stood_s.keys() >= set(ranks):
            mine = tuple(stall for stall in data.stalls if stall.rank in ranks)
            names = process_names(replace(data, stalls=mine))
            job = set().union(*(own.get(rank, set()) for rank in ranks))
            strangers = {
                rank: {pid: s for pid, s in stood_s[rank].items() if pid not in job}
                for rank in ranks
            }
            crowds += _crowds_of_host(host_id, strangers, names)
    return tuple(crowds)


def _crowds_of_host(
    host_id: str, stood_s: Mapping[int, Mapping[int, float]], names: ProcessNames
) -> list[Crowd]:
    groups_of_name: dict[str, set[str]] = {}
    for pid, group in names.cgroups.items():
        groups_of_name.setdefault(names.names.get(pid, ""), set()).add(group)
    pids: dict[tuple[str, str | None], set[int]] = {}
    for pid in {pid for seconds in stood_s.values() for pid in seconds if pid in names.names}:
        name = names.names[pid]
        known = groups_of_name.get(name, set())
        only = next(iter(known)) if len(known) == 1 else None
        pids.setdefault((name, names.cgroups.get(pid, only)), set()).add(pid)
    crowds = []
    for (name, cgroup), members in sorted(pids.items(), key=lambda item: str(item[0])):
        totals = [sum(s.get(pid, 0.0) for pid in members) for s in stood_s.values()]
        if 0.0 < max(totals) < STANDING_OUT * min(totals):
            crowds.append(Crowd(host_id, name, cgroup, tuple(sorted(members)), tuple(stood_s)))
    return crowds
