"""Hosts that did not join because a child that they forked waits for ever: a lock was held while they forked.

    rank   thread A   |-- holds the lock ------|
           main             fork |~~~ waits for the child ~~~~~~~~~~~~~~~~~~~~~~~~~~~
           child                 |~~~ waits for its copy of the lock, which has no thread to release it ~~~

Read from the stacks that the agent took of the rank since the others have been waiting (`run --profile-hz`): a thread
that goes on waiting is told too, once a second. All of this has to hold, else the rank stays one that did not join:

- a child waits in a lock, for nearly all of that time. Its stack begins with its parent's, down to what forked it: a
  child that was spawned, or that a fork server made, has a stack of its own;
- it does not wait for work, as a worker that has delivered does, and no child of the rank runs, as slow ones do;
- the rank's main thread waits for a child, for nearly all of that time;
- the parent is not known to have had one thread only, and no child of it has just been ended.

A stack does not tell which of several children it is of. Where some were seen elsewhere shortly before, the one in the
lock may have worked, and then taken a lock that its own threads hold: it is said less surely.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rootwalk.graph.hangs.flight_records import LockWait
from rootwalk.graph.hangs.judge import Blame, Hang
from rootwalk.graph.reasons import Reason
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingThreadRole

__all__ = ["find_forked", "is_in_inherited_lock"]

NS: Final = 1_000_000_000
NEVER_NS: Final = 1 << 62
# Less is a wait as any other.
MIN_SPAN_NS: Final = 5 * NS
# Of that time; the profile's ends do not fall on those of the hang.
MIN_WAIT_RATIO: Final = 0.8
# More than what wakes up now and then to look.
MAX_RUN_RATIO: Final = 0.05
# Before the others wait: a forked worker is under way within seconds.
BEFORE_NS: Final = 30 * NS
# Priors, as those of `judge`.
NEVER_ELSEWHERE: Final = 0.9
SEEN_ELSEWHERE: Final = 0.6

# What multiprocessing calls in the parent to fork, and first in the child (CPython 3.11 to 3.13, popen_fork.py).
_FORKS, _BEGINS = "_launch", "_bootstrap"
# Python functions in which one waits for another process, or for a thread that says something: no locks.
_WAITS: Final = frozenset(
    (
        "get",
        "put",
        "poll",
        "recv",
        "recv_bytes",
        "wait",
        "wait_for",
        "join",
        "select",
        "_try_get_data",
    )
)
# Functions of the kernel, the C library and the interpreter that wait for a lock.
_LOCKS: Final = (
    *("futex", "lll_lock_wait", "pthread_mutex_lock", "pthread_rwlock", "lock_acquire"),
    *("sem_wait", "sem_clockwait", "sem_timedwait", "acquire_lock"),
)
_KERNEL: Final = ("do_", "__", "entry_", "x64_")
# Code of which only the file is known.
_WITHOUT_NAME: Final = re.compile(r"\+0x[0-9a-f]+$")
_INTERPRETER_LOCK: Final = "take_gil"

_SAMPLES: Final = (
    "SELECT s.unix_ns, p.duration_ns, s.sample_type, s.attributes ->> ?, s.stack,"
    " sum(CASE WHEN s.unit = 'count' THEN s.value * coalesce(p.period, 0) ELSE s.value END)::BIGINT"
    " FROM profile_samples s JOIN (SELECT DISTINCT profile_id, duration_ns, period FROM profiles"
    " WHERE job = ? AND rank = ?) p USING (profile_id)"
    " WHERE s.job = ? AND s.rank = ? AND coalesce(s.attempt, ?) = ? AND s.unix_ns >= ?"
    " GROUP BY ALL ORDER BY ALL"
)


@dataclass(frozen=True, slots=True)
class _Sample:
    unix_ns: int
    end_ns: int
    is_wait: bool
    role: str
    stack: tuple[str, ...]
    spent_ns: int


def find_forked(connection: Any, job: str, attempt: int, hang: Hang) -> Hang:
    """Return a hang in which ranks that did not join for a child's inherited lock are blamed for that.

    Args:
        connection: An open store.
        job: Its name.
        attempt: Of the job; profiles that tell none are of every one.
        hang: What the dumps say.
    """
    blames: list[Blame] = []
    waits: dict[int, LockWait] = {}
    for blame in hang.blames:
        left = []
        for rank in blame.ranks if blame.reason is Reason.NOT_JOINED else ():
            found = _find(connection, (job, attempt, rank), blame.operation.since_unix_ns)
            if found is None:
                left.append(rank)
                continue
            waits[rank], certainty = found
            certainty = min(certainty, blame.certainty)
            blames.append(
                replace(blame, reason=Reason.FORK_DEADLOCK, ranks=(rank,), certainty=certainty)
            )
        if blame.reason is not Reason.NOT_JOINED:
            blames.append(blame)
        elif left:
            blames.append(replace(blame, ranks=tuple(left)))
    if not waits:
        return hang
    blames.sort(key=lambda blame: (-blame.certainty, str(blame.reason), blame.ranks))
    return replace(hang, blames=tuple(blames), lock_waits=waits)


def is_in_inherited_lock(stack: Sequence[str]) -> bool:
    """Return whether a stack is that of a forked child which waits for a lock.

    Args:
        stack: Functions, outermost first; methods may have their class before them.
    """
    names = [_plain(function) for function in stack]
    if _FORKS not in names:
        return False
    own = names[names.index(_FORKS) + 1 :]
    if not own or own[0] != _BEGINS or _INTERPRETER_LOCK in own or _WAITS & set(own):
        return False
    return any(lock in name for name in own for lock in _LOCKS)


def _plain(function: str) -> str:
    return function.rpartition(".")[2]


def _find(
    connection: Any, key: tuple[str, int, int], since_ns: int
) -> tuple[LockWait, float] | None:
    """Return the wait of a rank's child, and how surely it is one for an inherited lock."""
    samples = _read(connection, key, since_ns - BEFORE_NS)
    hung = [sample for sample in samples if sample.unix_ns >= since_ns]
    if not hung:
        return None
    span_ns = max(s.end_ns for s in hung) - min(s.unix_ns for s in hung)
    if span_ns < MIN_SPAN_NS:
        return None
    workers = [s for s in hung if s.role == TrainingThreadRole.LOADER_WORKER]
    locked = [s for s in workers if s.is_wait and is_in_inherited_lock(s.stack)]
    main = [s for s in hung if s.role == TrainingThreadRole.MAIN and s.is_wait]
    waited_ns = _total_ns(locked)
    is_waited_for = _total_ns(s for s in main if _WAITS & set(map(_plain, s.stack)))
    ran_ns = _total_ns(s for s in workers if not s.is_wait)
    if min(waited_ns, is_waited_for) < MIN_WAIT_RATIO * span_ns or ran_ns > MAX_RUN_RATIO * span_ns:
        return None
    if _is_alone(connection, key) or _has_lost_child(connection, key, since_ns - BEFORE_NS):
        return None
    is_elsewhere = any(
        s.role == TrainingThreadRole.LOADER_WORKER and not is_in_inherited_lock(s.stack)
        for s in samples
        if s.unix_ns < since_ns
    )
    longest = max(locked, key=lambda s: (s.spent_ns, s.stack))
    wait = LockWait(_innermost(longest.stack), waited_ns, _query(key, since_ns))
    return wait, SEEN_ELSEWHERE if is_elsewhere else NEVER_ELSEWHERE


