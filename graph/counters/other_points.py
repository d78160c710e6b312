"""Read what other producers count, as series under our names, where nothing of ours counts it.

Hosts are found by id, name, label or scraped address (`scraped_hosts`), ranks by GPU or process (`rank_devices`). What
belongs to no host or rank of the job is left out, and so is what was scraped more seldom than once a minute.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rootwalk.graph.columns import FloatArray, RankRow
from rootwalk.graph.counters.movement import Points
from rootwalk.graph.counters.others import OTHERS, Of, OtherMetric, Shape
from rootwalk.graph.counters.rank_devices import (
    RankDevices,
    gpu_name,
    read_rank_devices,
)
from rootwalk.graph.scraped_hosts import ADDRESS, HOSTS_OF_ADDRESSES, HostNames
from rootwalk.instrumentation import semconv

__all__ = ["MAX_GAP_S", "OtherSeries", "read_others"]

NS: Final = 1e9
# Between two points of a series; what is told more seldom says nothing of steps.
MAX_GAP_S: Final = 60.0
_NAMES: Final = frozenset(one.name for one in OTHERS)
_CUDA_UUID: Final = "cuda.device.uuid"
# A part of a divided GPU has the UUID of the whole.
_PART_OF_GPU: Final = "GPU_I_ID"
_HOSTS: Final = {
    "host_id": "host_id",
    "host_name": "host_name",
    "label": "attributes ->> '$.\"Hostname\"'",
    "uname": f"(SELECT max(h.host) FROM metric_hosts h WHERE h.address = {ADDRESS} AND h.hosts = 1)",  # noqa: S608
    "address": ADDRESS,
}
_PID: Final = (
    "coalesce(TRY_CAST(resource ->> '$.\"process.pid\"' AS BIGINT),"
    " TRY_CAST(regexp_extract(resource ->> '$.\"service.instance.id\"', '^.+:([0-9]+)$', 1) AS BIGINT))"
)
_QUERY: Final = f"""
SELECT name, {", ".join(_HOSTS.values())}, rank, {_PID}, CAST(attributes AS TEXT), CAST(resource AS TEXT), unix_ns,
    value
FROM metrics
WHERE name IN (SELECT unnest(?::TEXT[])) AND (job = ? OR job IS NULL)
    AND unix_ns BETWEEN ? AND ? AND value IS NOT NULL
ORDER BY ALL
"""  # noqa: S608  (constants of this module)


@dataclass(frozen=True, slots=True)
class OtherSeries:
    """One series under our name; `gap_s` is the longest time between two of its points, `told_by` its own name.

    `query` shows its points to a reader.
    """

    name: str
    host_id: str
    rank: int | None
    attributes: Mapping[str, str]
    points: Points
    gap_s: float
    told_by: str
    query: str


@dataclass(frozen=True, slots=True)
class _Raw:
    """One series as it was sent."""

    name: str
    host_id: str
    where: str
    rank: int | None
    pid: int | None
    labels: Mapping[str, str]
    unix_ns: Sequence[int]
    value: FloatArray


def read_others(
    connection: Any,
    job: str,
    names: Collection[str],
    ranks: Sequence[RankRow],
    span_unix_ns: tuple[int, int],
    clock: tuple[int, Mapping[str, float]],
) -> list[OtherSeries]:
    """Return the series of other producers that say something of the metrics in question.

    Args:
        connection: An open store.
        job: Its name.
        names: Our names of metrics and events.
        ranks: Of the job, of the hosts in question.
        span_unix_ns: First and last moment.
        clock: Unix ns of the time 0 of the analysis, and how far each host's clock is ahead, s.
    """
    asked = [one for one in OTHERS if one.signal in names]
    wanted = sorted({one.name for one in asked})
    if not wanted or not _has_any(connection, wanted):
        return []
    raw = _read(connection, job, wanted, HostNames(ranks), span_unix_ns)
    devices = _rank_devices(connection, job, ranks, raw, span_unix_ns[0])
    found: list[OtherSeries] = []
    for one in asked:
        for series in raw:
            if series.name == one.name:
                found += _translate(one, series, devices, clock)
    return [series for series in found if series.gap_s <= MAX_GAP_S]


def _has_any(connection: Any, names: list[str]) -> bool:
    asked = "SELECT 1 FROM metrics WHERE name IN (SELECT unnest(?::TEXT[])) LIMIT 1"
    return connection.execute(asked, [names]).fetchone() is not None


def _read(
    connection: Any, job: str, names: list[str], hosts: HostNames, span_unix_ns: tuple[int, int]
) -> list[_Raw]:
    """Return the series of the job's hosts."""
    connection.execute(HOSTS_OF_ADDRESSES)
    grouped: dict[tuple[Any, ...], list[tuple[int, float]]] = defaultdict(list)
    for row in connection.execute(_QUERY, [names, job, *span_unix_ns]).fetchall():
        grouped[row[:-2]].append((row[-2], row[-1]))
    found = []
    for (name, *named, rank, pid, attributes, _), points in grouped.items():
        # The first that is told counts: a name that the job does not know is another machine's.
        how, told = next(
            ((how, one) for how, one in zip(_HOSTS, named, strict=True) if one), ("", None)
        )
        host = hosts.find(told)
        if host is None:
            continue
        latest = dict(points)
        labels = {key: str(value) for key, value in json.loads(attributes).items()}
        where = _HOSTS[how if how != "uname" else "address"]
        here = named[list(_HOSTS).index("address")] if how == "uname" else told
        text = str(here).replace("'", "''")
        value = np.array(list(latest.values()), dtype=np.float64)
        found.append(
            _Raw(name, host, f"{where} = '{text}'", rank, pid, labels, list(latest), value)
        )
    return found


