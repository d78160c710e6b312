"""Put the verdict together, check its sums, and turn it into JSON.

Owns the contract's arithmetic: shares plus unexplained equal observed minus healthy, each from its own replay.
"""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from rootwalk.graph.analysis import Analysis, Question, StepClock, slower_alone
from rootwalk.graph.columns import JobData
from rootwalk.graph.model import (
    SCHEMA_NAME,
    Cost,
    DataQuality,
    EdgeKind,
    JobIdentity,
    MissingSensor,
    Outcome,
    Producer,
    QualityCode,
    Verdict,
    Victims,
    WhatIf,
    Window,
)
from rootwalk.graph.reasons import RULES_VERSION, WOULD_DECIDE
from rootwalk.graph.reasons.priors import Priors
from rootwalk.graph.score import ScoredFinding

# A replay that misses the recorded step time by more does not describe the job (method C5).
MAX_REPLAY_ERROR = 0.05
# The sum rule of the contract.
MAX_SUM_ERROR = 0.01
# With more collectives than this lacking a member, the ranks do not count their steps alike.
MAX_UNEQUAL_RATIO = 0.1
# Above this times its baseline the mean step of a window is not called healthy.
MAX_HEALTHY_RATIO = 1.05
# Enough examples to open in a trace viewer.
MAX_EXEMPLARS = 3
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Counted:
    """What the causes of a window cost, seconds per step; `is_told` whether it is known who waited for whom.

    `baseline` says what a step is held against where the job has no history of its own.
    """

    simulated_s: float
    ideal_s: float
    shares_s: tuple[float, ...]
    slack_s: float
    what_if: WhatIf
    is_told: bool
    baseline: str = "ideal"


def empty_verdict(
    job: str, attempt: int | None, world_size: int | None, quality: tuple[DataQuality, ...]
) -> Verdict:
    """Return the verdict for a job of which too little is known to say anything."""
    return Verdict(
        schema=SCHEMA_NAME,
        producer=Producer(_version(), RULES_VERSION),
        job=JobIdentity(job, attempt, world_size),
        window=Window(None, None, None, None),
        outcome=Outcome.INSUFFICIENT_EVIDENCE,
        kind=None,
        syndrome=None,
        step_s=None,
        healthy_step_s=None,
        healthy_from=None,
        predicted_step_s=None,
        what_if=None,
        findings=(),
        victims=Victims(),
        hang=None,
        unexplained_s=None,
        slack_s=None,
        missing_sensors=(),
        data_quality=quality,
    )


def quiet_verdict(
    data: JobData, clock: StepClock, question: Question, quality: tuple[DataQuality, ...]
) -> Verdict:
    """Return the verdict for a window that does not stand out: healthy, or unknown without a history."""
    healthy_s = _healthy_s(clock, question)
    step_s = float(clock.step_s[question.start : question.stop].mean())
    # Of ranks that share a number only one is in the steps: the other may be the slow one.
    is_known = healthy_s is not None and not data.processes_by_doubled_rank
    # What is lost now and then, for a reason that no record shows, is lost all the same.
    is_lost = healthy_s is not None and step_s > MAX_HEALTHY_RATIO * healthy_s
    return replace(
        empty_verdict(data.job, data.attempt, data.world_size, quality),
        window=_window(data, clock, question),
        outcome=Outcome.HEALTHY if is_known and not is_lost else Outcome.INSUFFICIENT_EVIDENCE,
        kind="slow" if is_lost else None,
        step_s=_rounded(step_s),
        healthy_step_s=_rounded(healthy_s),
        healthy_from="history" if healthy_s is not None else None,
        missing_sensors=missing_sensors(data),
    )


def doubt_quiet(verdict: Verdict, data: JobData) -> Verdict:
    """Return what a quiet verdict is worth with clocks apart: nothing if a rank is slower by its own clock."""
    first, last = verdict.window.first_step, verdict.window.last_step
    if verdict.outcome != Outcome.HEALTHY or first is None or last is None:
        return verdict
    slower = slower_alone(data, (first, last))
    if not slower:
        return verdict
    text = f"ranks slower by their own clocks, which nothing compares: {len(slower)}"
    item = DataQuality(QualityCode.CLOCK_UNALIGNED, text, len(slower))
    return replace(
        verdict, outcome=Outcome.INSUFFICIENT_EVIDENCE, data_quality=(*verdict.data_quality, item)
    )


