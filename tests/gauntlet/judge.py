"""Whether a run counts, and then whether its verdict is right: the first knows nothing of verdicts."""

from __future__ import annotations

from typing import Any

from gauntlet.case import NO_RANK, NOBODY, OTHER, RANK, Case, Truth
from gauntlet.job import Run
from gauntlet.neighbours import MAX_CORES
from rootwalk.graph.commands.demo_truth import MIN_EFFECT

TOP = 3
NS = 1_000_000_000
LAYERS = (
    "operating_system",
    "application",
    "framework",
    "collective",
    "device",
    "network",
    "storage",
)
# Codes that say less than the truth and nothing false, by the layers of truths for which that holds.
VAGUE: dict[str, tuple[str, ...]] = {
    "UNKNOWN_HOST": ("operating_system", "application", "framework", "storage"),
    "UNKNOWN_NET": ("network", "collective", "device"),
    "UNKNOWN_GPU": ("device",),
    "SLOW_COMPUTE": ("device",),
    "GLOBAL_SLOW": LAYERS,
}
# Of these only without a rank: all ranks being slow accuses none.
VAGUE_OF_ALL = "GLOBAL_SLOW"
# What any hang comes to for the others.
VAGUE_OF_HANGS = "NOT_JOINED"
# Variants in which a verdict cannot know everything; it must not say anything wrong.
BLIND_VARIANTS = ("without bpf", "without instrumentation")
NO_VERDICT = "no verdict"
# What a verdict may call slow: where the job's own clock says it of all ranks, that it does so accuses nobody.
SLOW_RATIO = 0.1


def find_invalid(case: Case, run: Run) -> str | None:
    """Return why a run does not count; None when it does.

    A fault has to have done something by its own counter, and to cost the job 5 % of a step by the job's own clock. A
    near miss has to have done as much, and may not cost as much of the middle step. What costs all ranks the same may.
    Strangers on the machine are contention: where they had much of it, what was found says nothing.
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
    if case.truth.who == NOBODY and not case.may_say and run.added >= MIN_EFFECT:
        return f"a near miss that cost the job {run.added:.1%} of a step"
    return None


def find_rank(truth: Truth, rank: int) -> int | None:
    """Return the rank that a truth is about; None where none is to blame."""
    return {RANK: rank, OTHER: 1 - rank}.get(truth.who)


def has_reason(truth: Truth, finding: dict[str, Any]) -> bool:
    """Whether a finding has the layer, reason and kind of the truth, of whatever rank."""
    return (
        finding["reason"] in truth.reasons
        and finding["layer"] in truth.layers
        and finding["kind"] == truth.kind
    )


def is_named(truth: Truth, finding: dict[str, Any], rank: int) -> bool:
    """Whether a finding is the truth: rank, layer, reason, kind."""
    return finding["subject"]["rank"] == find_rank(truth, rank) and has_reason(truth, finding)


def is_vague(truth: Truth, finding: dict[str, Any]) -> bool:
    """Whether a finding only says less than the truth, of whatever rank."""
    if finding["kind"] != truth.kind:
        return False
    if truth.kind == "hang" and finding["reason"] == VAGUE_OF_HANGS:
        return True
    if finding["reason"] == VAGUE_OF_ALL and finding["subject"]["rank"] is not None:
        return False
    return not set(VAGUE.get(finding["reason"], ())).isdisjoint(truth.layers)


def is_fine(truth: Truth, finding: dict[str, Any], rank: int) -> bool:
    """Whether nothing that a finding says is false: the truth or less than it, of its rank or of none."""
    who = finding["subject"]["rank"]
    is_allowed = who is None or who == find_rank(truth, rank)
    return is_allowed and (has_reason(truth, finding) or is_vague(truth, finding))


def judge(case: Case, run: Run, rank: int, verdict: dict[str, Any]) -> dict[str, Any]:
    """Return how right a verdict is, how soon it came, and how far its seconds are off.

    Returns:
        `outcome`, `found` (the first three: reason, rank, aggressor), `top1` and `top3` (whether the truth is first,
        and among the first three), `blamed` (others that are accused), `wrong` (findings that say something false);
        of a slow fault also `detected_s` and `named_s`, and where it is first what `measure` returns.
    """
    findings = verdict["findings"]
    result: dict[str, Any] = {
        "outcome": verdict["outcome"],
        "found": [
            [f["reason"], f["subject"]["rank"], (f["subject"]["aggressor"] or {}).get("name")]
            for f in findings[:TOP]
        ],
    }
    if not case.is_fault:
        may_say = {*case.may_say, *([VAGUE_OF_ALL] if run.slow_stretch >= SLOW_RATIO else [])}
        blamed = sum(
            f["subject"]["rank"] is not None or f["reason"] not in may_say for f in findings
        )
        return result | {"top1": not blamed, "top3": not blamed, "blamed": blamed, "wrong": blamed}
    truths = [case.truth] if case.also is None else [case.truth, case.also]
    result["wrong"] = sum(not any(is_fine(one, f, rank) for one in truths) for f in findings)
    if case.truth.kind == "slow":
        result |= time_findings(truths, run, rank, findings)
    if case.also is not None:
        return result | judge_pair(case.truth, case.also, rank, findings)
    named = [is_named(case.truth, finding, rank) for finding in findings[:TOP]]
    others = {f["subject"]["rank"] for f in findings} - {None, find_rank(case.truth, rank)}
    result |= {"top1": named[:1] == [True], "top3": any(named), "blamed": len(others)}
    if case.truth.kind == "slow" and result["top1"] and not case.may_fail:
        result |= measure(run, verdict)
    return result


def judge_pair(
    truth: Truth, also: Truth, rank: int, findings: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return how right a verdict about two causes is: both are its first two, in any order."""

    def has_both(some: list[dict[str, Any]]) -> bool:
        return all(any(is_named(one, finding, rank) for finding in some) for one in (truth, also))

    besides = [
        finding
        for finding in findings
        if not is_named(truth, finding, rank) and not is_named(also, finding, rank)
    ]
    # Both ranks are to blame for something: what they are blamed for besides counts as a wrong accusation.
    blamed = sum(finding["subject"]["rank"] is not None for finding in besides)
    return {"top1": has_both(findings[:2]), "top3": has_both(findings[:TOP]), "blamed": blamed}


