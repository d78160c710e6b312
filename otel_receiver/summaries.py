"""Small tables about the big ones, kept in the transaction that stores the records they speak of.

Which jobs, ranks, processes and steps a store has, and the last state of what Rootwalk tells about itself, would each
need a look at every row. With these tables a diagnosis of the last steps reads no more of a store with 100 million
spans than of a small one.

A statement reads the rows that are being stored as the relation `incoming`, and knows nothing else of where they
come from: a batch, or in a migration a whole table.
"""

from __future__ import annotations

from typing import Any, Final

from rootwalk.instrumentation import semconv

__all__ = ["rebuild_summaries", "update_summaries"]

_RANK_STEP: Final = "name = 'training.rank_step'"
_LATEST: Final = ("local_rank", "world_size", "host_id", "host_name", "pid")
_KEEP_LATEST: Final = ",\n".join(
    f"    {name} = CASE WHEN n.latest_unix_ns >= t.latest_unix_ns THEN coalesce(n.{name}, t.{name})"
    f" ELSE coalesce(t.{name}, n.{name}) END"
    for name in _LATEST
)
_RANKS: Final = f"""
MERGE INTO rank_summaries AS t USING (
    SELECT job, attempt, rank, {", ".join(f"arg_max({c}, start_unix_ns) AS {c}" for c in _LATEST)},
           coalesce(max(start_unix_ns), 0) AS latest_unix_ns,
           min(step) FILTER ({_RANK_STEP}) AS first_step, max(step) FILTER ({_RANK_STEP}) AS last_step,
           coalesce(sum((end_unix_ns - start_unix_ns) / 1e9) FILTER ({_RANK_STEP}), 0) AS steps_s,
           min(start_unix_ns) AS first_unix_ns, max(end_unix_ns) AS last_unix_ns,
           max(received_unix_ns) AS received_unix_ns
    FROM incoming WHERE job IS NOT NULL GROUP BY job, attempt, rank
) AS n
ON t.job = n.job AND t.attempt IS NOT DISTINCT FROM n.attempt AND t.rank IS NOT DISTINCT FROM n.rank
WHEN MATCHED THEN UPDATE SET
{_KEEP_LATEST},
    latest_unix_ns = greatest(t.latest_unix_ns, n.latest_unix_ns),
    first_step = least(t.first_step, n.first_step), last_step = greatest(t.last_step, n.last_step),
    steps_s = t.steps_s + n.steps_s,
    first_unix_ns = least(t.first_unix_ns, n.first_unix_ns),
    last_unix_ns = greatest(t.last_unix_ns, n.last_unix_ns),
    received_unix_ns = greatest(t.received_unix_ns, n.received_unix_ns)
WHEN NOT MATCHED THEN INSERT BY NAME
"""  # noqa: S608  (constants of this module)

_STEPS: Final = f"""
MERGE INTO step_ranges AS t USING (
    SELECT job, attempt, step, min(start_unix_ns) AS start_unix_ns, max(end_unix_ns) AS end_unix_ns,
           max(received_unix_ns) AS received_unix_ns
    FROM incoming WHERE {_RANK_STEP} AND job IS NOT NULL AND step IS NOT NULL GROUP BY job, attempt, step
) AS n
ON t.step = n.step AND t.job = n.job AND t.attempt IS NOT DISTINCT FROM n.attempt
WHEN MATCHED THEN UPDATE SET
    start_unix_ns = least(t.start_unix_ns, n.start_unix_ns), end_unix_ns = greatest(t.end_unix_ns, n.end_unix_ns),
    received_unix_ns = greatest(t.received_unix_ns, n.received_unix_ns)
WHEN NOT MATCHED THEN INSERT BY NAME
"""  # noqa: S608  (constants of this module)

_SPAN_PROCESSES: Final = """
MERGE INTO rank_processes AS t USING (
    SELECT DISTINCT job, attempt, rank, host_id, pid FROM incoming
    WHERE job IS NOT NULL AND rank IS NOT NULL AND pid IS NOT NULL
) AS n
ON t.job = n.job AND t.rank = n.rank AND t.pid = n.pid
    AND t.attempt IS NOT DISTINCT FROM n.attempt AND t.host_id IS NOT DISTINCT FROM n.host_id
WHEN NOT MATCHED THEN INSERT BY NAME
"""

