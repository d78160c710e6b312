"""Hosts that did not join because they wait for their own device, which does not end what it was given.

    rank   main |-- step --| launches | waits for the device ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
           GPU                        | a kernel that does not end, or no answer at all

Flight recorders say no more than that the rank never called what the others wait in. The stacks that the agent took of
it since then (`run --profile-hz`) say where it stands: for nearly all of that time in a call of CUDA that waits for the
device, asleep or spinning. A victim of another rank stands there too, in a collective that it has called: it is not
among those that did not join.

Where somebody says that this GPU no longer answers (`lost_devices`), the device is lost; else it hangs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from rootwalk.graph.hangs.host_waits import HostWait
from rootwalk.graph.hangs.judge import Hang
from rootwalk.graph.hangs.lost_devices import LostDevices
from rootwalk.graph.hangs.stacks import (
    MIN_SPAN_NS,
    MIN_WAIT_RATIO,
    Found,
    RankKey,
    Sample,
    plain_name,
    read_samples,
    reblame,
    span_of,
    stacks_query,
    total_ns,
)
from rootwalk.graph.reasons import Reason
from rootwalk.instrumentation.semconv import TrainingThreadRole

__all__ = ["find_on_device"]

# Prior, as those of `judge`.
STANDS_THERE: Final = 0.9

# What waits for a device, in the runtime and in the driver (CUDA 12 and 13); copies that are not asynchronous do.
_WAITS: Final = frozenset(
    (
        *("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"),
        *("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"),
        *("cuMemcpy", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoD_v2"),
    )
)
# The driver's names for streams of a thread's own.
_OF_THREAD: Final = "_ptsz"


def find_on_device(connection: Any, job: str, attempt: int, hang: Hang) -> Hang:
    """Return a hang in which ranks that did not join for their device are blamed for that.

    Args:
        connection: An open store.
        job: Its name.
        attempt: Of the job; profiles that tell none are of every one.
        hang: What the dumps say.
    """
    said = functools.cache(lambda since_ns: LostDevices(connection, job, attempt, since_ns))

    def find(rank: int, since_ns: int) -> Found | None:
        return _find(connection, (job, attempt, rank), since_ns, said)

    return reblame(connection, job, hang, find)


def _find(
    connection: Any, key: RankKey, since_ns: int, said: Callable[[int], LostDevices]
) -> Found | None:
    """Return the wait of a rank for its device."""
    samples = read_samples(connection, key, since_ns)
    main = [sample for sample in samples if sample.role == TrainingThreadRole.MAIN]
    span_ns = span_of(samples)
    waiting = [sample for sample in main if _waits_in(sample) is not None]
    waited_ns = total_ns(waiting)
    if span_ns < MIN_SPAN_NS or waited_ns < MIN_WAIT_RATIO * span_ns:
        return None
    longest = max(waiting, key=lambda sample: (sample.spent_ns, sample.stack))
    function = _waits_in(longest) or ""
    query, rank = stacks_query(key, since_ns, function), key[2]
    word = said(since_ns).word_of(rank)
    if word is not None:
        wait = HostWait(function, waited_ns, query, longest.is_wait, word)
        return Found(Reason.GPU_LOST, wait, min(STANDS_THERE, word.certainty))
    answers = said(since_ns).answers(rank)
    wait = HostWait(function, waited_ns, query, longest.is_wait, device_answers=answers)
    return Found(Reason.GPU_HANG, wait, STANDS_THERE)


def _waits_in(sample: Sample) -> str | None:
    """Return the outermost function of a stack that waits for the device; None without one."""
    names = map(plain_name, sample.stack)
    return next((name for name in names if name.removesuffix(_OF_THREAD) in _WAITS), None)
