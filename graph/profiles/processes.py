"""Profiles that know no rank, as the OpenTelemetry eBPF profiler sends them: joined to ranks by host and process.

    resource   host.name or host.id (a Collector's `resourcedetection` adds it), container.id
    sample     process.pid, process.executable.name, thread.id

A process is a rank's where the host is the rank's, the pid is the rank's and the executable is Python: in a container
with a pid namespace of its own a rank knows another pid than the profiler, and that may be anybody's.

Source: open-telemetry/opentelemetry-ebpf-profiler, reporter/internal/pdata.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rootwalk.graph.columns import RankRow
from rootwalk.graph.scraped_hosts import HostNames

__all__ = ["PID_OF_SAMPLE", "THREAD_OF_SAMPLE", "attach_processes", "is_by_process"]

PID_OF_SAMPLE: Final = "TRY_CAST(s.attributes ->> '$.\"process.pid\"' AS BIGINT)"
THREAD_OF_SAMPLE: Final = "TRY_CAST(s.attributes ->> '$.\"thread.id\"' AS BIGINT)"
_KEY: Final = "received_unix_ns, dictionary_id, profile_index"
_WITHOUT_RANK: Final = (
    "(job = $job OR job IS NULL) AND rank IS NULL AND unix_ns BETWEEN $begin AND $end"
)
_HOSTS: Final = (
    "SELECT DISTINCT host_id, host_name FROM profile_records"  # noqa: S608
    f" WHERE {_WITHOUT_RANK} ORDER BY ALL"
)
_TABLE: Final = (
    "CREATE OR REPLACE TEMP TABLE process_profiles"
    " (received_unix_ns BIGINT, dictionary_id TEXT, profile_index BIGINT, rank BIGINT, pid BIGINT)"
)
_ATTACH: Final = f"""
INSERT INTO process_profiles
SELECT DISTINCT {_KEY}, r.rank, r.pid
FROM profile_sample_records s
JOIN (SELECT {_KEY} FROM profile_records
      WHERE {_WITHOUT_RANK} AND host_id IS NOT DISTINCT FROM $host_id AND host_name IS NOT DISTINCT FROM $host_name) p
    USING ({_KEY})
JOIN (SELECT unnest($ranks::BIGINT[]) AS rank, unnest($pids::BIGINT[]) AS pid) r ON r.pid = {PID_OF_SAMPLE}
WHERE coalesce(starts_with(s.attributes ->> '$."process.executable.name"', 'python'), true)
"""  # noqa: S608  (constants of this module)


def attach_processes(
    connection: Any, job: str, ranks: Iterable[RankRow], span_ns: tuple[int, int]
) -> None:
    """Make the table `process_profiles`: profiles without a rank that have samples of a rank's process.

    Args:
        connection: An open store.
        job: Its name.
        ranks: Of the job.
        span_ns: When the profiles begin, Unix ns.
    """
    rows = list(ranks)
    names = HostNames(rows)
    connection.execute(_TABLE)
    about = {"job": job, "begin": span_ns[0], "end": span_ns[1]}
    for host_id, host_name in connection.execute(_HOSTS, about).fetchall():
        host = names.find(host_id) or names.find(host_name)
        here = [row for row in rows if row.host_id == host and row.pid is not None]
        if here:
            chosen = {"ranks": [row.rank for row in here], "pids": [row.pid for row in here]}
            connection.execute(
                _ATTACH, {**about, "host_id": host_id, "host_name": host_name, **chosen}
            )


def is_by_process(connection: Any, rank: int) -> bool:
    """Return whether profiles of a rank's process have been attached."""
    asked = "SELECT 1 FROM process_profiles WHERE rank = ? LIMIT 1"
    return connection.execute(asked, [rank]).fetchone() is not None
