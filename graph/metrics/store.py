"""Metrics of a job without steps, out of the public view `metrics`: a number for each place, quantity and bin.

Works on an open connection, like `graph_store`. DuckDB does the sums, and never more than `MAX_BINS` numbers of a
quantity and place come out of it, however long and often somebody measured.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rootwalk.graph.job_choice import JobKey, choose_job
from rootwalk.graph.metrics.rules import RULES, Combine, MetricRule, Source
from rootwalk.graph.metrics.table import MetricCase, Place, Quantity
from rootwalk.graph.model import DataQuality, QualityCode
from rootwalk.graph.scraped_hosts import ADDRESS, HOSTS_OF_ADDRESSES
from rootwalk.graph.store_columns import read_sensors
from rootwalk.instrumentation.errors import ConfigError

__all__ = ["read_metric_case"]

# Our own readers leave out what stands still: no point of a counter is no growth.
_THINNED_SCOPE: Final = "rootwalk"
# What is looked at: the last two hours, in at most so many bins. A slowdown that began earlier has no past here.
MAX_SPAN_NS: Final = 7_200 * 10**9
MAX_BINS: Final = 60
# A bin holds at least one scrape of every target: scrapes are not at the same moment.
SCRAPES_PER_BIN: Final = 1.5

_NAMES: Final = sorted({source.metric for rule in RULES.values() for source in rule.sources})
_IS_OF_JOB: Final = "(job = $job OR job IS NULL)"


def read_metric_case(connection: Any, job: str | None) -> MetricCase | None:
    """Return the metrics of a job without steps and operations; None if it has some, or no metric that says anything.

    Raises:
        ConfigError: If the job cannot be chosen.
    """
    key = choose_job(connection, job)
    if key is not None and _has_records(connection, key):
        return None
    key = key or _named_in_metrics(connection, job)
    known = _survey(connection, key)
    if not known:
        return None
    last = max(row[2] for row in known.values())
    start = max(min(row[1] for row in known.values()), last - MAX_SPAN_NS)
    width = _width_ns(list(known.values()), last - start)
    connection.execute(HOSTS_OF_ADDRESSES)
    quantities = {}
    for rule in RULES.values():
        found = _read(connection, key, rule, set(known), (start, last, width))
        if found is not None:
            quantities[rule.id] = found
    (shared,) = connection.execute("SELECT count(*) FROM metric_hosts WHERE hosts > 1").fetchone()
    quality = []
    if shared:
        text = f"{shared} addresses belong to several hosts each, which cannot be told apart"
        quality.append(DataQuality(QualityCode.MISSING_EDGE, text, int(shared)))
    sensors = read_sensors(connection, key.job)
    return MetricCase(key, start, width, quantities, sensors, tuple(quality), not shared)


def _has_records(connection: Any, key: JobKey) -> bool:
    """Return whether a job has told what it did: then it is judged by that, or not yet."""
    owner = [key.job, key.attempt]
    return any(
        connection.execute(
            f"SELECT 1 FROM {view} WHERE job = ? AND coalesce(attempt, 0) = ? LIMIT 1",  # noqa: S608
            owner,
        ).fetchone()
        for view in ("steps", "phases", "collectives", "operations")
    )


def _named_in_metrics(connection: Any, job: str | None) -> JobKey:
    """Return the only job that metrics name, or the asked one; "unknown" where they name none."""
    rows = connection.execute(
        "SELECT DISTINCT job FROM metrics WHERE job IS NOT NULL AND name IN (SELECT unnest(?::TEXT[])) ORDER BY 1",
        [_NAMES],
    ).fetchall()
    names = [str(row[0]) for row in rows]
    listed = ", ".join(f'"{name}"' for name in names)
    if job is None and len(names) > 1:
        raise ConfigError(
            f"cannot choose a job: saw metrics of {len(names)} in the store ({listed}); needs one",
            hint=f"name it: --job {names[0]}",
        )
    if job is not None and names and job not in names:
        raise ConfigError(
            f'cannot find job "{job}": saw metrics of {listed} in the store; needs one of these',
            hint="`rootwalk sql STORE 'SELECT DISTINCT job FROM metrics'` lists them",
        )
    return JobKey(job or (names[0] if names else "unknown"), 0, None)


def _survey(connection: Any, key: JobKey) -> dict[str, tuple[str, int, int, int, int]]:
    """Return of every metric that is there: name, first and last moment, points and series."""
    rows = connection.execute(
        "SELECT name, min(unix_ns), max(unix_ns), count(*),"  # noqa: S608
        " count(DISTINCT hash(CAST(attributes AS TEXT), CAST(resource AS TEXT)))"
        f" FROM metrics WHERE name IN (SELECT unnest($names::TEXT[])) AND {_IS_OF_JOB}"
        " AND unix_ns IS NOT NULL AND value IS NOT NULL GROUP BY name",
        {"names": _NAMES, "job": key.job},
    ).fetchall()
    return {row[0]: row for row in rows}


def _width_ns(known: list[tuple[str, int, int, int, int]], span_ns: int) -> int:
    """Return how long a bin is: long enough for a point of every series, and for `MAX_BINS` to hold the span."""
    gaps = [
        (last - first) * series / (points - series)
        for _, first, last, points, series in known
        if points > series
    ]
    gap_ns = float(np.median(gaps)) if gaps else 0.0
    return max(round(SCRAPES_PER_BIN * gap_ns), -(-(span_ns + 1) // MAX_BINS), 1)


def _read(
    connection: Any, key: JobKey, rule: MetricRule, known: set[str], span: tuple[int, int, int]
) -> Quantity | None:
    sources = [source for source in rule.sources if source.metric in known]
    for count in range(1, len(sources) + 1) if not rule.adds else [len(sources)]:
        chosen = sources[count - 1 : count] if not rule.adds else sources
        rows: list[tuple[Any, ...]] = []
        for source in chosen:
            about = {"metric": source.metric, "job": key.job}
            about |= {"first": str(span[0]), "last": str(span[1]), "width": str(span[2])}
            rows += connection.execute(_query(source, rule.combine), about).fetchall()
        if rows:
            return _pivot(rule, chosen[0].metric, rows, (span[1] - span[0]) // span[2] + 1)
    return None


def _query(source: Source, combine: Combine) -> str:
    """Return the query for the host, device, bin, value and largest part of one metric; names are of `rules`."""
    device = ", ".join(f"attributes ->> '$.\"{name}\"'" for name in source.device)
    part = "series" if source.part is None else f"attributes ->> '$.\"{source.part}\"'"
    number = "value" if source.column == "value" else f"CAST(data ->> '{source.column}' AS DOUBLE)"
    if source.mask is not None:
        number = f"CAST(CAST(value AS BIGINT) & {source.mask} <> 0 AS DOUBLE)"
    elif source.among:
        number = f"CAST(value IN ({', '.join(map(str, source.among))}) AS DOUBLE)"
    # Growth of a counter over the time that it took; one that was set back says nothing then.
    rate = (
        "sum(grown) * 1e9 / CASE WHEN bool_or(is_thinned) THEN CAST($width AS BIGINT) ELSE sum(passed_ns) END"
        if source.is_counter
        else "avg(number)"
    )
    kept = "passed_ns > 0 AND grown >= 0" if source.is_counter else "number IS NOT NULL"
    inside = "sum(rate)" if source.is_counter else "max(rate)"
    return f"""
