"""What a verdict could not see, and what is wrong with its data, in words."""

from __future__ import annotations

from rootwalk.graph.model import Verdict

__all__ = ["remarks"]


def remarks(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """Return what could not be seen, what is wrong with the data, and where less was told, as (label, text)."""
    rows = []
    if verdict.missing_sensors:
        names = ", ".join(f"{m.sensor} ({m.reason})" for m in verdict.missing_sensors)
        rows.append(("not seen", names))
    rows += [("data", item.text) for item in verdict.data_quality]
    if verdict.cost.lowered_hosts:
        hosts = ", ".join(verdict.cost.lowered_hosts)
        rows.append(("detail", f"lowered on {hosts} at some time, to keep the agent's budget"))
    return tuple(rows)
