"""The truth beside a demo's verdict: what was injected, what was found, and what else runs on this machine.

A busy machine has other causes than the injected one: the verdict is right when that one is among them, with its rank,
reason and process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rootwalk.graph.commands.demo_faults import Truth
from rootwalk.graph.commands.demo_job import StepTimes

__all__ = ["describe_load", "find_differences", "judge"]

# A fault that costs less than this part of a step is below what a verdict claims to see.
MIN_EFFECT: Final = 0.05
# How long the machine is watched before the demo, s.
LOAD_S: Final = 0.5
# Of one core: other processes that use less cost the demo's ranks less than a verdict claims to see.
MIN_LOAD: Final = 0.1
_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")


def describe_load(
    root: Path = Path("/proc"), pause: Callable[[float], None] = time.sleep
) -> str | None:
    """Return what other processes use of the CPUs, with the busiest one; None where that is too little to matter.

    Args:
        root: Folder that holds the processes.
        pause: Waits between the two samples, s.
    """
    before = _read_times(root)
    pause(LOAD_S)
    used = {
        pid: ((seconds - before[pid][0]) / LOAD_S, name)
        for pid, (seconds, name) in _read_times(root).items()
        if pid in before and pid != os.getpid()
    }
    total = sum(cores for cores, _ in used.values())
    if total < MIN_LOAD:
        return None
    pid, (cores, name) = max(used.items(), key=lambda item: (item[1][0], -item[0]))
    return (
        f"other processes use {total:.1f} of {os.cpu_count()} cores, most of it '{name}' (pid {pid}, {cores:.1f}):"
        " they will be found too"
    )


def _read_times(root: Path) -> dict[int, tuple[float, str]]:
    """Return the CPU time and the name of every process that can be read, by pid; seconds."""
    found = {}
    for path in root.glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text(encoding="utf-8", errors="replace").rpartition(")")
            fields = rest.split()
            ticks = int(fields[11]) + int(fields[12])
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
        found[int(path.parent.name)] = ticks * _TICK_S, head.partition("(")[2]
    return found


def judge(verdict: dict[str, Any], times: StepTimes, fault_rank: int, truth: Truth | None) -> int:
    """Print the truth beside the verdict; return 0 when the injected fault is among the causes found."""
    print("truth")
    if times.faulty_s is None or truth is None:
        is_right = verdict["outcome"] == "healthy"
        print(f"  no fault was injected; measured by the job: {times.healthy_s:.3f} s per step")
        print(f"  the verdict is {'right' if is_right else 'WRONG'}: {verdict['outcome']}")
        return 0 if is_right else 1
    added_s = times.faulty_s - times.healthy_s
    print(
        f"  measured by the job: {times.healthy_s:.3f} s per step before the fault,"
        f" {times.faulty_s:.3f} s with it (+{added_s:.3f} s)"
    )
    if added_s < MIN_EFFECT * times.healthy_s and verdict["outcome"] == "healthy":
        print(
            "  the fault took no effect on this machine: the verdict is right, the demo shows nothing"
        )
        return 1
    findings = verdict["findings"]
    places = [
        place
        for place, finding in enumerate(findings)
        if not find_differences(finding, fault_rank, truth)
    ]
    if not places:
        saw = find_differences(findings[0], fault_rank, truth) if findings else [verdict["outcome"]]
        print(f"  the verdict is WRONG: {'; '.join(saw)}")
        return 1
    found = findings[places[0]]
    share_s = found["seconds"]["share"]
    culprit = "" if truth.pid is None else f", pid {truth.pid}"
    where = f" as cause {places[0] + 1} of {len(findings)}" if len(findings) > 1 else ""
    print(
        f"  the verdict is right: rank {fault_rank}, {truth.reason}{culprit}{where};"
        f" {share_s:+.3f} s per step, {share_s / added_s:.0%} of what was added"
    )
    predicted_s = found["predicted_step_s"]
    if predicted_s is not None:
        print(
            f"  predicted without it {predicted_s:.3f} s ({predicted_s / times.healthy_s - 1:+.1%})"
        )
    others = [_name(finding) for place, finding in enumerate(findings) if place != places[0]]
    if others:
        print(f"  also found, not part of the demo: {'; '.join(others)}")
    return 0


def _name(finding: dict[str, Any]) -> str:
    """Return a finding in a few words: code, rank, process."""
    subject = finding["subject"]
    parts = [finding["reason"]]
    if subject["rank"] is not None:
        parts.append(f"rank {subject['rank']}")
    if subject["aggressor"]:
        parts.append(f"'{subject['aggressor']['name']}' pid {subject['aggressor']['pid']}")
    return " ".join(parts)


def find_differences(finding: dict[str, Any], fault_rank: int, truth: Truth) -> list[str]:
    """Return where a finding differs from the injected fault, in words."""
    subject = finding["subject"]
    pairs = [
        ("reason", finding["reason"], truth.reason),
        ("layer", finding["layer"], truth.layer),
        ("rank", subject["rank"], fault_rank),
    ]
    if truth.pid is not None:
        aggressor = subject["aggressor"] or {}
        pairs += [
            ("pid", aggressor.get("pid"), truth.pid),
            ("name", aggressor.get("name"), truth.name),
        ]
    return [f"{what} {saw}, not {wanted}" for what, saw, wanted in pairs if saw != wanted]