def _read(connection: Any, key: tuple[str, int, int], begin_ns: int) -> list[_Sample]:
    job, attempt, rank = key
    role = f'$."{semconv.TRAINING_THREAD_ROLE}"'
    rows = connection.execute(
        _SAMPLES, [role, job, rank, job, rank, attempt, attempt, begin_ns]
    ).fetchall()
    return [
        _Sample(
            int(unix_ns),
            int(unix_ns) + int(duration_ns or 0),
            kind == "off_cpu",
            role or "",
            tuple((stack or "").split(";")),
            int(spent_ns or 0),
        )
        for unix_ns, duration_ns, kind, role, stack, spent_ns in rows
    ]


def _total_ns(samples: Iterable[_Sample]) -> int:
    return sum(sample.spent_ns for sample in samples)


def _is_alone(connection: Any, key: tuple[str, int, int]) -> bool:
    """Return whether the rank is known to have never had a second thread, which could hold a lock."""
    job, attempt, rank = key
    (most,) = connection.execute(
        "SELECT max(value) FROM metrics WHERE name = ? AND job = ? AND coalesce(attempt, ?) = ? AND rank = ?",
        [semconv.METRIC_PROCESS_THREAD_COUNT, job, attempt, attempt, rank],
    ).fetchone()
    return most is not None and most < 2


def _has_lost_child(connection: Any, key: tuple[str, int, int], begin_ns: int) -> bool:
    """Return whether a child of the rank was ended since a moment, before the rank itself, by a signal or an error."""
    job, attempt, rank = key
    (end_ns,) = connection.execute(
        "SELECT coalesce(min(unix_ns), ?) FROM logs WHERE event_name = ? AND job = ? AND coalesce(attempt, ?) = ?"
        " AND rank = ? AND (attributes ->> ?) = 'false'",
        [
            *(NEVER_NS, semconv.EVENT_TRAINING_PROCESS_END, job, attempt, attempt, rank),
            f'$."{semconv.TRAINING_PROCESS_IS_CHILD}"',
        ],
    ).fetchone()
    (ended,) = connection.execute(
        "SELECT count(*) FROM logs WHERE event_name = ? AND job = ? AND coalesce(attempt, ?) = ? AND rank = ?"
        " AND unix_ns >= ? AND unix_ns < ? AND (attributes ->> ?) = 'true' AND coalesce(attributes ->> ?, '') <> '0'",
        [
            *(semconv.EVENT_TRAINING_PROCESS_END, job, attempt, attempt, rank, begin_ns, end_ns),
            f'$."{semconv.TRAINING_PROCESS_IS_CHILD}"',
            f'$."{semconv.PROCESS_EXIT_CODE}"',
        ],
    ).fetchone()
    return bool(ended)


def _innermost(stack: Sequence[str]) -> str:
    """Return the innermost function that is not the waiting itself."""
    for function in reversed(stack):
        name = _plain(function)
        if name == _BEGINS:
            break
        is_waiting = any(lock in name for lock in _LOCKS) or name.startswith(_KERNEL)
        if not is_waiting and not _WITHOUT_NAME.search(name):
            return function
    return stack[-1]


def _query(key: tuple[str, int, int], since_ns: int) -> str:
    job, _, rank = key
    name = job.replace("'", "''")
    return (
        "SELECT stack, sum(value) AS value FROM profile_samples"  # noqa: S608
        f" WHERE job = '{name}' AND rank = {rank} AND sample_type = 'off_cpu' AND unix_ns >= {since_ns}"
        f" AND contains(stack, '{_FORKS}') GROUP BY ALL ORDER BY value DESC"
    )
