"""Findings in the store: what `diagnose` found last, and what live detection has seen open and close.

Works on an open connection, like `graph_store`; the view `findings` joins both tables by id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, fields, replace
from typing import Any

from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.live.findings import LiveFinding, find_same
from rootwalk.graph.model import Finding, Verdict

__all__ = ["load_live_findings", "save_findings", "save_live_findings", "with_live_times"]
__all__ += ["with_named_times"]

# The table's columns are the fields of LiveFinding; these two have another name there.
_COLUMN_BY_FIELD = {"confidence": "confidence_band", "host": "host_name"}
_COLUMNS = ", ".join(_COLUMN_BY_FIELD.get(f.name, f.name) for f in fields(LiveFinding))
_MARKS = ", ".join("?" for _ in fields(LiveFinding))


def save_findings(
    connection: Any,
    key: JobKey,
    findings: tuple[Finding, ...],
    verdict_json: str,
    written_unix_ns: int,
) -> None:
    """Replace what was found last in one job and attempt; each row carries the whole verdict."""
    owner = [key.job, key.attempt]
    connection.execute("DELETE FROM diagnosed_findings WHERE job = ? AND attempt = ?", owner)
    for f in findings:
        onset = f.onset.step if f.onset is not None else None
        connection.execute(
            "INSERT INTO diagnosed_findings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                *(key.job, key.attempt, f.id, f.state, f.reason, f.layer, f.subject.rank, onset),
                *(f.seconds.share, f.confidence.band, verdict_json, written_unix_ns),
            ],
        )


def load_live_findings(connection: Any, job: str, attempt: int) -> tuple[LiveFinding, ...]:
    """Return what live detection has kept of one job and attempt, by first step and id."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM live_findings WHERE job = ? AND attempt = ? ORDER BY first_step, id",  # noqa: S608
        [job, attempt],
    ).fetchall()
    return tuple(LiveFinding(*row) for row in rows)


def save_live_findings(connection: Any, findings: Iterable[LiveFinding]) -> None:
    """Write findings over what was kept of them, all or none."""
    connection.execute("BEGIN")
    for finding in findings:
        row = astuple(finding)
        connection.execute(
            "DELETE FROM live_findings WHERE job = ? AND attempt = ? AND id = ?", row[:3]
        )
        connection.execute(f"INSERT INTO live_findings ({_COLUMNS}) VALUES ({_MARKS})", row)  # noqa: S608
    connection.execute("COMMIT")


def with_live_times(verdict: Verdict, known: tuple[LiveFinding, ...]) -> Verdict:
    """Return the verdict with the ids and times of findings that live detection saw first."""
    first, last = verdict.window.first_step, verdict.window.last_step
    if first is None or last is None:
        return verdict
    findings = []
    for finding in verdict.findings:
        same = find_same(known, finding.reason, finding.subject.node, (first, last))
        findings.append(
            finding
            if same is None
            else replace(
                finding,
                id=same.id,
                detected_unix_ns=same.detected_unix_ns,
                named_unix_ns=same.named_unix_ns,
            )
        )
    return replace(verdict, findings=tuple(findings))


def with_named_times(verdict: Verdict, known: tuple[LiveFinding, ...]) -> Verdict:
    """Return the verdict with the times at which live detection named the same findings, by their ids."""
    by_id = {finding.id: finding for finding in known}
    findings = tuple(
        replace(
            finding,
            detected_unix_ns=by_id[finding.id].detected_unix_ns,
            named_unix_ns=by_id[finding.id].named_unix_ns,
        )
        if finding.id in by_id
        else finding
        for finding in verdict.findings
    )
    return replace(verdict, findings=findings)
