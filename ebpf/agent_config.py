"""How an agent runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rootwalk.ebpf.budget import DEFAULT_RATIO

__all__ = ["AgentConfig"]


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """How an agent runs.

    Attributes:
        endpoint: OTLP/HTTP base URL.
        job: Follow this job only; None follows all.
        without: Sensors that are switched off.
        level: 0 tells sums only, 1 every stall too, 2 every wait.
        budget_ratio: What the agent and its kernel programs may cost over the time of the steps that they watch; None
            for no limit.
        parent_pid: The `rootwalk run` that started this agent: stop when it is no longer the parent, and follow only
            this host's ranks and what it started. None to stay, and to follow all.
        profile_hz: How often the stacks of ranks' threads are taken, samples a second and CPU, 1 to 99; 0 for never.
        ring_directories: Where rings lie; None for this user's, and every user's when root.
    """

    endpoint: str
    job: str | None = None
    without: Collection[str] = ()
    level: int = 1
    budget_ratio: float | None = DEFAULT_RATIO
    parent_pid: int | None = None
    profile_hz: int = 0
    ring_directories: Sequence[Path] | None = None

    @property
    def has_hooks(self) -> bool:
        """Whether ranks are known to have hooks: `rootwalk run` has put them there."""
        return self.parent_pid is not None and "instrumentation" not in self.without
