"""Reasons of hangs that only live reports give, beside those that flight recorders give (`rules`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rootwalk.graph.hangs.rules import HANG_RULES, HangRule
from rootwalk.graph.model import Excluded
from rootwalk.graph.reasons import Reason
from rootwalk.graph.reasons.contract import CONTRACT

__all__ = ["LIVE_RULES", "live_rule_of"]

_NO_TRANSFER: Final = Excluded("UNKNOWN_NET", "no transfer: not all members have called it alike")

LIVE_RULES: Final[dict[Reason, HangRule]] = {
    Reason.PROCESS_SUSPENDED: HangRule(
        "operating_system",
        "unknown",
        "non_communication_hang",
        "was stopped from outside; never called {operation}",
        (_NO_TRANSFER,),
        "CONTINUE_PROCESS",
        "find who stopped these processes (a debugger, a freezer, SIGSTOP), and let them go on (SIGCONT)",
        "the state of the rank's training thread as the kernel has it, while others wait for the rank",
    ),
    Reason.OOM_KILL: HangRule(
        "operating_system",
        "node",
        "non_communication_hang",
        "its process was killed for memory; {operation} waits for it",
        (_NO_TRANSFER,),
        "GIVE_MEMORY",
        "give the job more memory, or make its processes take less; restart the job",
        "the kernel's word that it killed the rank's process for memory, while others wait for the rank",
    ),
    Reason.UNKNOWN_NET: HangRule(
        "network",
        "fabric",
        "communication_hang",
        "all members have called {operation}, and it does not end",
        (Excluded("NOT_JOINED", "every member has called it"),),
        "CHECK_NETWORK",
        "check the ways between these hosts (dropped packets, firewalls, links) and the devices that take part",
        "reports of every member: all have called the same, none has ended it, and no data moves",
    ),
}
# What the rank does was seen: nobody needs another tool to find it.
_NOT_JOINED: Final = replace(
    HANG_RULES[Reason.NOT_JOINED],
    action="see the function that is named, and the logs of these ranks at that time",
)
# A process whose end was seen.
_ENDED: Final = replace(
    HANG_RULES[Reason.RANK_GONE],
    title="its process has ended; {operation} waits for it",
    action="see why these processes ended (exit code, kernel log, scheduler); restart the job",
)


def live_rule_of(reason: Reason) -> HangRule:
    """Return the rule of a reason, as live evidence gives it."""
    if reason in LIVE_RULES:
        return LIVE_RULES[reason]
    if reason is Reason.NOT_JOINED:
        return _NOT_JOINED
    if reason is Reason.RANK_GONE:
        return _ENDED
    if reason in HANG_RULES:
        return HANG_RULES[reason]
    # Ends of processes have more codes than dumps of live ones can give.
    layer, owner = CONTRACT[reason]
    return replace(_ENDED, layer=layer or _ENDED.layer, owner=owner)
