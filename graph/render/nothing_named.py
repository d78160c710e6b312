"""The first line of a verdict that names nothing: all is well, or what would have to be known."""

from __future__ import annotations

from rootwalk.graph.model import QualityCode, Verdict
from rootwalk.graph.render.digits import seconds


def _steps(verdict: Verdict) -> str:
    first, last = verdict.window.first_step, verdict.window.last_step
    count = 0 if first is None or last is None else last - first + 1
    return f"{count} step{'s' * (count != 1)}"


def say_healthy(verdict: Verdict) -> str:
    """Return the answer where nothing stands out."""
    text = f"healthy: {seconds(verdict.step_s or 0.0)} a step over the last {_steps(verdict)}"
    if verdict.healthy_step_s is not None:
        text += f" (usual {seconds(verdict.healthy_step_s)}); no sustained slowdown above 10 % or the job's own noise"
    return text


def _doubt(verdict: Verdict) -> str:
    """Return why a job in which nothing was slow is not called healthy."""
    codes = (QualityCode.RANK_MISSING, QualityCode.NO_PROGRESS, QualityCode.JOB_FAILED)
    texts = [item.text for item in verdict.data_quality if item.code in codes]
    return texts[0] if texts else "the data do not carry more"


def say_insufficient(verdict: Verdict) -> str:
    """Return the answer where the records do not carry one, with what lacks."""
    if verdict.step_s is None:
        return "not enough evidence: the store has no complete step of all ranks and no operation that hangs"
    if verdict.kind == "slow" and verdict.healthy_step_s is not None:
        first, last = verdict.window.first_step, verdict.window.last_step
        return (
            f"not enough evidence: {seconds(verdict.step_s)} a step in steps {first} to {last}, "
            f"healthy {seconds(verdict.healthy_step_s)}, and no cause that the records support"
        )
    if verdict.healthy_step_s is not None:
        return (
            f"not enough evidence: {seconds(verdict.step_s)} a step, as usual, in the {_steps(verdict)} up to step "
            f"{verdict.window.last_step}, but {_doubt(verdict)}"
        )
    if verdict.what_if is not None:
        return (
            f"not enough evidence: {seconds(verdict.step_s)} a step, no difference between ranks above "
            "the noise floor, and no history of its own that would say more"
        )
    return (
        f"not enough evidence: {_steps(verdict)} of {seconds(verdict.step_s)}, with nothing to compare them with: no "
        "other rank that differs, and no 20 steps before them"
    )
