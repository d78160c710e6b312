"""Write down the strangers that stand in the way of all ranks of a host: job -slowed_by-> processes -runs_on-> host.

No rank is late by itself: the chain has no wait and no thread, and what it cites are means over the host's ranks.
"""

from __future__ import annotations

from rootwalk.graph.casefile import CaseFile, add_evidence, add_host_evidence, query_of_ranks
from rootwalk.graph.causes import Crowd
from rootwalk.graph.culprits import end_of_chain
from rootwalk.graph.dependencies import node_id
from rootwalk.graph.model import Attributes, EdgeKind, EdgePayload, NodePayload
from rootwalk.graph.reasons import RULES, STATE_SIGNALS, Reason, Signal

__all__ = ["add_crowd"]


def add_crowd(file: CaseFile, index: int, crowd: Crowd, step_id: str) -> None:
    """Add the processes of a crowd as what slowed the job down.

    Args:
        file: The case file.
        index: Number of the cause in the replay.
        crowd: Who they are.
        step_id: Evidence of the step's time.
    """
    host, ranks = file.host(crowd.ranks[0]), crowd.ranks
    is_one = len(crowd.pids) == 1
    label = crowd.name if is_one else f"{len(crowd.pids)} processes named '{crowd.name}'"
    part = crowd.pids[0] if is_one else f"{crowd.name}-{crowd.pids[0]}"
    node = node_id("process", host, part)
    attributes: Attributes = {
        "pid": crowd.pids[0] if is_one else None,
        "pids": ",".join(map(str, crowd.pids)),
        "cgroup": crowd.cgroup,
        "host": host,
    }
    file.graph.add_node(node, NodePayload("process", label, attributes))
    places = [(node_id("host", host), EdgeKind.RUNS_ON)]
    if crowd.cgroup is not None:
        group = node_id("cgroup", host, crowd.cgroup)
        file.graph.add_node(group, NodePayload("cgroup", crowd.cgroup, {}))
        places.append((group, EdgeKind.MEMBER_OF))
    for place, kind in places:
        file.graph.add_edge(node, place, EdgePayload(kind, None, (), {}))
    signals = dict.fromkeys((Signal.FOREIGN, Signal.RUNNABLE, *STATE_SIGNALS))
    cited = [add_host_evidence(file, ranks, signal) for signal in signals]
    ran = add_evidence(
        file,
        f"{Signal.AGGRESSOR}/{node}",
        Signal.AGGRESSOR,
        file.analysis.cause_s[index] / len(ranks),
        history=0.0,
        query=query_of_ranks(
            file, "step, rank, duration_ns, aggressor_pid, aggressors", "stalls", ranks
        ),
    )
    payload = end_of_chain(
        file,
        index,
        crowd.key,
        EdgeKind.SLOWED_BY,
        (step_id, ran, *(item for item in cited if item is not None)),
        node,
        magnitude=RULES[Reason.CPU_CONTENTION].magnitude,
    )
    file.graph.add_edge(file.job_node, node, payload)
