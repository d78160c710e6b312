"""`rootwalk demo --fault hang`: a job in which one rank stops, what is said while it hangs, and the final verdict."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from rootwalk.graph.commands.demo_faults import TrainingBug
from rootwalk.graph.commands.demo_job import (
    JobPlan,
    build_command,
    count_steps,
    find_target,
    job_environment,
)
from rootwalk.instrumentation.errors import RootwalkError

__all__ = ["HANG", "HANG_TEXT", "find_hang_differences", "show_hang"]

logger = logging.getLogger(__name__)

HANG: Final = "hang"
HANG_TEXT: Final = "one rank waits for an answer that never comes; the demo ends the job"
# The function of `train_with_bug.py` that the rank stays in, and what the verdict has to call it.
FUNCTION: Final = "wait_for_answer"
REASON: Final = "NOT_JOINED"
# Enough of the job's own steps to know its usual pace; some 5 s on two cores of 2024.
HEALTHY_STEPS: Final = 30
ENDLESS_STEPS: Final = 1_000_000
# The finding is due within 30 s of the hang; what comes later is late, and the demo says so.
LIVE_LIMIT_S: Final = 30.0
WAIT_S: Final = 45.0
# After the first line about the hang, s: another line would correct it.
SETTLE_S: Final = 2.0
POLL_S: Final = 0.1
# Rootwalk's lines about a finding name the job.
LINE_START: Final = "rootwalk: demo: "


@dataclass(frozen=True, slots=True)
class Shown:
    """What happened in the demo.

    Attributes:
        step: Steps that the rank had ended when its bug was switched on.
        line: The first line about a finding after that; None without one.
        after_s: How long after the bug it came, s; None without one.
    """

    step: int
    line: str | None
    after_s: float | None


class _Lines:
    """Passes a job's standard error on, and keeps the lines about findings.

    Args:
        stream: The job's standard error.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.findings: list[tuple[float, str]] = []
        self.thread = threading.Thread(target=self._relay, daemon=True)
        self.thread.start()

    def _relay(self) -> None:
        for line in self._stream:
            sys.stderr.write(line)
            sys.stderr.flush()
            if line.startswith(LINE_START):
                self.findings.append((time.monotonic(), line.removeprefix(LINE_START).strip()))

    def first_since(self, moment_s: float) -> tuple[float, str] | None:
        """Return the first line about a finding since a moment, and when it came."""
        return next((one for one in list(self.findings) if one[0] >= moment_s), None)


def show_hang(plan: JobPlan, json_path: Path | None) -> int:
    """Run the job until it hangs and that was said, end it, and compare the verdict; return 0 when it is right.

    Args:
        plan: What to train; the number of its steps is not used.
        json_path: Where the verdict is written too; None for nowhere.

    Raises:
        RootwalkError: If the job ends before it hangs, or leaves no verdict.
    """
    text = f"waits for an answer that never comes ({FUNCTION})"
    bug = TrainingBug(HANG, text, REASON)
    bug.prepare(plan.fault_rank, plan.folder)
    try:
        shown = _train(replace(plan, steps=ENDLESS_STEPS), bug)
    finally:
        bug.stop()
    if not plan.verdict.exists():
        raise RootwalkError("cannot judge the demo: the job left no verdict")
    text = plan.verdict.read_text(encoding="utf-8")
    if json_path is not None:
        json_path.write_text(text, encoding="utf-8")
    return _compare(json.loads(text), plan.fault_rank, shown)


def _train(plan: JobPlan, bug: TrainingBug) -> Shown:
    """Run the job, switch its bug on, wait for what is said, and end it."""
    logger.info("training on %d ranks until one hangs", plan.ranks)
    command = build_command(plan, bug)
    job = subprocess.Popen(  # noqa: S603  (our own command)
        command, env=job_environment(), stderr=subprocess.PIPE, text=True
    )
    if job.stderr is None:
        raise AssertionError("a pipe was asked for")
    lines = _Lines(job.stderr)
    try:
        log = plan.step_logs / f"rank{plan.fault_rank}.jsonl"
        while (step := count_steps(log)) < HEALTHY_STEPS:
            if job.poll() is not None:
                raise RootwalkError("cannot judge the demo: the job ended before it hung")
            time.sleep(POLL_S)
        bug.start(find_target(plan))
        began_s = time.monotonic()
        logger.info("step %d: %s", step, bug.describe())
        found = _await_word(job, lines, began_s)
    finally:
        job.terminate()  # passed on to the job; its verdict follows
        job.wait()
        lines.thread.join()
    if found is None:
        return Shown(step, None, None)
    return Shown(step, found[1], found[0] - began_s)


def _await_word(
    job: subprocess.Popen[str], lines: _Lines, began_s: float
) -> tuple[float, str] | None:
    """Return the first line about the hang, and when it came; None when none comes in time."""
    while job.poll() is None and time.monotonic() < began_s + WAIT_S:
        found = lines.first_since(began_s)
        if found is not None:
            time.sleep(SETTLE_S)
            return found
        time.sleep(POLL_S)
    return lines.first_since(began_s)


def _compare(verdict: dict[str, Any], fault_rank: int, shown: Shown) -> int:
    """Print the truth beside what was said; return 0 when all of it is right."""
    print("truth")
    print(f"  rank {fault_rank} waits in {FUNCTION} since step {shown.step + 1}")
    if shown.line is not None:
        print(f"  named while it hung, after {shown.after_s:.0f} s: {shown.line}")
    wrong = find_hang_differences(verdict, fault_rank, shown.after_s)
    if wrong:
        print(f"  the verdict is WRONG: {'; '.join(wrong)}")
        return 1
    print(f"  the verdict is right: rank {fault_rank}, {verdict['findings'][0]['reason']}")
    return 0


def find_hang_differences(
    verdict: dict[str, Any], fault_rank: int, after_s: float | None
) -> list[str]:
    """Return where the verdict and the line during the hang differ from the truth, in words.

    Args:
        verdict: The final verdict.
        fault_rank: The rank that hangs.
        after_s: When the first line about a finding came, in seconds after the hang; None without one.
    """
    wrong = []
    if after_s is None:
        wrong.append("nothing was said while the job hung")
    elif after_s > LIVE_LIMIT_S:
        wrong.append(f"the hang was named after {after_s:.0f} s, not within {LIVE_LIMIT_S:.0f} s")
    if not verdict["findings"]:
        return [*wrong, f"outcome {verdict['outcome']}"]
    finding = verdict["findings"][0]
    pairs = [
        ("kind", finding["kind"], "hang"),
        ("ranks", finding["subject"]["ranks"], [fault_rank]),
        ("reason", finding["reason"], REASON),
    ]
    wrong += [f"{what} {saw}, not {wanted}" for what, saw, wanted in pairs if saw != wanted]
    texts = [link["text"] for link in finding["chain"]]
    for group in (verdict["hang"] or {}).get("stack_groups", []):
        texts += group["frames"]
    if not any(FUNCTION in text for text in texts):
        wrong.append(f"{FUNCTION} is not named")
    return wrong
