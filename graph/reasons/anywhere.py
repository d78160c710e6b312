"""Rules of the reasons: no layer can be told."""

from __future__ import annotations

from typing import Final

from rootwalk.graph.reasons.codes import Reason, Signal
from rootwalk.graph.reasons.rule import (
    SCHED_AND_CLOCKS,
    Rule,
)

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        Reason.GLOBAL_SLOW,
        None,
        "unknown",
        "all ranks slower, no late arriver",
        Signal.RUNNING,
        SCHED_AND_CLOCKS,
        (),
        "COMPARE_WITH_BEFORE",
        "look for what changed for all ranks at the onset (release, power, storage)",
    ),
)
