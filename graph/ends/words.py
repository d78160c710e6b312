"""Say in one line how a job ended. Computes nothing: what the judge did not find is not said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rootwalk.graph.ends.departures import Departure
from rootwalk.graph.ends.failure import EndKind, JobFailure

__all__ = ["how_it_failed", "listed", "say_end", "sender_of"]

# Ranks that are named one by one.
MAX_LISTED: Final = 8
_KERNEL: Final = "kernel"


def listed(ranks: Sequence[int]) -> str:
    """Return ranks as a phrase.

    >>> listed((1, 3))
    'ranks 1, 3'
    """
    shown = ", ".join(map(str, ranks[:MAX_LISTED])) + (", …" if len(ranks) > MAX_LISTED else "")
    return f"rank{'s' * (len(ranks) != 1)} {shown}"


def sender_of(departure: Departure, rank_by_pid: dict[int, int]) -> str | None:
    """Return who sent the signal that ended a rank; None where that was not seen."""
    sent = departure.sent
    if sent is None:
        return None
    if sent.sender_pid is None:
        return _KERNEL
    if sent.sender_pid in rank_by_pid:
        return f"rank {rank_by_pid[sent.sender_pid]}"
    name = f", {sent.sender_name}" if sent.sender_name else ""
    return f"pid {sent.sender_pid}{name}"


def how_it_failed(kind: EndKind, culprit: Departure, sender: str | None) -> str:
    """Return what happened to the rank that failed first."""
    rank = f"rank {culprit.rank}"
    if culprit.exception is not None and kind is EndKind.EXCEPTION:
        place = f" in {culprit.exception.frames[0]}" if culprit.exception.frames else ""
        return f"{rank} raised {culprit.exception.type_name}{place}"
    if kind is EndKind.OUT_OF_MEMORY:
        return f"a process of {rank} was killed for memory"
    if kind is EndKind.CRASH:
        return f"{rank} crashed with {culprit.signal}"
    if kind is EndKind.KILLED:
        by = f"sent by {sender}" if sender is not None else "its sender was not seen"
        return f"{rank} was killed by {culprit.signal} ({by})"
    if kind is EndKind.EXIT_CODE:
        return f"{rank} ended with exit code {culprit.exit_code}"
    if culprit.end is not None:
        return f"{rank} was the first to end, and how was not seen"
    return f"rank {culprit.rank} ({culprit.host_name}) went silent, and no end of it was seen"


def say_end(
    failure: JobFailure, last_step: int | None, sender: str | None, until_then: str | None
) -> str:
    """Return how a job ended.

    Args:
        failure: What the judge found.
        last_step: The last step that was completed, None for none.
        sender: Who sent the signal that ended the rank that failed first.
        until_then: What the steps before say in one or two words; None where they say nothing.
    """
    after = f" after step {last_step}" if last_step is not None else " before its first step"
    tail = f"; until then it was {until_then}" if until_then and last_step is not None else ""
    run = failure.run
    if failure.kind is EndKind.COMPLETED:
        return f"job ended{after}{tail}"
    if failure.kind is EndKind.INTERRUPTED:
        return f"job was ended by the user (Ctrl-C){after}{tail}"
    if failure.kind is EndKind.TERMINATED:
        return f"job was ended by a signal to all of it{after}{tail}"
    head = f"job failed{after}"
    if last_step is None and run is not None:
        how = f"exit code {run.exit_code}" if run.signal is None else run.signal
        head = f"the command failed before its first step ({how})"
    if failure.culprit is not None:
        what = how_it_failed(failure.kind, failure.culprit, sender)
        return f"{head}: {what}{_company(failure)}{tail}"
    if failure.kind is EndKind.COMMAND_KILLED and run is not None:
        return f"{head}: the command itself was killed by {run.signal}{tail}"
    if failure.kind is EndKind.ABORTED:
        what = f"{listed(failure.victims)} gave up waiting, and for whom is not known"
        return f"{head}: {what}{tail}"
    if last_step is None and run is not None:
        return head
    how = f" (exit code {run.exit_code})" if run is not None and run.exit_code is not None else ""
    return f"{head}{how}, and which rank failed first is not known{tail}"


def _company(failure: JobFailure) -> str:
    """Return who failed at the same time, or in the same way."""
    if failure.rivals:
        return f" ({listed(failure.rivals)} failed at the same time, as far as clocks can say)"
    if failure.alike:
        return f" (and so did {listed(failure.alike)})"
    return ""
