"""Hand-off records of a job's findings, one JSON object a line: for schedulers, node health systems and people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rootwalk.graph.handoff import Places, handoff_records
from rootwalk.graph.job_choice import JobKey, choose_job
from rootwalk.instrumentation import semconv

if TYPE_CHECKING:
    from rootwalk.graph.exporters.formats import Choice

__all__ = ["NEEDS_DIAGNOSIS", "write"]

NEEDS_DIAGNOSIS: Final = True
_HOSTS: Final = """
SELECT rank, coalesce(host_name, host_id) FROM ranks
WHERE job = ? AND coalesce(attempt, 0) = ? AND coalesce(host_name, host_id) IS NOT NULL
"""
# A rank's steps say which GPU it uses, where exactly one is known.
_DEVICES: Final = f"""
SELECT rank, any_value(attributes ->> '$."{semconv.HW_ID}"') FROM spans
WHERE job = ? AND coalesce(attempt, 0) = ? AND name = 'training.rank_step' AND rank IS NOT NULL
GROUP BY rank HAVING count(DISTINCT attributes ->> '$."{semconv.HW_ID}"') = 1
"""  # noqa: S608  (names of our own registry)


def write(connection: Any, choice: Choice, path: Path) -> str:
    """Write a record for each finding of the job's diagnosis, and return what they advise.

    Raises:
        OSError: As the disk says.
    """
    if choice.diagnosis is None:
        raise AssertionError("a diagnosis was asked for")
    verdict = choice.diagnosis.verdict
    key = choose_job(connection, choice.job)
    records = handoff_records(verdict, _places(connection, key), choice.moving)
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    if not records:
        return "no finding, so no record"
    lines = [f"{one['reason']} {one['id']}: {_words(one)}" for one in records]
    count = len(records)
    return "\n".join([*lines, f"{count} {'record' if count == 1 else 'records'}"])


def _words(record: dict[str, Any]) -> str:
    advice = record["advice"]
    return f"{advice['do'].replace('_', ' ')}: {advice['because']}"


def _places(connection: Any, key: JobKey | None) -> Places:
    if key is None:
        return Places({}, {})
    chosen = [key.job, key.attempt]
    hosts = connection.execute(_HOSTS, chosen).fetchall()
    devices = connection.execute(_DEVICES, chosen).fetchall()
    return Places({int(r): str(h) for r, h in hosts}, {int(r): str(d) for r, d in devices})
