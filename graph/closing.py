"""What every verdict needs, whichever path it came by: how the job ended, and whether `healthy` is earned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rootwalk.graph.align import ClockOffsets
from rootwalk.graph.coverage import check_earned
from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.ends.case import EndCase, Reach, read_end, read_reach
from rootwalk.graph.ends.failure import EndKind
from rootwalk.graph.ends.verdict import add_end, conclude_end
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.model import Evidence, Outcome, Verdict

__all__ = ["Closing", "read_closing"]


@dataclass(frozen=True, slots=True)
class Closing:
    """How far a job's records reach, and its end; None while it goes on, or where that is not known."""

    reach: Reach
    end: EndCase | None
    window_end: int | None = None

    def add_to(
        self, graph: DependencyGraph, evidence: tuple[Evidence, ...]
    ) -> tuple[Evidence, ...]:
        """Add the end of the job to a dependency graph, and return the evidence with that of its edges; safe twice."""
        return evidence if self.end is None else add_end(graph, self.end, evidence)

    def conclude(
        self, verdict: Verdict, graph: DependencyGraph, evidence: Sequence[Evidence]
    ) -> Verdict:
        """Return the verdict with the end of its job, `healthy` only where that is earned.

        Args:
            verdict: What the job's steps, operations, metrics or hangs say.
            graph: The dependency graph as the store gives it back.
            evidence: Its evidence rows, likewise.
        """
        if self.end is not None:
            verdict = conclude_end(verdict, self.end, graph, evidence)
        checked = check_earned(verdict, self.reach, self.end, self.window_end)
        return self._with_words(checked)

    def _with_words(self, verdict: Verdict) -> Verdict:
        """Return the verdict with the words of its end corrected by what the whole of it says."""
        end = verdict.end
        if end is None or end.kind != EndKind.INTERRUPTED:
            return verdict
        word = "healthy" if verdict.outcome == Outcome.HEALTHY else "not slow"
        return replace(
            verdict, end=replace(end, text=end.text.replace("it was not slow", f"it was {word}"))
        )


def read_closing(
    connection: Any,
    key: JobKey,
    offsets: ClockOffsets | None = None,
    window_end: int | None = None,
) -> Closing:
    """Return what a store says of the end of one attempt.

    Args:
        connection: An open store.
        key: The job and the attempt.
        offsets: Of its hosts' clocks; None for those that the store keeps.
        window_end: The last step that was asked for; None where the verdict is about the job's last steps.
    """
    if offsets is None:
        stored, is_aligned = _stored_offsets(connection, key)
        reach = read_reach(connection, key, stored, is_aligned=is_aligned, sigma_s=0.0)
    else:
        reach = read_reach(
            connection,
            key,
            offsets.offset_s_by_host,
            is_aligned=not offsets.quality,
            sigma_s=offsets.sigma_s,
        )
    end = read_end(connection, reach) if window_end is None else None
    return Closing(reach, end, window_end)


def _stored_offsets(connection: Any, key: JobKey) -> tuple[dict[str, float], bool]:
    """Return the clock offsets that an earlier diagnosis has kept, and whether each host of the job has one."""
    owner = [key.job, key.attempt]
    rows = connection.execute(
        "SELECT host_id, offset_ns FROM clock_offsets WHERE job = ? AND coalesce(attempt, 0) = ?",
        owner,
    ).fetchall()
    offsets = {str(host): float(ns) / 1e9 for host, ns in rows}
    hosts = {
        str(host)
        for (host,) in connection.execute(
            "SELECT DISTINCT host_id FROM ranks WHERE job = ? AND coalesce(attempt, 0) = ?", owner
        ).fetchall()
    }
    return offsets, len(hosts) <= 1 or hosts <= offsets.keys()
