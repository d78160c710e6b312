"""Say in words that no rank of a job makes progress: who waits in what, who has not called it, and what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rootwalk.graph.hangs.judge import Blame
from rootwalk.graph.hangs.live_judge import RENDEZVOUS, Basis, Judgement
from rootwalk.graph.hangs.live_rules import live_rule_of
from rootwalk.graph.hangs.occupation import Doing
from rootwalk.graph.hangs.operations import Operation
from rootwalk.graph.reasons import Reason

__all__ = ["describe_blame", "describe_rank", "describe_wait", "name_live_operation", "name_ranks"]

# Ranks that are named one by one.
MAX_LISTED: Final = 8


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as people name them, the first ones one by one.

    >>> name_ranks((3,))
    'rank 3'
    """
    listed = ", ".join(str(rank) for rank in ranks[:MAX_LISTED])
    more = f" and {len(ranks) - MAX_LISTED} more" if len(ranks) > MAX_LISTED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}{more}"


def name_live_operation(operation: Operation, basis: Basis) -> str:
    """Return an operation as people name it: `all_reduce #12 of dp0`; without a number where none is known."""
    if operation.operation == RENDEZVOUS:
        return RENDEZVOUS
    if basis is Basis.STACKS:
        return "a collective"
    if basis is Basis.MESSAGES:
        return f"{operation.operation} of {operation.description}"
    return f"{operation.operation} #{operation.sequence} of {operation.description}"


def describe_rank(judgement: Judgement, rank: int, reason: Reason) -> str:
    """Return what one rank does that holds up others: `asleep in f (train.py:57); has not called all_reduce #12`."""
    operation = judgement.operation
    label = "it" if operation is None else name_live_operation(operation, judgement.basis)
    found = judgement.occupations.get(rank)
    if (
        reason is Reason.COLLECTIVE_MISMATCH
        and judgement.basis is Basis.STACKS
        and found is not None
    ):
        return f"{_in_call(judgement, rank)}; no other rank is in that call"
    if reason is Reason.COLLECTIVE_MISMATCH and operation is not None and rank in operation.calls:
        return f"called {operation.calls[rank].operation} as #{operation.sequence}, not as most others {label}"
    if reason in (Reason.COLLECTIVE_MISMATCH, Reason.COLLECTIVE_DEADLOCK, Reason.GPU_HANG):
        return live_rule_of(reason).title.format(operation=label)
    if found is None:
        return f"has not {_called(judgement)} {label}"
    text = found.text.rstrip(",")
    if found.doing in (Doing.GONE, Doing.NEVER_STARTED):
        return text
    return f"{text}; has not {_called(judgement)} {label}"


def _in_call(judgement: Judgement, rank: int) -> str:
    """Return the call by its name and place: `waits in barrier, called by main (train.py:80)`."""
    operation = judgement.operation
    name = (
        "" if operation is None or rank not in operation.calls else operation.calls[rank].operation
    )
    where = judgement.occupations[rank].where
    return f"waits in {name or 'a collective'}" + (f", called by {where}" if where else "")


def _called(judgement: Judgement) -> str:
    if judgement.basis is Basis.START:
        return "reached"
    return "joined" if judgement.basis is Basis.STACKS else "called"


def describe_blame(judgement: Judgement, blame: Blame) -> str:
    """Return the first line about one reason: `rank 3: asleep in f (train.py:57); has not called all_reduce #12`."""
    if not blame.ranks:
        label = name_live_operation(blame.operation, judgement.basis)
        count = len(blame.operation.calls)
        return f"all {count} ranks wait in {label}, and it does not end: no rank is to blame"
    by_text: dict[str, list[int]] = {}
    for rank in blame.ranks[:MAX_LISTED]:
        by_text.setdefault(describe_rank(judgement, rank, blame.reason), []).append(rank)
    parts = [f"{name_ranks(ranks)}: {text}" for text, ranks in by_text.items()]
    more = len(blame.ranks) - MAX_LISTED
    return "; ".join(parts) + (f"; and {more} more ranks" if more > 0 else "")


def describe_wait(judgement: Judgement, now_unix_ns: int | None = None) -> str:
    """Return what is seen of a job without progress, with and without anybody to blame.

    Args:
        judgement: What is known of it.
        now_unix_ns: Now; the end of the evidence by default.
    """
    evidence = judgement.evidence
    now_ns = max(evidence.until_ns, now_unix_ns or 0)
    words = f"no progress for {(now_ns - evidence.since_ns) / 1e9:.0f} s"
    if evidence.last_step is not None:
        words += f": after step {evidence.last_step}"
    elif evidence.ranks:
        words += ": before the first step"
    operation = judgement.operation
    if operation is None:
        return words
    label = name_live_operation(operation, judgement.basis)
    waiting = len(operation.calls)
    size = max(len(operation.members), waiting)
    words += f", {waiting} of {size} ranks {'is' if waiting == 1 else 'are'} in {label}"
    blames = judgement.hang.blames
    if (
        judgement.basis is Basis.STACKS
        and blames
        and blames[0].reason is Reason.COLLECTIVE_MISMATCH
    ):
        return f"{words}; {describe_blame(judgement, blames[0])}"
    blamed = [rank for blame in blames for rank in blame.ranks]
    missing = tuple(blamed or sorted({*operation.absent, *operation.gone}))
    if not missing:
        return words
    verb = f"{'has' if len(missing) == 1 else 'have'} not {_called(judgement)} it"
    words += f"; {name_ranks(missing)} {verb}"
    doing = [
        judgement.occupations[rank].text.rstrip(",")
        for rank in missing
        if rank in judgement.occupations
    ]
    if doing:
        words += f": {doing[0]}"
    return words
