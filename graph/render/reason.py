"""All facts of one reason code, gathered from the rule tables: for `rootwalk explain` and the documentation."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Final

from rootwalk.graph.flows.rules import FLOW_RULES
from rootwalk.graph.hangs.rules import HANG_RULES
from rootwalk.graph.operations.rules import OPERATION_RULES, rule_of
from rootwalk.graph.reasons import RULES, WOULD_DECIDE, Reason
from rootwalk.graph.reasons.contract import CONTRACT
from rootwalk.graph.reasons.meanings import MEANINGS
from rootwalk.graph.render.text import signal_name

__all__ = ["ReasonFacts", "facts_of", "render_reason"]

_WIDTH: Final = 80
_LABEL_CELLS: Final = 12


@dataclass(frozen=True, slots=True)
class ReasonFacts:
    """One reason code.

    Attributes:
        code: The code of the contract.
        means: What it means, in a sentence.
        layer: Where the cause sits; None for a code without a layer.
        owner: Who usually fixes it.
        evidence: What a finding with it rests on.
        sensors: Sensors without which it cannot be told from its look-alikes.
        looks_like: What it is confused with, and how that differs.
        excluded: The codes that a finding with it rules out.
        is_measured: Whether each of them is ruled out by a number.
        action_code: What to do, for programs.
        action: What to do; what a finding fills in stands in capitals.
    """

    code: str
    means: str
    layer: str | None
    owner: str
    evidence: str
    sensors: tuple[str, ...]
    looks_like: str
    excluded: tuple[str, ...]
    is_measured: bool
    action_code: str
    action: str


def facts_of(code: str) -> ReasonFacts:
    """Return what is known of a code.

    Raises:
        ValueError: If it is not a code of the contract, or no rule gives it.
    """
    reason = Reason(code)
    layer, owner = CONTRACT[code]
    is_hang = reason in HANG_RULES
    action_code, action = _action_of(reason)
    return ReasonFacts(
        code=code,
        means=MEANINGS[code].means,
        layer=layer,
        owner=owner,
        evidence=_evidence_of(reason),
        sensors=tuple(sorted(s for s, codes in WOULD_DECIDE.items() if code in map(str, codes))),
        looks_like=MEANINGS[code].looks_like,
        excluded=_excluded_by(reason),
        is_measured=not is_hang,
        action_code=action_code,
        action=re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), action),
    )


def render_reason(facts: ReasonFacts) -> str:
    """Return a code's facts as text of at most 80 columns."""
    rows = [
        ("means", facts.means),
        ("layer", (facts.layer or "none").replace("_", " ")),
        ("owner", facts.owner),
        ("evidence", facts.evidence),
        ("sensors", ", ".join(facts.sensors)),
        ("looks like", facts.looks_like),
        ("ruled out", ", ".join(facts.excluded)),
        ("action", f"{facts.action} ({facts.action_code})"),
    ]
    indent = " " * _LABEL_CELLS
    lines = [facts.code, ""]
    lines += [
        textwrap.fill(
            text.replace("`", ""),
            _WIDTH,
            initial_indent=f"{label:<{_LABEL_CELLS}}",
            subsequent_indent=indent,
        )
        for label, text in rows
        if text
    ]
    return "\n".join(lines)


def _action_of(reason: Reason) -> tuple[str, str]:
    for rules in (RULES, HANG_RULES, OPERATION_RULES, FLOW_RULES):
        if reason in rules:
            rule = rules[reason]
            return rule.action_code, rule.action
    raise ValueError(f"cannot explain {reason}: saw no rule that gives it; needs one")


def _evidence_of(reason: Reason) -> str:
    if reason in HANG_RULES:
        return HANG_RULES[reason].evidence
    signal = str(rule_of(reason).magnitude)
    beside = (
        "of each operation, beside that of peers"
        if reason in OPERATION_RULES
        else "beside that of peers and before"
    )
    return f"{signal_name(signal)} (`{signal}`), {beside}"


def _excluded_by(reason: Reason) -> tuple[str, ...]:
    if reason in HANG_RULES:
        return tuple(item.reason for item in HANG_RULES[reason].excluded)
    return tuple(dict.fromkeys(item[0] for item in rule_of(reason).excludes))
