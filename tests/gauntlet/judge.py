"""Whether a run counts, and then whether its verdict is right: the first knows nothing of verdicts."""

from __future__ import annotations

from typing import Any

from gauntlet.case import NO_RANK, NOBODY, OTHER, RANK, Case, Truth
from gauntlet.job import Run
from gauntlet.neighbours import MAX_CORES
from rootwalk.graph.commands.demo import MIN_EFFECT

TOP = 3


def find_invalid(case: Case, run: Run) -> str | None:
    """Return why a run does not count; None when it does.

    A fault has to have done something by its own counter, and to cost the job 5 % of a step by the job's own clock. A
    near miss has to have done as much, and may not cost it. What costs all ranks the same may. Strangers on the machine
    are contention: where they had much of it, what was found says nothing.
    """
    if run.others_cores > MAX_CORES:
        return f"other processes kept {run.others_cores:.2f} cores busy"
    if run.effect is not None and not run.effect.is_enough:
        return f"took no effect: {run.effect.amount:.2f} {run.effect.unit}"
    if run.times.faulty_s is None:
        return None
    added = run.times.faulty_s / run.times.healthy_s - 1
    if case.may_fail:
        return None
    if case.is_fault and added < MIN_EFFECT:
        return f"cost the job {added:.1%} of a step"
    if case.truth.who == NOBODY and not case.may_cost and added >= MIN_EFFECT:
        return f"a near miss that cost the job {added:.1%} of a step"
    return None


def is_named(truth: Truth, finding: dict[str, Any], rank: int) -> bool:
    """Whether a finding is the truth: rank, layer, reason, kind."""
    wanted = {RANK: rank, OTHER: 1 - rank, NO_RANK: None}[truth.who]
    return (
        finding["subject"]["rank"] == wanted
        and finding["reason"] in truth.reasons
        and finding["layer"] in truth.layers
        and finding["kind"] == truth.kind
    )


def judge(case: Case, run: Run, rank: int, verdict: dict[str, Any]) -> dict[str, Any]:
    """Return how right a verdict is, and how far its seconds are off."""
    findings = verdict["findings"]
    result: dict[str, Any] = {
        "outcome": verdict["outcome"],
        "found": [
            [f["reason"], f["subject"]["rank"], (f["subject"]["aggressor"] or {}).get("name")]
            for f in findings[:TOP]
        ],
    }
    if not case.is_fault:
        blamed = [f for f in findings if not case.may_cost or f["subject"]["rank"] is not None]
        return result | {"top1": not blamed, "top3": not blamed, "blamed": len(blamed)}
    named = [is_named(case.truth, finding, rank) for finding in findings[:TOP]]
    if case.also is not None:
        return result | judge_pair(case.truth, case.also, rank, findings)
    others = {f["subject"]["rank"] for f in findings} - {None, rank}
    result |= {"top1": named[:1] == [True], "top3": any(named), "blamed": len(others)}
    if case.truth.kind == "slow" and result["top1"]:
        result |= measure(run, verdict)
    return result


def judge_pair(
    truth: Truth, also: Truth, rank: int, findings: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return how right a verdict about two causes is: both are its first two, in any order."""

    def has_both(some: list[dict[str, Any]]) -> bool:
        return all(any(is_named(one, finding, rank) for finding in some) for one in (truth, also))

    wrong = [
        finding
        for finding in findings
        if not is_named(truth, finding, rank) and not is_named(also, finding, rank)
    ]
    # Both ranks are to blame for something: what they are blamed for besides counts as a wrong accusation.
    blamed = sum(finding["subject"]["rank"] is not None for finding in wrong)
    return {"top1": has_both(findings[:2]), "top3": has_both(findings[:TOP]), "blamed": blamed}


def judge_hang(case: Case, rank: int, verdict: dict[str, Any]) -> dict[str, Any]:
    """Return how right a verdict about a hang is: the same, and nobody is accused besides."""
    findings = verdict["findings"]
    named = [is_named(case.truth, finding, rank) for finding in findings[:TOP]]
    accused = {one for finding in findings for one in finding["subject"]["ranks"]}
    allowed = accused if case.truth.who == NO_RANK else {rank}
    return {
        "outcome": verdict["outcome"],
        "found": [[f["reason"], f["subject"]["ranks"], None] for f in findings[:TOP]],
        "top1": named[:1] == [True],
        "top3": any(named),
        "blamed": len(accused - allowed),
    }


def measure(run: Run, verdict: dict[str, Any]) -> dict[str, Any]:
    """Return how far the seconds of the first finding are off, as parts of what the job's own clock says."""
    finding, times = verdict["findings"][0], run.times
    assert times.faulty_s is not None
    assert times.onset_step is not None
    added_s = times.faulty_s - times.healthy_s
    result: dict[str, Any] = {
        "share_error": round(finding["seconds"]["share"] / added_s - 1, 3),
        "predicted_error": round(verdict["predicted_step_s"] / times.healthy_s - 1, 3),
        "onset_error": finding["onset"]["step"] - times.onset_step,
        "band": finding["confidence"]["band"],
    }
    for key in ("detected", "named"):
        moment_ns = finding[f"{key}_unix_ns"]
        if moment_ns is not None and run.begun_unix_s is not None:
            result[f"{key}_s"] = round(moment_ns / 1e9 - run.begun_unix_s, 1)
    return result


def is_right(row: dict[str, Any]) -> bool:
    """Whether a stored run is valid and right."""
    return row.get("invalid") is None and row.get("top1") is True
