"""The reasons that recorded operations can show, as data, beside those of `reasons`."""

from __future__ import annotations

from typing import Final

from rootwalk.graph.reasons import RULES, Reason, Rule, Signal

__all__ = ["OPERATION_RULES", "WITHOUT_SENSORS", "rule_of"]

# The operations tell who is slow at what; why is for sensors on its device.
_OPERATIONS_AND_DEVICE: Final = (("steps", 0.85), ("nvml", 0.15))

OPERATION_RULES: Final[dict[Reason, Rule]] = {
    rule.reason: rule
    for rule in (
        Rule(
            Reason.SLOW_COMPUTE,
            "device",
            "unknown",
            "slower at the same work than its peers",
            Signal.EXCESS,
            _OPERATIONS_AND_DEVICE,
            (("UNKNOWN_NET", Signal.TRANSFER, "transfers {value:+.3f} s"),),
            "INSPECT_DEVICE",
            "look at this rank's device (clocks, temperature, errors); run it in another place to compare",
        ),
        Rule(
            Reason.STAGE_IMBALANCE,
            "application",
            "job",
            "the split into stages gives it more work than the others",
            Signal.EXCESS,
            (("steps", 1.0),),
            (("UNKNOWN_NET", Signal.TRANSFER, "transfers {value:+.3f} s"),),
            "SPLIT_EVENLY",
            "move layers from this stage to the others; no worker is bad",
        ),
        Rule(
            Reason.SEQ_IMBALANCE,
            "application",
            "job",
            "some micro-batches take all stages longer",
            Signal.EXCESS,
            (("steps", 1.0),),
            (("UNKNOWN_NET", Signal.TRANSFER, "transfers {value:+.3f} s"),),
            "BALANCE_SEQUENCES",
            "balance micro-batches by the work of their sequences, not their number; no worker is bad",
        ),
    )
}

# Sensors of which an operation trace has nothing.
WITHOUT_SENSORS: Final = ("nic_counters", "nvml", "rdma_counters", "sched")


def rule_of(reason: Reason, *, is_by_counter: bool = False) -> Rule:
    """Return the rule of a reason about slow steps.

    Args:
        reason: The reason.
        is_by_counter: Whether a counter has told it out of another one; recorded operations tell some of these too.
    """
    if is_by_counter and reason in RULES:
        return RULES[reason]
    return OPERATION_RULES.get(reason) or RULES[reason]
