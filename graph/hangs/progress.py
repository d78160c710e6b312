"""Read from a store what the ranks of a job report once they make no progress.

Owns the SQL: of each rank the last reports of its last spell only, of the communicators only those in which somebody
waits and on which the answer depends, of the stacks the groups, and whole stacks of single ranks on demand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from rootwalk.graph.hangs.live_evidence import (
    LiveEvidence,
    MainStackGroup,
    Moment,
    RankEnd,
    RankProgress,
    Spell,
    ThreadStack,
)
from rootwalk.graph.hangs.progress_communicators import read_communicators, read_ended_calls
from rootwalk.graph.hangs.stuck import Still, find_still
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingThreadRole

__all__ = ["find_progress_jobs", "read_evidence", "read_still"]

NS: Final = 1_000_000_000
# Reports of one rank that are kept: the last interval, and the one before for stacks and growth that come unevenly.
KEPT_MOMENTS: Final = 4
# Stacks of one thread that are read: those at 10, 13 and 16 s, and the later ones.
KEPT_STACKS: Final = 8
# Groups of ranks by stack that are read; the smallest come first.
MAX_GROUPS: Final = 32
# A step that ends so much later than the last progress was under way meanwhile: the hosts' clocks may differ.
STEP_SLACK_NS: Final = 2 * NS
# An hour of reports of thousands of ranks is not read: after ten minutes one comes a minute, so that these are two.
RECENT_NS: Final = 130 * NS
# Stacks come between the reports, which are at most so far apart in the first minute.
STACK_SLACK_NS: Final = 5 * NS


def _path(attribute: str) -> str:
    return f'$."{attribute}"'


_SPELLS: Final = f"""
WITH told AS (
    SELECT rank, unix_ns,
           unix_ns - CAST(1e9 * TRY_CAST(attributes ->> '{_path(semconv.TRAINING_PROGRESS_IDLE_TIME)}' AS DOUBLE)
                          AS BIGINT) AS since
    FROM log_records
    WHERE event_name = '{semconv.EVENT_TRAINING_RANK_PROGRESS}' AND job = $job AND coalesce(attempt, 0) = $attempt
          AND rank IS NOT NULL AND unix_ns IS NOT NULL
), marked AS (
    SELECT rank, unix_ns, since,
           coalesce(since >= lag(unix_ns) OVER (PARTITION BY rank ORDER BY unix_ns, since), true) AS is_new
    FROM told WHERE since IS NOT NULL
), numbered AS (
    SELECT *, count(*) FILTER (is_new) OVER (PARTITION BY rank ORDER BY unix_ns, since) AS spell FROM marked
)
SELECT rank, since, told, resumed FROM (
    SELECT rank, spell, min(since) AS since, max(unix_ns) AS told,
           lead(min(since)) OVER (PARTITION BY rank ORDER BY spell) AS resumed
    FROM numbered GROUP BY rank, spell
) WHERE told > since ORDER BY since, rank
"""  # noqa: S608  (our own names)

_KNOWN_RANKS: Final = """
SELECT DISTINCT rank FROM rank_summaries WHERE job = $job AND coalesce(attempt, 0) = $attempt AND rank IS NOT NULL
"""

_MOMENTS: Final = f"""
SELECT rank, arg_max(host_name, unix_ns), max(TRY_CAST(resource ->> '{_path(semconv.TRAINING_WORLD_SIZE)}' AS BIGINT)),
       arg_max(unix_ns, unix_ns, {KEPT_MOMENTS}), arg_max(attributes, unix_ns, {KEPT_MOMENTS})
FROM log_records
WHERE event_name = '{semconv.EVENT_TRAINING_RANK_PROGRESS}' AND job = $job AND coalesce(attempt, 0) = $attempt
      AND rank IS NOT NULL AND unix_ns BETWEEN $since AND $until