_METRIC_PROCESSES: Final = """
MERGE INTO rank_processes AS t USING (
    SELECT DISTINCT job, attempt, rank, host_id, TRY_CAST(resource ->> '$."process.pid"' AS BIGINT) AS pid
    FROM (SELECT DISTINCT job, attempt, rank, host_id, resource FROM incoming
          WHERE job IS NOT NULL AND rank IS NOT NULL)
    WHERE pid IS NOT NULL
) AS n
ON t.job = n.job AND t.rank = n.rank AND t.pid = n.pid
    AND t.attempt IS NOT DISTINCT FROM n.attempt AND t.host_id IS NOT DISTINCT FROM n.host_id
WHEN NOT MATCHED THEN INSERT BY NAME
"""

# What the diagnosis asks of metrics: one row for each rank, host or sensor. A sensor's state is 1 for the one it is in.
# What else tells the values of one metric apart is in the sensor's column.
_PARTS: Final = (
    semconv.ROOTWALK_SENSOR_NAME,
    semconv.ROOTWALK_BPF_PROGRAM_NAME,
    semconv.ROOTWALK_DROP_REASON,
)
_PART: Final = "coalesce(" + ", ".join(f"attributes ->> '$.\"{part}\"'" for part in _PARTS) + ")"
_STATE_METRICS: Final = (
    semconv.METRIC_ROOTWALK_SENSOR_STATE,
    semconv.METRIC_ROOTWALK_AGENT_CPU_TIME,
    semconv.METRIC_ROOTWALK_AGENT_MEMORY_USAGE,
    semconv.METRIC_ROOTWALK_AGENT_EVENTS,
    semconv.METRIC_ROOTWALK_AGENT_SENT_SIZE,
    semconv.METRIC_ROOTWALK_AGENT_DETAIL_LOWERED,
    semconv.METRIC_ROOTWALK_BPF_RUN_TIME,
    semconv.METRIC_ROOTWALK_DROPPED,
    semconv.METRIC_TRAINING_CGROUP_CPU_LIMIT,
)
_STATES: Final = f"""
MERGE INTO metric_states AS t USING (
    SELECT name, job, attempt, rank, host_id, host_name, {_PART} AS sensor,
           arg_max(attributes, coalesce(unix_ns, 0)) AS attributes, arg_max(value, coalesce(unix_ns, 0)) AS value,
           max(value) AS max_value, coalesce(max(unix_ns), 0) AS unix_ns
    FROM incoming
    WHERE name IN ({", ".join(f"'{name}'" for name in _STATE_METRICS)}) AND value > 0
    GROUP BY ALL
) AS n
ON t.name = n.name AND t.job IS NOT DISTINCT FROM n.job AND t.attempt IS NOT DISTINCT FROM n.attempt
    AND t.rank IS NOT DISTINCT FROM n.rank AND t.host_id IS NOT DISTINCT FROM n.host_id
    AND t.host_name IS NOT DISTINCT FROM n.host_name AND t.sensor IS NOT DISTINCT FROM n.sensor
WHEN MATCHED THEN UPDATE SET
    attributes = CASE WHEN n.unix_ns >= t.unix_ns THEN n.attributes ELSE t.attributes END,
    value = CASE WHEN n.unix_ns >= t.unix_ns THEN n.value ELSE t.value END,
    max_value = greatest(t.max_value, n.max_value),
    unix_ns = greatest(t.unix_ns, n.unix_ns)
WHEN NOT MATCHED THEN INSERT BY NAME
"""  # noqa: S608  (constants of this module)

_STATEMENTS: Final = {
    "span_records": (_RANKS, _STEPS, _SPAN_PROCESSES),
    "metric_records": (_METRIC_PROCESSES, _STATES),
}
_TABLES: Final = ("rank_summaries", "step_ranges", "rank_processes", "metric_states")


def update_summaries(connection: Any, table_name: str) -> None:
    """Add the rows of the relation `incoming`, which are new rows of a table, to what is known about that table."""
    for statement in _STATEMENTS.get(table_name, ()):
        connection.execute(statement)


def rebuild_summaries(connection: Any) -> None:
    """Summarise everything that is stored, anew; it reads the whole store."""
    for summary in _TABLES:
        connection.execute(f"DELETE FROM {summary}")  # noqa: S608  (constants of this module)
    for table_name in _STATEMENTS:
        connection.execute(f"CREATE TEMP VIEW incoming AS FROM {table_name}")
        update_summaries(connection, table_name)
        connection.execute("DROP VIEW incoming")