def judge_hang(case: Case, rank: int, verdict: dict[str, Any]) -> dict[str, Any]:
    """Return how right a verdict about a hang is: the same, and nobody is accused besides.

    Where no rank is to blame the right finding lists those that wait for one another; no other finding may.
    """
    findings, truth = verdict["findings"], case.truth
    named = [is_named(truth, finding, rank) for finding in findings[:TOP]]
    others = [find_others(truth, finding, rank) for finding in findings]
    wrong = sum(
        bool(accused) or not is_fine(truth, finding, rank)
        for finding, accused in zip(findings, others, strict=True)
    )
    return {
        "outcome": verdict["outcome"],
        "found": [[f["reason"], f["subject"]["ranks"], None] for f in findings[:TOP]],
        "top1": named[:1] == [True],
        "top3": any(named),
        "blamed": len(set().union(*others)),
        "wrong": wrong,
    }


def find_others(truth: Truth, finding: dict[str, Any], rank: int) -> set[int]:
    """Return the ranks that a finding about a hang accuses and must not."""
    if truth.who == NO_RANK and has_reason(truth, finding):
        return set()
    return set(finding["subject"]["ranks"]) - {find_rank(truth, rank)}


def judge_no_verdict() -> dict[str, Any]:
    """Return the judgement of a run that counts and has no verdict: it is wrong, and accuses nobody."""
    return {
        "outcome": NO_VERDICT,
        "found": [],
        "top1": False,
        "top3": False,
        "blamed": 0,
        "wrong": 0,
    }


def time_findings(
    truths: list[Truth], run: Run, rank: int, findings: list[dict[str, Any]]
) -> dict[str, float]:
    """Return how long after the onset anything was seen, and the truth was named, s; without what is not known.

    Of two truths it is the later one that counts.
    """
    if run.begun_unix_s is None:
        return {}
    detected_ns = [f["detected_unix_ns"] for f in findings if f["detected_unix_ns"] is not None]
    named_ns = [
        [
            f["named_unix_ns"]
            for f in findings
            if is_named(truth, f, rank) and f["named_unix_ns"] is not None
        ]
        for truth in truths
    ]
    times = {}
    if detected_ns:
        times["detected_s"] = round(min(detected_ns) / NS - run.begun_unix_s, 1)
    if all(named_ns):
        times["named_s"] = round(max(map(min, named_ns)) / NS - run.begun_unix_s, 1)
    return times


def measure(run: Run, verdict: dict[str, Any]) -> dict[str, Any]:
    """Return how far the seconds of the first finding are off, as parts of what the job's own clock says."""
    finding, times = verdict["findings"][0], run.times
    assert times.faulty_s is not None
    assert times.onset_step is not None
    added_s = times.faulty_s - times.healthy_s
    return {
        "share_error": round(finding["seconds"]["share"] / added_s - 1, 3),
        "predicted_error": round(verdict["predicted_step_s"] / times.healthy_s - 1, 3),
        "onset_error": finding["onset"]["step"] - times.onset_step,
        "band": finding["confidence"]["band"],
    }


def is_right(row: dict[str, Any]) -> bool:
    """Whether a stored run is valid and right."""
    return row.get("invalid") is None and row.get("top1") is True


def find_word(row: dict[str, Any]) -> str:
    """Return what a stored run that counts is: `right`, `vaguer` or `wrong`.

    Without a sensor a verdict may say less than the truth; nothing in it may be false, be the truth first or not.
    """
    is_blind = row.get("variant") in BLIND_VARIANTS
    if is_blind and row.get("wrong"):
        return "wrong"
    if row["top1"]:
        return "right"
    says_less = row["outcome"] not in (NO_VERDICT, "healthy")
    is_vaguer = is_blind and row.get("wrong") == 0 and says_less
    return "vaguer" if is_vaguer else "wrong"
