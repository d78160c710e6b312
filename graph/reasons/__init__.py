"""The reason codes that this version can give, as data: layer, owner, evidence, action.

Owns what would be a chain of ifs elsewhere: a module for each layer. A reason stands only with its required evidence;
supporting evidence raises or lowers it; an abnormal competitor counts against it. Codes are the public contract
(section 2).
"""

from __future__ import annotations

from typing import Final

from rootwalk.graph.reasons import (
    anywhere,
    application,
    collective,
    device,
    framework,
    network,
    operating_system,
    storage,
)
from rootwalk.graph.reasons.codes import (
    FRAME_SIGNAL,
    OPERATION_SIGNAL,
    PATH_SIGNAL,
    STATE_SIGNALS,
    Reason,
    Signal,
)
from rootwalk.graph.reasons.rule import Rule
from rootwalk.graph.reasons.sensors import MONITOR_NAMES, WOULD_DECIDE

__all__ = [
    "FRAME_SIGNAL",
    "MONITOR_NAMES",
    "OPERATION_SIGNAL",
    "PATH_SIGNAL",
    "RULES",
    "RULES_VERSION",
    "STATE_SIGNALS",
    "WOULD_DECIDE",
    "Reason",
    "Rule",
    "Signal",
]

RULES_VERSION: Final = "2026-11-29"

_LAYERS: Final = (
    operating_system,
    application,
    framework,
    collective,
    storage,
    device,
    network,
    anywhere,
)
RULES: Final[dict[Reason, Rule]] = {rule.reason: rule for layer in _LAYERS for rule in layer.RULES}
