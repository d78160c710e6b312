"""Which rank other producers mean: by the GPU that it computes on, or by its process.

    pytorch.rank (Datadog)   rank, host, device.id              a rank's GPU
    gpu.cuda.… (OBI)         process, cuda.device.uuid          the same
    dcgm-exporter            the labels gpu and UUID of a host  in order, where a host has as many GPUs as ranks

What several ranks claim, or one host's order cannot tell, belongs to nobody.

Source: DataDog/dd-trace-py, ddtrace/contrib/internal/pytorch; open-telemetry/opentelemetry-collector-contrib,
receiver/datadogreceiver (numbers become doubles there); open-telemetry/opentelemetry-ebpf-instrumentation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rootwalk.graph.columns import RankRow
from rootwalk.graph.scraped_hosts import HostNames

__all__ = ["RankDevices", "gpu_name", "read_rank_devices"]

_Key = TypeVar("_Key")

_GPU_PREFIX: Final = "GPU-"
# A bare UUID: 8-4-4-4-12 hexadecimal digits.
_UUID_CHARACTERS: Final = 36
_UUID_HYPHENS: Final = 4
_DATADOG: Final = """
SELECT DISTINCT TRY_CAST(attributes ->> '$."rank"' AS DOUBLE),
    coalesce(attributes ->> '$."host"', host_name, resource ->> '$."host.name"'),
    attributes ->> '$."device.id"', attributes ->> '$."training_job.id"'
FROM span_records WHERE name = 'pytorch.rank' AND (job = ? OR job IS NULL) AND end_unix_ns >= ?
"""


@dataclass(frozen=True, slots=True)
class RankDevices:
    """Ranks by (host's id, GPU), and by (host's id, pid)."""

    of_gpu: Mapping[tuple[str, str], int]
    of_process: Mapping[tuple[str, int], int]


def gpu_name(told: str | None) -> str | None:
    """Return a GPU's UUID as the driver prints it; None where that is not one.

    >>> gpu_name("5a1c0000-0000-0000-0000-000000000001")
    'GPU-5a1c0000-0000-0000-0000-000000000001'
    """
    if not told:
        return None
    if told.startswith(_GPU_PREFIX):
        return told
    is_bare = len(told) == _UUID_CHARACTERS and told.count("-") == _UUID_HYPHENS
    return _GPU_PREFIX + told if is_bare else None


def read_rank_devices(
    connection: Any,
    job: str,
    ranks: Iterable[RankRow],
    used: Iterable[tuple[str, int, str]],
    numbered: Iterable[tuple[str, int, str]],
    since_unix_ns: int,
) -> RankDevices:
    """Return which rank is meant by what.

    Args:
        connection: An open store.
        job: Its name.
        ranks: Of the job.
        used: Processes that use a GPU: host's id, pid, UUID.
        numbered: GPUs of the hosts: host's id, its number there, UUID.
        since_unix_ns: Spans that ended before say nothing.
    """
    rows = list(ranks)
    of_process = _only({((row.host_id, row.pid), row.rank) for row in rows if row.pid is not None})
    claims = {
        ((host, gpu), of_process[host, pid]) for host, pid, gpu in used if (host, pid) in of_process
    }
    claims |= _told_by_spans(connection, job, rows, since_unix_ns)
    of_gpu = dict(_only(claims))
    told_hosts = {host for (host, _), _ in claims}
    for host, gpus in _in_order(numbered).items():
        here = sorted(row.rank for row in rows if row.host_id == host)
        if host not in told_hosts and len(here) == len(gpus):
            of_gpu |= {(host, gpu): rank for gpu, rank in zip(gpus, here, strict=True)}
    return RankDevices(of_gpu, of_process)


def _told_by_spans(
    connection: Any, job: str, ranks: list[RankRow], since_unix_ns: int
) -> set[tuple[tuple[str, str], int]]:
    """Return what Datadog's spans of ranks say of GPUs: spans of this job, or of the only one that there is."""
    hosts, host_by_rank = HostNames(ranks), {row.rank: row.host_id for row in ranks}
    told = connection.execute(_DATADOG, [job, since_unix_ns]).fetchall()
    jobs = {row[3] for row in told if row[3] is not None}
    wanted = {job} if job in jobs else jobs
    if len(wanted) > 1:
        return set()
    found = set()
    for number, host_name, device, span_job in told:
        host, gpu = hosts.find(host_name), gpu_name(device)
        if host is None or gpu is None or number is None or number != int(number):
            continue
        if span_job in (None, *wanted) and host_by_rank.get(int(number)) == host:
            found.add(((host, gpu), int(number)))
    return found


def _only(pairs: Iterable[tuple[_Key, int]]) -> dict[_Key, int]:
    """Return what belongs to one rank."""
    ranks: dict[_Key, set[int]] = defaultdict(set)
    for key, rank in pairs:
        ranks[key].add(rank)
    return {key: next(iter(found)) for key, found in ranks.items() if len(found) == 1}


def _in_order(numbered: Iterable[tuple[str, int, str]]) -> dict[str, list[str]]:
    """Return each host's GPUs in the order of their numbers; no host where two have one number."""
    by_host: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for host, number, gpu in numbered:
        by_host[host].add((number, gpu))
    return {
        host: [gpu for _, gpu in sorted(gpus)]
        for host, gpus in by_host.items()
        if len({number for number, _ in gpus}) == len(gpus) == len({gpu for _, gpu in gpus})
    }