def slow_verdict(
    data: JobData,
    clock: StepClock,
    question: Question,
    analysis: Analysis | None,
    scored: tuple[ScoredFinding, ...],
    victims: Victims,
    quality: tuple[DataQuality, ...],
    *,
    is_balanced: bool = False,
) -> Verdict:
    """Return the verdict for a slow window.

    Args:
        data: Telemetry on the aligned clock.
        clock: The job's step clock.
        question: The window.
        analysis: What it cost, None if its records cannot be replayed.
        scored: The findings that stand.
        victims: Who waited for the first of them.
        quality: What was wrong with the data.
        is_balanced: Sums tell who waited, though no single wait is known.
    """
    verdict = quiet_verdict(data, clock, question, quality)
    verdict = replace(verdict, outcome=Outcome.INSUFFICIENT_EVIDENCE, kind="slow")
    if analysis is None:
        return verdict
    counterfactual = analysis.counterfactual
    simulated_s, ideal_s = counterfactual.simulated_s, counterfactual.ideal_s
    # Of a profile alone, nobody is said to have waited for anybody.
    is_single = question.is_alone and len(data.ranks) == 1
    # Who waited for whom cannot be told then, and to accuse a rank would be a guess.
    hides_waits = hides_ends(quality) or lacks_members(analysis, quality)
    counted = Counted(
        simulated_s=simulated_s,
        ideal_s=ideal_s,
        shares_s=counterfactual.share,
        slack_s=analysis.slack_s,
        what_if=what_if(simulated_s, ideal_s),
        is_told=is_single or is_balanced or not hides_waits,
        baseline="peers" if len(analysis.window.lane_end) > 1 else "ideal",
    )
    return settle(verdict, counted, scored, victims)


def what_if(simulated_s: float, ideal_s: float) -> WhatIf:
    """Return what the replay says of a step as recorded, and of one with every operation at its reference."""
    slowdown = _rounded(simulated_s / ideal_s) if ideal_s > 0.0 else None
    return WhatIf(_rounded(simulated_s), _rounded(ideal_s), slowdown)


def settle(
    verdict: Verdict, counted: Counted, scored: tuple[ScoredFinding, ...], victims: Victims
) -> Verdict:
    """Return the verdict about a slow window once its sums have been checked.

    Args:
        verdict: What is known of the window; without a healthy step time the replay's is taken.
        counted: What its causes cost.
        scored: The findings that stand.
        victims: Who waited for the first of them.
    """
    if verdict.step_s is None:
        return verdict
    quality = verdict.data_quality
    healthy_s, healthy_from = verdict.healthy_step_s, "history"
    if healthy_s is None:
        healthy_s, healthy_from = counted.ideal_s, counted.baseline
    simulated_s, ideal_s = counted.simulated_s, counted.ideal_s
    claimed = {cause for item in scored for cause in (item.cause, *item.included)}
    small_s = sum(s for i, s in enumerate(counted.shares_s) if i not in claimed)
    unexplained_s = (verdict.step_s - simulated_s) + (ideal_s - healthy_s) + small_s
    shares_s = sum(item.finding.seconds.share or 0.0 for item in scored)
    problems = list(quality)
    if abs(simulated_s - verdict.step_s) > MAX_REPLAY_ERROR * verdict.step_s:
        text = f"the replay gives {simulated_s:.4f} s a step, the records {verdict.step_s:.4f} s"
        problems.append(DataQuality(QualityCode.REPLAY_ERROR, text, None))
    if (
        abs(shares_s + unexplained_s - (verdict.step_s - healthy_s))
        > MAX_SUM_ERROR * verdict.step_s
    ):
        problems.append(
            DataQuality(QualityCode.SUM_MISMATCH, "causes and unexplained do not add up", None)
        )
    is_sound = len(problems) == len(quality) and counted.is_told
    findings = tuple(item.finding for item in scored) if is_sound else ()
    syndrome = None
    if findings:
        first = findings[0]
        is_below = any(link.edge == EdgeKind.TRANSFERS_OVER for link in first.chain)
        is_transfer = first.layer == "network" or is_below
        syndrome = "communication_slow" if is_transfer else "non_communication_slow"
    return replace(
        verdict,
        outcome=Outcome.FINDING if findings else Outcome.INSUFFICIENT_EVIDENCE,
        syndrome=syndrome,
        healthy_step_s=_rounded(healthy_s),
        healthy_from=healthy_from,
        predicted_step_s=findings[0].predicted_step_s if findings else None,
        what_if=counted.what_if,
        findings=findings,
        victims=victims if findings else Victims(),
        unexplained_s=_rounded(unexplained_s if is_sound else unexplained_s + shares_s),
        slack_s=_rounded(counted.slack_s),
        data_quality=tuple(problems),
    )


