"""Logs of NCCL Inspector with lost records, decimals and lines of others: judged by the iterations that are whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from support.inspector_logs import DDP, TENSOR_DATA, InspectorJob, Late


def solve(tmp_path: Path, job: InspectorJob, lost: float) -> Verdict:
    draw = np.random.default_rng(7)
    for path in job.run(is_verbose=False).write(tmp_path / "logs"):
        kept = ["2026-11-28 INFO started", '{"event": "heartbeat", "n": 1}']
        for text in path.read_text().splitlines():
            item = json.loads(text)
            item["coll_perf"]["coll_exec_time_us"] += 0.25
            item["metadata"]["dump_timestamp_us"] = float(item["metadata"]["dump_timestamp_us"])
            if draw.random() >= lost:
                kept.append(json.dumps(item))
        path.write_text("\n".join(kept) + "\n")
    store = tmp_path / "store.duckdb"
    assert main(["import", "nccl-inspector", str(tmp_path / "logs"), "--store", str(store)]) == 0
    return diagnose(store)


@pytest.mark.parametrize(
    ("ranks", "calls", "late", "lost"),
    [(3, DDP, 2, 0.0), (3, DDP, 2, 0.02), (4, DDP, 0, 0.05), (4, TENSOR_DATA, 1, 0.01)],
)
def test_a_late_rank_is_named_although_records_are_lost(
    tmp_path: Path, ranks: int, calls: tuple[object, ...], late: int, lost: float
) -> None:
    job = InspectorJob(ranks=ranks, calls=calls, iterations=200, late=(Late(late, 0.03),))  # type: ignore[arg-type]
    verdict = solve(tmp_path, job, lost)
    assert [finding.subject.ranks for finding in verdict.findings] == [(late,)]
    texts = [item.text for item in verdict.data_quality]
    assert any("of another kind" in text for text in texts)
    # Several groups whose patterns are found apart need no whole iterations.
    is_one_pattern = calls is DDP
    assert any("iterations lack records" in text for text in texts) == (lost > 0 and is_one_pattern)


@pytest.mark.parametrize("lost", [0.02, 0.1, 0.5])
def test_lost_records_of_a_job_without_a_late_rank_accuse_nobody(
    tmp_path: Path, lost: float
) -> None:
    verdict = solve(tmp_path, InspectorJob(ranks=4, iterations=200), lost)
    assert not verdict.findings
