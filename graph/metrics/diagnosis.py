"""Diagnose a job of which only metrics are stored: judge, say what cannot be said, store the graph, decide."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from rootwalk.graph.import_quality import read_broken_files
from rootwalk.graph.keeping import keep_verdict
from rootwalk.graph.metrics.graph import MetricStory, build_metric_graph
from rootwalk.graph.metrics.judge import MetricJudgement, Reading, judge
from rootwalk.graph.metrics.rules import RULES
from rootwalk.graph.metrics.store import read_metric_case
from rootwalk.graph.metrics.table import MetricCase
from rootwalk.graph.metrics.verdict import metric_verdict
from rootwalk.graph.metrics.words import quantity_text, subject_label
from rootwalk.graph.model import DataQuality, QualityCode, Verdict
from rootwalk.instrumentation.errors import ConfigError

__all__ = ["MetricCase", "conclude_metrics", "read_metrics", "tell_metrics"]

# What stands out without a symptom: so many are told.
MAX_TOLD: Final = 3


def read_metrics(
    connection: Any, job: str | None, steps: tuple[int, int] | None = None
) -> MetricCase | None:
    """Return what `read_metric_case` does, with the files of which the store has not all.

    Raises:
        ConfigError: If the job cannot be chosen, or steps are asked for.
    """
    case = read_metric_case(connection, job)
    if case is None:
        return None
    if steps is not None:
        raise ConfigError(
            f"cannot explain steps {steps[0]} to {steps[1]}: saw metrics alone, which belong to no step; needs steps",
            hint="leave --steps out, and the metrics are judged by their times",
        )
    broken = read_broken_files(connection, case.key.job)
    return replace(case, quality=(*case.quality, *broken))


def conclude_metrics(store_path: Path, case: MetricCase) -> Verdict:
    """Return the verdict, and leave graph, evidence and findings in the store if it can be written."""
    story = tell_metrics(case)
    graph, evidence = build_metric_graph(story)
    return keep_verdict(store_path, case.key, graph, evidence, partial(metric_verdict, story))


def tell_metrics(case: MetricCase) -> MetricStory:
    """Return what metrics say, and in words what they leave open."""
    judgement = judge(case)
    texts = _open_questions(judgement)
    told = [DataQuality(QualityCode.MISSING_EDGE, text, None) for text in texts]
    return MetricStory(case, judgement, (*case.quality, *told))


def _open_questions(judgement: MetricJudgement | None) -> list[str]:
    if judgement is None:
        return ["too few metrics, or nothing that runs, to compare anything with"]
    told = []
    if not judgement.is_measured:
        told.append("nothing measures the work: no use or power of GPUs, no bytes sent, no steps")
    elif not judgement.is_enough and judgement.episode is None:
        told.append("fewer than four places to compare, or too short a past: slow may look usual")
    if judgement.symptoms and not judgement.causes:
        told.append(f"the work: {_symptom(judgement.symptoms)}")
    why = "but not where the work differs" if judgement.symptoms else "but the work shows nothing"
    told += [f"{_standing(item)}; {why}" for item in judgement.standing[:MAX_TOLD]]
    told += [
        f"{RULES[name].words}: {count} of {of} stand out alike, which sets nobody apart"
        for name, count, of in judgement.alike
    ]
    return told


def _symptom(symptoms: tuple[Reading, ...]) -> str:
    """Return where the work differs most, and at how many other places."""
    worst = min(symptoms, key=lambda item: (-abs(item.z), item.place))
    others = len([item for item in symptoms if item.rule == worst.rule]) - 1
    return _standing(worst) + (f"; so at {others} other places" if others else "")


def _standing(item: Reading) -> str:
    rule = RULES[item.rule]
    label = subject_label(rule.component, item.place.host, item.place.device or item.part)
    text = f"{label}: {rule.words} {quantity_text(item.value, rule.unit)}"
    if item.peers is not None:
        text += f", peers {quantity_text(item.peers, rule.unit)}"
    if item.history is not None:
        text += f", before {quantity_text(item.history, rule.unit)}"
    return text
