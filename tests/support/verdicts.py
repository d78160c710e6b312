"""Diagnose a synthetic job and check what must hold of every verdict."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.graph.verdict import to_object
from support.jobs import Job, write_job

SCHEMA = Path(__file__).parents[2] / "graph" / "verdict-1.schema.json"


def forbid_unknown(schema: Any) -> Any:
    """Return the schema with fields that it does not name forbidden."""
    if isinstance(schema, dict):
        closed = {name: forbid_unknown(value) for name, value in schema.items()}
        return {**closed, "additionalProperties": False} if "properties" in schema else closed
    return [forbid_unknown(item) for item in schema] if isinstance(schema, list) else schema


@cache
def _validator() -> Any:
    """The schema, which is itself checked once: that takes ten times as long as a verdict."""
    schema = forbid_unknown(json.loads(SCHEMA.read_text()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check_schema(verdict: Any) -> None:
    """Check a verdict, as an object of JSON, against the published schema, in which no other field is."""
    _validator().validate(verdict)


def check_verdict(verdict: Verdict) -> Verdict:
    """Check the schema, the width of the text and the sum of shares; return the verdict."""
    check_schema(to_object(verdict))
    assert all(len(line) <= 80 for line in render_text(verdict).splitlines())
    # No finished step supports seconds of a hang, or of an end (contract section 2).
    if verdict.outcome == "finding" and verdict.kind not in ("hang", None):
        shares = sum(f.seconds.share or 0.0 for f in verdict.findings)
        assert verdict.step_s is not None
        assert verdict.healthy_step_s is not None
        total = verdict.step_s - verdict.healthy_step_s
        assert shares + (verdict.unexplained_s or 0.0) == pytest.approx(
            total, abs=0.01 * verdict.step_s
        )
    return verdict


def solve(folder: Path, job: Job, **options: Any) -> Verdict:
    """Write a job, diagnose it, and check its verdict."""
    return check_verdict(diagnose(write_job(folder / "store.duckdb", job), **options))