def _rank_devices(
    connection: Any, job: str, ranks: Sequence[RankRow], raw: list[_Raw], since_unix_ns: int
) -> RankDevices:
    used, numbered = set(), set()
    for one in raw:
        gpu = gpu_name(one.labels.get(_CUDA_UUID))
        if gpu is not None and one.pid is not None:
            used.add((one.host_id, one.pid, gpu))
        number, gpu = one.labels.get("gpu", ""), gpu_name(one.labels.get("UUID"))
        if gpu is not None and number.isdigit():
            numbered.add((one.host_id, int(number), gpu))
    return read_rank_devices(connection, job, ranks, used, numbered, since_unix_ns)


def _translate(
    one: OtherMetric, raw: _Raw, devices: RankDevices, clock: tuple[int, Mapping[str, float]]
) -> Iterator[OtherSeries]:
    """Return a series under our names; nothing where it is of no rank that it should be of, or says something else."""
    attributes = dict(one.attributes)
    rank, gpu = None, None
    if one.of is Of.GPU:
        gpu = gpu_name(raw.labels.get("UUID"))
        rank = devices.of_gpu.get((raw.host_id, gpu or ""), raw.rank)
        if gpu is None or rank is None or raw.labels.get(_PART_OF_GPU):
            return
        attributes[semconv.HW_ID] = attributes[semconv.TRAINING_KERNEL_MESSAGE_DEVICE] = gpu
    elif one.of is Of.PROCESS:
        rank = devices.of_process.get((raw.host_id, raw.pid or 0), raw.rank)
        if rank is None:
            return
    if one.device is not None:
        labels, ours = one.device
        attributes[ours] = ":".join(raw.labels.get(label, "") for label in labels)
    if one.renamed is not None:
        label, ours, values = one.renamed
        if raw.labels.get(label) not in values:
            return
        attributes[ours] = values[raw.labels[label]]
    time_s = (np.array(raw.unix_ns, dtype=np.int64) - clock[0]) / NS
    time_s = time_s - clock[1].get(raw.host_id, 0.0)
    gap_s = float(np.diff(time_s).max()) if time_s.size > 1 else np.inf
    span = f"{raw.unix_ns[0]} AND {raw.unix_ns[-1]}"
    where = f"name = '{raw.name}' AND {raw.where} AND unix_ns BETWEEN {span}"
    if gpu is not None:
        where += f" AND attributes ->> '$.\"UUID\"' = '{gpu.replace(chr(39), chr(39) * 2)}'"
    query = f"SELECT unix_ns, attributes, value FROM metrics WHERE {where} ORDER BY unix_ns"  # noqa: S608
    for extra, points in _shaped(one, time_s, raw.value):
        told = attributes | extra
        # What the kernel's log says is told of the host, whichever rank's device it names.
        of_rank = None if one.shape is Shape.LAST_CODE else rank
        yield OtherSeries(
            str(one.signal), raw.host_id, of_rank, told, points, gap_s, raw.name, query
        )


def _shaped(
    one: OtherMetric, time_s: FloatArray, value: FloatArray
) -> Iterator[tuple[dict[str, str], Points]]:
    """Return the points of one series, and what its attributes say more."""
    if one.shape is Shape.AS_IT_IS:
        yield {}, Points(time_s, value * one.scale, is_thinned=False)
    elif one.shape is Shape.BITS:
        is_set = ((value.astype(np.int64) & one.bits) != 0).astype(np.float64)
        held_s = np.diff(time_s) * (is_set[:-1] + is_set[1:]) / 2.0
        yield {}, Points(time_s, np.concatenate([[0.0], np.cumsum(held_s)]), is_thinned=False)
    else:
        changes = np.concatenate([[False], value[1:] != value[:-1]])
        for code in np.unique(value[changes & (value != 0.0)]):
            count = np.cumsum(changes & (value == code)).astype(np.float64)
            about = {semconv.TRAINING_KERNEL_MESSAGE_CODE: str(int(code))}
            yield about, Points(time_s, count, is_thinned=False)