GROUP BY rank
"""  # noqa: S608

_FIELDS: Final = {
    "idle_s": (semconv.TRAINING_PROGRESS_IDLE_TIME, "DOUBLE"),
    "stage": (semconv.TRAINING_PROGRESS_STAGE, "TEXT"),
    "usual_s": (semconv.TRAINING_PROGRESS_USUAL_TIME, "DOUBLE"),
    "is_compiling": (semconv.TRAINING_PROGRESS_IS_COMPILING, "BOOLEAN"),
    "step": (semconv.TRAINING_STEP_NUMBER, "BIGINT"),
    "phase": (semconv.TRAINING_PHASE, "TEXT"),
    "state": (semconv.TRAINING_PROCESS_STATE, "TEXT"),
    "wait_kind": (semconv.TRAINING_WAIT_KIND, "TEXT"),
    "system_call": (semconv.TRAINING_WAIT_SYSTEM_CALL, "TEXT"),
    "cpu_s": (semconv.TRAINING_PROGRESS_CPU_TIME, "DOUBLE"),
    "main_cpu_s": (semconv.TRAINING_PROGRESS_MAIN_CPU_TIME, "DOUBLE"),
    "wakeups": (semconv.TRAINING_PROGRESS_WAKEUPS, "BIGINT"),
    "io_bytes": (semconv.TRAINING_PROGRESS_IO_SIZE, "BIGINT"),
    "pid": (semconv.PROCESS_PID, "BIGINT"),
}
_EXTRACT: Final = ", ".join(
    f"TRY_CAST(attributes ->> '{_path(key)}' AS {kind})" for key, kind in _FIELDS.values()
)
_READ_MOMENTS: Final = f"""
WITH last AS ({_MOMENTS}), each AS (
    SELECT rank, host, world, unnest(times) AS told, unnest(texts) AS attributes
    FROM last AS t(rank, host, world, times, texts)
)
SELECT rank, host, world, told, {_EXTRACT} FROM each ORDER BY rank, told
"""  # noqa: S608

_ENDS: Final = f"""
SELECT rank, unix_ns, event_name, TRY_CAST(attributes ->> '{_path(semconv.PROCESS_EXIT_CODE)}' AS BIGINT),
       attributes ->> '{_path(semconv.TRAINING_SIGNAL_NAME)}',
       coalesce(attributes ->> '{_path(semconv.TRAINING_PROCESS_IS_CHILD)}', 'false') = 'true'
FROM log_records
WHERE job = $job AND coalesce(attempt, 0) = $attempt AND unix_ns IS NOT NULL AND event_name IN (
    '{semconv.EVENT_TRAINING_PROCESS_END}', '{semconv.EVENT_TRAINING_PROCESS_SIGNAL}',
    '{semconv.EVENT_TRAINING_PROCESS_OOM_KILL}', '{semconv.EVENT_TRAINING_PROCESS_EXCEPTION}',
    '{semconv.EVENT_ROOTWALK_RUN_END}')
ORDER BY unix_ns
"""  # noqa: S608

_STEPS: Final = """
SELECT max(end_unix_ns), max(duration_ns) FILTER (step > first AND end_unix_ns <= $since),
       count(*) FILTER (step > first)
FROM (SELECT step, end_unix_ns, duration_ns, min(step) OVER () AS first FROM steps
      WHERE job = $job AND coalesce(attempt, 0) = $attempt AND is_complete)
"""

_LAST_STEP: Final = """
SELECT min(last) FROM (SELECT rank, max(step) AS last FROM steps
    WHERE job = $job AND coalesce(attempt, 0) = $attempt AND is_complete AND end_unix_ns <= $until GROUP BY rank)
"""

_STACK_GROUPS: Final = f"""
WITH last AS (
    SELECT rank, arg_max(attributes, unix_ns) AS attributes FROM log_records
    WHERE event_name = '{semconv.EVENT_TRAINING_RANK_STACK}' AND job = $job AND coalesce(attempt, 0) = $attempt
          AND rank IS NOT NULL AND unix_ns BETWEEN $since AND $until
          AND (attributes ->> '{_path(semconv.TRAINING_THREAD_ROLE)}') = '{TrainingThreadRole.MAIN}'
    GROUP BY rank
)
SELECT list(rank ORDER BY rank), frames FROM (
    SELECT rank, texts_of(attributes, '{semconv.TRAINING_STACK_FRAMES}') AS frames FROM last
) WHERE len(frames) > 0 GROUP BY frames ORDER BY count(*), min(rank) LIMIT {MAX_GROUPS}
"""  # noqa: S608

_STACKS: Final = f"""
SELECT rank, TRY_CAST(attributes ->> '{_path(semconv.THREAD_ID)}' AS BIGINT) AS thread,
       attributes ->> '{_path(semconv.TRAINING_THREAD_ROLE)}', unix_ns,
       texts_of(attributes, '{semconv.TRAINING_STACK_FRAMES}'),
       attributes ->> '{_path(semconv.TRAINING_WAIT_SYSTEM_CALL)}'
