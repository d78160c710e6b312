"""Which jobs are run: faults from the first step on and every so many steps, and quiet shapes."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CASES", "StartCase"]

INPUT = frozenset({"DATALOADER_IO", "DATALOADER_CPU", "UNKNOWN_HOST", "STORAGE_SLOW"})
# What is right for each fault of `training.py`.
REASONS: dict[str, frozenset[str]] = {
    "work": frozenset({"WORK_IMBALANCE"}),
    "sleep": frozenset({"UNKNOWN_HOST"}),
    "stop": frozenset({"PROCESS_SUSPENDED"}),
    "hog": frozenset({"CPU_CONTENTION"}),
    "collect": frozenset({"PY_GC"}),
    "load": INPUT,
}


@dataclass(frozen=True, slots=True)
class StartCase:
    """One case.

    Attributes:
        fault: Of `training.py`; `none` for a quiet job.
        shape: Of the loop.
        step_s: Of a step, s.
        steps: So many.
        share: Part of the time that is lost.
        period: Of the steps that lose it.
        onset: The first of them.
        ranks: Of the job.
    """

    fault: str = "none"
    shape: str = "ddp"
    step_s: float = 0.07
    steps: int = 200
    share: float = 0.1
    period: int = 1
    onset: int = 0
    ranks: int = 2
    reasons: frozenset[str] = field(default_factory=frozenset)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody is to be named."""
        return self.fault == "none"

    def options(self) -> list[str]:
        """Return the options of `training.py`."""
        named = {
            "--shape": self.shape,
            "--step-s": self.step_s,
            "--steps": self.steps,
            "--fault": self.fault,
            "--share": self.share,
            "--period": self.period,
            "--onset": self.onset,
        }
        return [str(part) for pair in named.items() for part in pair]


def _make() -> dict[str, StartCase]:
    cases: dict[str, StartCase] = {}
    for shape in ("ddp", "by_hand", "two_optimizers", "accumulate", "evaluate", "lengths"):
        cases[f"quiet_{shape}"] = StartCase(shape=shape, steps=160)
    cases["quiet_short_steps"] = StartCase(step_s=0.01, steps=600)
    cases["quiet_of_four"] = StartCase(ranks=4, steps=120)
    for fault, reasons in REASONS.items():
        share = {"hog": 0.3, "load": 0.6}.get(fault, 0.2)
        cases[f"start_{fault}"] = StartCase(fault, share=share, reasons=reasons)
        if fault in ("hog", "load"):
            continue
        for share in (0.05, 0.1):
            name = f"start_{fault}_{round(share * 100)}"
            cases[name] = StartCase(fault, share=share, reasons=reasons)
        for period in (2, 3, 5, 12, 50):
            steps, step_s = max(200, 8 * period), 0.04
            cases[f"every_{period}_{fault}"] = StartCase(
                fault, step_s=step_s, steps=steps, share=0.1, period=period, reasons=reasons
            )
    for onset in (3, 30, 300):
        for fault in ("work", "hog"):
            cases[f"onset_{onset}_{fault}"] = StartCase(
                fault,
                step_s=0.05,
                steps=onset + 170,
                share=0.25,
                onset=onset,
                reasons=REASONS[fault],
            )
    for step_s, steps in ((0.01, 800), (0.2, 100), (1.0, 40)):
        name = f"start_work_of_{step_s:g}_s"
        cases[name] = StartCase(
            "work", step_s=step_s, steps=steps, share=0.2, reasons=REASONS["work"]
        )
    cases["every_100_stop"] = StartCase(
        "stop", step_s=0.02, steps=700, share=0.1, period=100, reasons=REASONS["stop"]
    )
    return cases


CASES = _make()