def hides_ends(quality: tuple[DataQuality, ...]) -> bool:
    """Return whether hosts do not know when collectives completed, or of any."""
    return any(item.code == QualityCode.MISSING_EDGE for item in quality)


def lacks_members(analysis: Analysis, quality: tuple[DataQuality, ...]) -> bool:
    """Return whether many collectives lack a member: the ranks' steps are then not the same moments."""
    lacking = sum(item.count or 0 for item in quality if item.code == QualityCode.UNEQUAL_MEMBERS)
    return lacking > MAX_UNEQUAL_RATIO * len(analysis.window.groups)


def with_cost(verdict: Verdict, cost: Cost) -> Verdict:
    """Return the verdict with what it cost, the only part that differs between runs."""
    return replace(verdict, cost=cost)


def with_priors(verdict: Verdict, priors: Priors) -> Verdict:
    """Return the verdict with the setting of the priors that it was scored with, where that is not the default."""
    producer = replace(verdict.producer, rules=priors.rules(verdict.producer.rules))
    return replace(verdict, producer=producer)


def missing_sensors(data: JobData) -> tuple[MissingSensor, ...]:
    """Return the sensors that could not be read and would have decided something."""
    found: dict[tuple[str, str], set[str]] = {}
    for row in data.sensors:
        if row.status != "available" and row.sensor in WOULD_DECIDE:
            found.setdefault((row.sensor, row.reason or row.status.upper()), set()).add(
                row.host_name
            )
    has_states = any(sensor is not None for sensor in data.steps.sensor)
    if not has_states and not any(name == "sched" for name, _ in found):
        hosts = {row.host_name or row.host_id for row in data.ranks}
        found[("sched", "NO_AGENT")] = hosts
    return tuple(
        MissingSensor(name, reason, tuple(sorted(hosts)), WOULD_DECIDE[name])
        for (name, reason), hosts in sorted(found.items())
    )


def to_json(verdict: Verdict) -> str:
    """Return the verdict as one JSON object, `verdict-1.schema.json`, with a fixed order of fields."""
    return json.dumps(to_object(verdict), indent=1, ensure_ascii=False)


def to_object(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as plain lists and dictionaries."""
    result: dict[str, Any] = json.loads(json.dumps(asdict(verdict)))
    return result


def _version() -> str:
    return importlib.metadata.version("rootwalk")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), _DIGITS)


def _healthy_s(clock: StepClock, question: Question) -> float | None:
    if not question.history:
        return None
    times = sorted(float(clock.step_s[i]) for i in question.history)
    middle = len(times) // 2
    return times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2


def _window(data: JobData, clock: StepClock, question: Question) -> Window:
    positions = range(question.start, question.stop)
    limit_s = question.limit_s
    slow = (
        [i for i in positions if limit_s is not None and clock.step_s[i] > limit_s]
        if question.is_slow
        else []
    )
    worst = sorted(positions, key=lambda i: (-float(clock.step_s[i]), i))[:MAX_EXEMPLARS]
    trace_of = dict(zip(data.steps.step.tolist(), data.steps.trace_id, strict=True))
    exemplars = [trace_of.get(clock.numbers[i]) for i in worst]
    return Window(
        start_unix_ns=_unix_ns(data, clock.start_s[question.start]),
        end_unix_ns=_unix_ns(data, clock.end_s[question.stop - 1]),
        first_step=clock.numbers[question.start],
        last_step=clock.numbers[question.stop - 1],
        slow_steps=tuple(clock.numbers[i] for i in slow),
        exemplar_trace_ids=tuple(dict.fromkeys(t for t in exemplars if t is not None)),
    )


def _unix_ns(data: JobData, time_s: float) -> int:
    return data.origin_unix_ns + round(float(time_s) * 1e9)
