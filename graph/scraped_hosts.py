"""Whose telemetry it is that other producers send: SQL that readers put into their queries, and names of hosts.

A Prometheus receiver names no host: the target's address does, unless a label of the metric (`Hostname`, as
dcgm-exporter has it) or node-exporter's `node_uname_info` says it better.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from rootwalk.graph.columns import RankRow

__all__ = ["ADDRESS", "HOSTS_OF_ADDRESSES", "HostNames"]

ADDRESS: Final = (
    "coalesce(resource ->> '$.\"server.address\"', resource ->> '$.\"net.host.name\"',"
    " regexp_replace(resource ->> '$.\"service.instance.id\"', ':[0-9]+$', ''))"
)
# Makes a table of the hosts that node-exporter names behind each address: address, host, hosts.
HOSTS_OF_ADDRESSES: Final = f"""
CREATE OR REPLACE TEMP TABLE metric_hosts AS
SELECT address, min(host) AS host, count(DISTINCT host) AS hosts FROM (
    SELECT {ADDRESS} AS address, attributes ->> '$."nodename"' AS host FROM metrics
    WHERE name = 'node_uname_info' AND host_name IS NULL AND host_id IS NULL)
WHERE address IS NOT NULL AND host IS NOT NULL GROUP BY address
"""  # noqa: S608  (constants of this module)


class HostNames:
    """The hosts of a job by what others may call them: id, name, or the name without its domain."""

    def __init__(self, ranks: Iterable[RankRow]) -> None:
        self._ids: dict[str, str] = {}
        short: dict[str, set[str]] = defaultdict(set)
        for row in ranks:
            self._ids[row.host_id] = row.host_id
            if row.host_name:
                self._ids[row.host_name] = row.host_id
                short[row.host_name.partition(".")[0]].add(row.host_id)
        self._short = {name: next(iter(ids)) for name, ids in short.items() if len(ids) == 1}

    def find(self, name: str | None) -> str | None:
        """Return a host's id; None where the job has no such host, or several."""
        if not name:
            return None
        return self._ids.get(name) or self._short.get(name.partition(".")[0])
