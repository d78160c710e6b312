"""The reasons of hangs, as data: layer, owner, words, what they exclude and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rootwalk.graph.hangs.host_waits import HostWait
from rootwalk.graph.model import Excluded
from rootwalk.graph.reasons import Reason

__all__ = ["BY_STACKS", "HANG_RULES", "HangRule", "rule_of"]


@dataclass(frozen=True, slots=True)
class HangRule:
    """One reason; `title` follows the ranks, `{operation}` stands for the operation that shows it.

    `evidence` says for the documents what a finding rests on.
    """

    layer: str
    owner: str
    syndrome: str
    title: str
    excluded: tuple[Excluded, ...]
    action_code: str
    action: str
    evidence: str


_NO_TRANSFER: Final = Excluded("UNKNOWN_NET", "no transfer: not all members have called it alike")
_NO_DEVICE: Final = Excluded("GPU_HANG", "no unfinished call waits on a device of theirs")

# Told by where a rank's threads stand.
BY_STACKS: Final = frozenset({Reason.FORK_DEADLOCK, Reason.GPU_HANG, Reason.GPU_LOST})

HANG_RULES: Final[dict[Reason, HangRule]] = {
    Reason.NOT_JOINED: HangRule(
        "application",
        "job",
        "non_communication_hang",
        "never called {operation}, waiting for no other rank",
        (_NO_DEVICE, _NO_TRANSFER),
        "INSPECT_HOST_CODE",
        "see what their Python threads do (py-spy dump), and their logs at that time",
        "the ranks' own records: what each called last, by number, and how many of the others' calls wait there;"
        " without them the agent's counts of NCCL's calls, where nothing has moved for minutes",
    ),
    Reason.FORK_DEADLOCK: HangRule(
        "application",
        "job",
        "non_communication_hang",
        "waits for a child, which waits for a lock that was copied, held, by fork; never called {operation}",
        (
            Excluded("DATALOADER_CPU", "no child of theirs runs"),
            Excluded("DATALOADER_IO", "the child waits in a lock, not for a file"),
            _NO_DEVICE,
            _NO_TRANSFER,
        ),
        "START_BY_SPAWN",
        "start workers before any thread, or by spawn or forkserver (multiprocessing_context)",
        "as `NOT_JOINED`, and stacks: for how long a forked child has stood in a lock",
    ),
    Reason.RANK_GONE: HangRule(
        "application",
        "job",
        "non_communication_hang",
        "no dump, and {operation} waits for it",
        (),
        "FIND_LOST_RANK",
        "see how these processes ended (exit code, kernel log, scheduler), or import their dumps",
        "records of all others, which wait for a rank that left none, or whose end was seen",
    ),
    Reason.GPU_HANG: HangRule(
        "device",
        "node",
        "non_communication_hang",
        "its device does not end its work, for which {operation} waits",
        (Excluded("UNKNOWN_NET", "other members have gone on with the same operation"),),
        "CHECK_DEVICE",
        "check these GPUs (nvidia-smi, Xid lines of the kernel log); restart without them",
        "an operation that its peers' devices have ended, and its own was given and has not; or stacks that stand in a"
        " wait for the device, before an operation that the others have called",
    ),
    Reason.GPU_LOST: HangRule(
        "device",
        "node",
        "non_communication_hang",
        "its GPU no longer answers, and {operation} waits for it",
        (_NO_TRANSFER,),
        "RESTART_HOST",
        "drain and restart the host; reseat or return the GPU if it recurs",
        "stacks that stand in a wait for the device, and NVML or the kernel's log (Xid), which says that it is gone",
    ),
    Reason.COLLECTIVE_MISMATCH: HangRule(
        "collective",
        "job",
        "communication_hang",
        "not the same call as the other members at {operation}",
        (_NO_TRANSFER,),
        "COMPARE_CALLS",
        "compare operation, size and type of what the members call there",
        "operation, size and type that each member called under one number",
    ),
    Reason.COLLECTIVE_DEADLOCK: HangRule(
        "collective",
        "job",
        "communication_hang",
        "operations of several groups wait for each other, among them {operation}",
        (_NO_TRANSFER,),
        "ORDER_COLLECTIVES",
        "issue the operations of these groups in the same order on all ranks",
        "the circle: which group's operation waits for which other's, rank by rank",
    ),
}

# A device that does not end what the rank gave it before the operation.
_HUNG_BEFORE: Final = replace(
    HANG_RULES[Reason.GPU_HANG],
    excluded=(_NO_TRANSFER,),
)
_ANSWERS: Final = Excluded("GPU_LOST", "NVML has had answers of these GPUs meanwhile")


def rule_of(reason: Reason, waits: Sequence[HostWait]) -> HangRule:
    """Return the rule of a reason.

    Args:
        reason: Of the blame.
        waits: Of its ranks, where stacks tell it: that may exclude other things than what dumps tell.
    """
    if reason is not Reason.GPU_HANG or not waits:
        return HANG_RULES[reason]
    if all(wait.device_answers for wait in waits):
        return replace(_HUNG_BEFORE, excluded=(_ANSWERS, *_HUNG_BEFORE.excluded))
    return _HUNG_BEFORE
