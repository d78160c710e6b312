"""Rules of the reasons: what the training framework did on the program's behalf."""

from __future__ import annotations

from typing import Final

from rootwalk.graph.reasons.codes import Reason, Signal
from rootwalk.graph.reasons.rule import BY_COUNTER, NO_GC, NO_LIMIT, NO_STRANGER, Rule

_NOBODY_ELSE: Final = (NO_STRANGER, *NO_LIMIT, NO_GC)


def _rule(reason: Reason, title: str, magnitude: Signal, action_code: str, action: str) -> Rule:
    """Return the rule of a reason that the program itself or a profile of it tells."""
    told = (title, magnitude, BY_COUNTER, _NOBODY_ELSE, action_code, action)
    return Rule(reason, "framework", "job", *told)


RULES: Final[tuple[Rule, ...]] = (
    _rule(
        Reason.COMPILE,
        "compiles again",
        Signal.COMPILING,
        "AVOID_RECOMPILES",
        "see why with TORCH_LOGS=recompiles; keep shapes static or mark them dynamic, share the cache, warm up",
    ),
    _rule(
        Reason.ALLOCATOR,
        "runs out of cached device memory",
        Signal.ALLOCATOR_RETRIES,
        "FREE_MEMORY",
        "use less device memory, keep shapes static, or set expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF",
    ),
    _rule(
        Reason.LAUNCH_BOUND,
        "launches cannot keep the device busy",
        Signal.LAUNCH_GAP,
        "FUSE_LAUNCHES",
        "launch fewer and larger kernels: torch.compile, CUDA graphs, fused optimisers; look at what slows the host",
    ),
    _rule(
        Reason.OVERLAP_LOST,
        "communication is no longer hidden behind computation",
        Signal.EXPOSED,
        "RESTORE_OVERLAP",
        "look at bucket sizes, prefetch limits and streams: what let computation and transfers run side by side",
    ),
)
