"""Rules of the reasons: files and checkpoints."""

from __future__ import annotations

from typing import Final

from rootwalk.graph.reasons.codes import Reason, Signal
from rootwalk.graph.reasons.rule import (
    NO_DECODING,
    NOT_ON_CPU,
    SCHED_ONLY,
    Rule,
)

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        Reason.DATALOADER_IO,
        "storage",
        "storage",
        "input blocked on files",
        Signal.READ,
        SCHED_ONLY,
        (*NOT_ON_CPU, NO_DECODING),
        "SPEED_UP_STORAGE",
        "look at that storage; cache the data locally, or read ahead with more loader workers",
    ),
    Rule(
        Reason.CKPT_IO,
        "storage",
        "storage",
        "checkpoint blocked on files",
        Signal.WRITE,
        SCHED_ONLY,
        NOT_ON_CPU,
        "CHECKPOINT_ASIDE",
        "look at that storage; save checkpoints asynchronously, sharded, or less often",
    ),
    Rule(
        Reason.STORAGE_SLOW,
        "storage",
        "storage",
        "blocked on files on every host at once",
        Signal.FILES,
        SCHED_ONLY,
        (),
        "CHECK_STORAGE",
        "look at the storage that they share, and at who else uses it; cache the data locally",
    ),
)