FROM log_records
WHERE event_name = '{semconv.EVENT_TRAINING_RANK_STACK}' AND job = $job AND coalesce(attempt, 0) = $attempt
      AND rank IN (SELECT unnest($ranks)) AND unix_ns BETWEEN $since AND $until
QUALIFY row_number() OVER (PARTITION BY rank, thread ORDER BY unix_ns DESC) <= {KEPT_STACKS}
ORDER BY rank, unix_ns, thread
"""  # noqa: S608


def find_progress_jobs(connection: Any, job: str | None = None) -> list[tuple[str, int]]:
    """Return the jobs with reports of ranks without progress, each with its latest such attempt."""
    rows = connection.execute(
        "SELECT job, max(coalesce(attempt, 0)) FROM log_records WHERE event_name = ? AND job IS NOT NULL"
        " AND rank IS NOT NULL AND (job = ? OR ?) GROUP BY job ORDER BY job",
        [semconv.EVENT_TRAINING_RANK_PROGRESS, job, job is None],
    ).fetchall()
    return [(str(name), int(attempt)) for name, attempt in rows]


def read_still(connection: Any, job: str, attempt: int) -> list[Still]:
    """Return the times in which no rank of a job made progress, in order."""
    key = {"job": job, "attempt": attempt}
    spells = [Spell(*map(_whole, row)) for row in connection.execute(_SPELLS, key).fetchall()]
    if not spells:
        return []
    ranks = {spell.rank for spell in spells}
    ranks |= {int(rank) for (rank,) in connection.execute(_KNOWN_RANKS, key).fetchall()}
    ends, endings = _read_ends(connection, key)
    ended_ns = {rank: end.time_ns for rank, end in ends.items()}
    found = find_still(spells, ranks | ended_ns.keys(), ended_ns, endings)
    if found and found[-1].is_open:
        last_step_ns = _read_usual(connection, key, found[-1].since_ns)[1]
        if last_step_ns > found[-1].until_ns + STEP_SLACK_NS:  # the report that it goes on was lost
            found[-1] = Still(found[-1].since_ns, found[-1].until_ns, is_open=False)
    return found


def _whole(value: Any) -> Any:
    return None if value is None else int(value)


def read_evidence(connection: Any, job: str, attempt: int, still: Still) -> LiveEvidence:
    """Return what is known of one time without progress."""
    key = {"job": job, "attempt": attempt}
    # What comes after the end of the wait is of another time, but stacks of the last report follow it.
    is_over = still.is_ending or not still.is_open
    span = key | {"since": still.since_ns, "until": still.until_ns}
    recent = span | {"since": max(still.since_ns, still.until_ns - RECENT_NS)}
    stack_span = span if is_over else span | {"until": still.until_ns + STACK_SLACK_NS}
    ranks, told_world = _read_ranks(connection, recent)
    known, world = _read_known(connection, key)
    world_size = max([size for size in (told_world, world) if size is not None], default=None)
    # An end that cuts the wait came after it, and is not why the job was still.
    ends = {
        rank: end
        for rank, end in _read_ends(connection, key)[0].items()
        if end.time_ns < still.until_ns + (not still.is_ending)
    }
    (last_step,) = connection.execute(_LAST_STEP, key | {"until": still.until_ns}).fetchone()
    read = read_communicators(connection, recent, world_size)
    return LiveEvidence(
        job=job,
        attempt=attempt,
        since_ns=still.since_ns,
        until_ns=still.until_ns,
        is_open=still.is_open,
        world_size=world_size,
        ranks=ranks,
        known=frozenset(known | ranks.keys() | ends.keys()),
        usual_s=_read_usual(connection, key, still.since_ns)[0],
        last_step=_whole(last_step) if last_step is not None else _step_before(ranks),
        communicators=read.rows,
        members=read.members,
        names=read.names,
        ended_calls=read_ended_calls(connection, key, read.rows),
        stack_groups=_read_groups(connection, stack_span),
        ends=ends,
        read_stacks=lambda ranks: _read_stacks(connection, stack_span, ranks),
    )


def _read_ranks(
    connection: Any, span: Mapping[str, Any]
) -> tuple[dict[int, RankProgress], int | None]:
    moments: dict[int, list[Moment]] = {}
    hosts: dict[int, str | None] = {}
    world_size = None
    for rank, host, world, told, *values in connection.execute(_READ_MOMENTS, span).fetchall():
        if world is not None:
            world_size = max(world_size or 0, int(world))
        fields = dict(zip(_FIELDS, values, strict=True))
        if fields["idle_s"] is None:
            continue
        fields["stage"] = fields["stage"] or ""
        fields["is_compiling"] = bool(fields["is_compiling"])
        hosts[int(rank)] = host
        moments.setdefault(int(rank), []).append(Moment(int(told), **fields))
    found = {}
    for rank, known in moments.items():
        since_ns = known[-1].told_ns - round(known[-1].idle_s * 1e9)
        spell = tuple(moment for moment in known if moment.told_ns > since_ns)
        if spell and known[-1].idle_s > 0:
            found[rank] = RankProgress(rank, hosts[rank], spell)
    return found, world_size


def _step_before(ranks: Mapping[int, RankProgress]) -> int | None:
    """Return the step before the one that the ranks are in; None before the second."""
    steps = [told.last.step for told in ranks.values() if told.last.step is not None]
    return min(steps) - 1 if steps and min(steps) > 0 else None


def _read_known(connection: Any, key: Mapping[str, Any]) -> tuple[set[int], int | None]:
    rows = connection.execute(
        "SELECT rank, world_size FROM rank_summaries WHERE job = $job AND coalesce(attempt, 0) = $attempt"
        " AND rank IS NOT NULL",
        key,
    ).fetchall()
    sizes = [int(size) for _, size in rows if size is not None]
    return {int(rank) for rank, _ in rows}, max(sizes, default=None)


def _read_ends(connection: Any, key: Mapping[str, Any]) -> tuple[dict[int, RankEnd], list[int]]:
    """Return the ends of the ranks' own processes, and when something began to end the job."""
    ends: dict[int, RankEnd] = {}
    for_memory: set[int] = set()
    endings: list[int] = []
    for rank, time_ns, event, code, signal, is_child in connection.execute(_ENDS, key).fetchall():
        if event == semconv.EVENT_ROOTWALK_RUN_END:
            endings.append(int(time_ns))
        if rank is None or is_child:
            continue
        if event == semconv.EVENT_TRAINING_PROCESS_OOM_KILL:
            for_memory.add(int(rank))
        elif event == semconv.EVENT_TRAINING_PROCESS_END:
            ends[int(rank)] = RankEnd(
                int(rank), int(time_ns), _whole(code), signal, int(rank) in for_memory
            )
        if event != semconv.EVENT_TRAINING_PROCESS_SIGNAL or signal not in _HARMLESS:
            endings.append(int(time_ns))
    return ends, endings


