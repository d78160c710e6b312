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
from collections.abc import Sequence
from typing import Any, Final

from rootwalk.graph.hangs.host_waits import HostWait
from rootwalk.graph.hangs.judge import Hang
from rootwalk.graph.hangs.stacks import (
    MIN_SPAN_NS,
    MIN_WAIT_RATIO,
    NS,
    Found,
    RankKey,
    plain_name,
    read_samples,
    reblame,
    span_of,
    stacks_query,
    total_ns,
)
from rootwalk.graph.reasons import Reason
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingThreadRole

__all__ = ["find_forked", "is_in_inherited_lock"]

NEVER_NS: Final = 1 << 62
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


def find_forked(connection: Any, job: str, attempt: int, hang: Hang) -> Hang:
    """Return a hang in which ranks that did not join for a child's inherited lock are blamed for that.

    Args:
        connection: An open store.
        job: Its name.
        attempt: Of the job; profiles that tell none are of every one.
        hang: What the dumps say.
    """

    def find(rank: int, since_ns: int) -> Found | None:
        return _find(connection, (job, attempt, rank), since_ns)

    return reblame(connection, job, hang, find)


def is_in_inherited_lock(stack: Sequence[str]) -> bool:
    """Return whether a stack is that of a forked child which waits for a lock.

    Args:
        stack: Functions, outermost first; methods may have their class before them.
    """
    names = [plain_name(function) for function in stack]
    if _FORKS not in names:
        return False
    own = names[names.index(_FORKS) + 1 :]
    if not own or own[0] != _BEGINS or _INTERPRETER_LOCK in own or _WAITS & set(own):
        return False
    return any(lock in name for name in own for lock in _LOCKS)


def _find(connection: Any, key: RankKey, since_ns: int) -> Found | None:
    """Return the wait of a rank's child, and how surely it is one for an inherited lock."""
    samples = read_samples(connection, key, since_ns - BEFORE_NS)
    hung = [sample for sample in samples if sample.unix_ns >= since_ns]
    span_ns = span_of(hung)
    if span_ns < MIN_SPAN_NS:
        return None
    workers = [s for s in hung if s.role == TrainingThreadRole.LOADER_WORKER]
    locked = [s for s in workers if s.is_wait and is_in_inherited_lock(s.stack)]
    main = [s for s in hung if s.role == TrainingThreadRole.MAIN and s.is_wait]
    waited_ns = total_ns(locked)
    is_waited_for = total_ns(s for s in main if _WAITS & set(map(plain_name, s.stack)))
    ran_ns = total_ns(s for s in workers if not s.is_wait)
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
    wait = HostWait(_innermost(longest.stack), waited_ns, stacks_query(key, since_ns, _FORKS))
    return Found(Reason.FORK_DEADLOCK, wait, SEEN_ELSEWHERE if is_elsewhere else NEVER_ELSEWHERE)


def _is_alone(connection: Any, key: RankKey) -> bool:
    """Return whether the rank is known to have never had a second thread, which could hold a lock."""
    job, attempt, rank = key
    (most,) = connection.execute(
        "SELECT max(value) FROM metrics WHERE name = ? AND job = ? AND coalesce(attempt, ?) = ? AND rank = ?",
        [semconv.METRIC_PROCESS_THREAD_COUNT, job, attempt, attempt, rank],
    ).fetchone()
    return most is not None and most < 2


def _has_lost_child(connection: Any, key: RankKey, begin_ns: int) -> bool:
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
        name = plain_name(function)
        if name == _BEGINS:
            break
        is_waiting = any(lock in name for lock in _LOCKS) or name.startswith(_KERNEL)
        if not is_waiting and not _WITHOUT_NAME.search(name):
            return function
    return stack[-1]
