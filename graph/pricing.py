"""What lost time costs, by the price of an hour of one device.

    cost = seconds lost * devices that lost them / 3600 * price

The seconds of all devices are those of the finding (`lost.device_s`): each rank of the job is one device. All of them
lose what the step loses, or stand still while the job hangs. No currency is known: the cost has that of the price.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rootwalk.graph.model import Finding, Verdict

__all__ = ["with_costs"]

SECONDS_PER_HOUR: Final = 3600.0


def with_costs(verdict: Verdict, price: float | None) -> Verdict:
    """Return a verdict whose findings say what they have cost.

    Args:
        verdict: The verdict.
        price: Of one device for an hour; None leaves costs unknown.
    """
    if price is None:
        return verdict
    return replace(verdict, findings=tuple(_priced(one, price) for one in verdict.findings))


def _priced(finding: Finding, price: float) -> Finding:
    device_s = finding.lost.device_s
    if device_s is None:
        return finding
    cost = round(device_s / SECONDS_PER_HOUR * price, 4)
    return replace(finding, lost=replace(finding.lost, cost=cost))