WITH points AS (
    SELECT coalesce(host_name, host_id, attributes ->> '$."Hostname"', h.host, {ADDRESS}, 'unknown') AS place_host,
           {f"coalesce({device})" if device else "''"} AS device, {part} AS part, series, unix_ns, is_delta, is_thinned,
           {number} AS number, start_unix_ns
    FROM (SELECT *, CAST(attributes AS TEXT) || CAST(resource AS TEXT) AS series,
                 coalesce(data ->> 'temporality' = 'delta', false) AS is_delta,
                 {str(source.is_counter).lower()}
                     AND starts_with(coalesce(scope_name, ''), '{_THINNED_SCOPE}') AS is_thinned
          FROM metrics WHERE name = $metric AND {_IS_OF_JOB} AND {_conditions(source)}
              AND unix_ns BETWEEN CAST($first AS BIGINT) AND CAST($last AS BIGINT) AND value IS NOT NULL) m
    LEFT JOIN metric_hosts h ON h.address = {ADDRESS}
), moved AS (
    SELECT place_host, device, coalesce(part, '') AS part, series, unix_ns, number, is_thinned,
           CASE WHEN is_delta THEN number ELSE number - lag(number) OVER w END AS grown,
           unix_ns - CASE WHEN is_delta THEN start_unix_ns ELSE lag(unix_ns) OVER w END AS passed_ns
    FROM points WINDOW w AS (PARTITION BY series ORDER BY unix_ns)
), rated AS (
    SELECT place_host, device, part, series, is_thinned,
           (unix_ns - CAST($first AS BIGINT)) // CAST($width AS BIGINT) AS bin, {rate} AS rate
    FROM moved WHERE {kept} GROUP BY ALL
), parted AS (
    SELECT place_host, device, part, bin, is_thinned, {inside} AS value FROM rated GROUP BY ALL
)
SELECT place_host, coalesce(device, ''), bin, {combine.value}(value) * {source.scale!r}, arg_max(part, value),
       bool_or(is_thinned)
FROM parted GROUP BY ALL ORDER BY ALL
"""  # noqa: S608  (names and numbers of `rules` only)


def _conditions(source: Source) -> str:
    """Return what points of a source must be like. Pressure of a rank's control group is not the host's."""
    listed = [
        f"coalesce(attributes ->> '$.\"{name}\"', '') {word} ({', '.join(repr(v) for v in values)})"
        for word, pairs in (("IN", source.where), ("NOT IN", source.but))
        for name, values in pairs
    ]
    if source.metric.startswith("training.pressure"):
        listed.append("rank IS NULL")
    return " AND ".join(listed) or "true"


def _pivot(rule: MetricRule, metric: str, rows: list[tuple[Any, ...]], bins: int) -> Quantity:
    """Return rows as an array; of several metrics that add up, the sum of those that tell a bin."""
    places = sorted({Place(row[0], row[1]) for row in rows})
    number = {place: index for index, place in enumerate(places)}
    values = np.full((len(places), bins), np.nan)
    largest: dict[int, tuple[float, str]] = {}
    has_parts = any(source.part is not None for source in rule.sources)
    still = set()
    for host, device, at, value, part, is_thinned in rows:
        index = number[Place(host, device)]
        if is_thinned:
            still.add(index)
        if not 0 <= at < bins or value is None:
            continue
        known = values[index, at]
        values[index, at] = value if np.isnan(known) else known + value
        if value > largest.get(index, (-np.inf, ""))[0]:
            largest[index] = (float(value), str(part) if has_parts else "")
    for index in still:
        values[index] = np.nan_to_num(values[index], nan=0.0)
    parts = tuple(largest.get(index, (0.0, ""))[1] for index in range(len(places)))
    return Quantity(rule.id, metric, tuple(places), parts, values)