# Signals that stop or wake a process and do not end it.
_HARMLESS: Final = frozenset(("SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD"))


def _read_usual(connection: Any, key: Mapping[str, Any], since_ns: int) -> tuple[float | None, int]:
    """Return the longest step but the first before a moment, seconds, and when the last step of all ended."""
    row = connection.execute(_STEPS, {**key, "since": since_ns + STEP_SLACK_NS}).fetchone()
    last_ns, longest_ns, count = row
    usual_s = longest_ns / NS if longest_ns is not None and count else None
    return usual_s, int(last_ns or 0)


def _read_groups(connection: Any, span: Mapping[str, Any]) -> tuple[MainStackGroup, ...]:
    rows = connection.execute(_STACK_GROUPS, span).fetchall()
    return tuple(MainStackGroup(tuple(map(int, ranks)), tuple(frames)) for ranks, frames in rows)


def _read_stacks(
    connection: Any, span: Mapping[str, Any], ranks: Collection[int]
) -> dict[int, tuple[ThreadStack, ...]]:
    found: dict[int, list[ThreadStack]] = {}
    rows = connection.execute(_STACKS, {**span, "ranks": sorted(ranks)}).fetchall()
    for rank, thread, role, told_ns, frames, system_call in rows:
        if frames:
            stack = ThreadStack(
                int(rank), int(thread or 0), role or "", int(told_ns), tuple(frames), system_call
            )
            found.setdefault(stack.rank, []).append(stack)
    return {rank: tuple(stacks) for rank, stacks in found.items()}
