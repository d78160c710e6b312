"""Profiles of a few steps, of all or most ranks: who is late is plain from one step on, with low confidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from support.device_traces import TrainedJob, job_events
from support.profiles import MadeProfile, write_profile

CASES = Path(__file__).parents[1] / "data" / "cases"


def _diagnose(tmp_path: Path, files: list[Path]) -> Verdict:
    store = tmp_path / "s.duckdb"
    main(["import", "kineto", *map(str, files), "--store", str(store)])
    return diagnose(store)


def _made(tmp_path: Path, job: TrainedJob) -> Verdict:
    ranks = len(job.gemms_ms)
    files = [
        write_profile(
            tmp_path / f"rank{rank}.json",
            MadeProfile(rank=rank, loads_ms=(0.0,) * ranks),
            job_events(job, rank),
        )
        for rank in range(ranks)
    ]
    return _diagnose(tmp_path, files)


@pytest.mark.parametrize(
    ("name", "rank", "reasons", "share_s"),
    [
        ("slow_gpu", 2, {"UNKNOWN_GPU", "SLOW_COMPUTE"}, 0.0045),
        ("three_steps", 2, {"UNKNOWN_HOST"}, 0.009),
        ("one_file_missing", 2, {"UNKNOWN_HOST"}, 0.009),
        ("late_by_degrees", 4, {"UNKNOWN_HOST"}, 0.0056),
        ("without_arguments", 2, {"UNKNOWN_HOST"}, 0.009),
        ("without_rank", 2, {"UNKNOWN_HOST"}, 0.0072),
    ],
)
def test_profiles_after_public_reports(
    tmp_path: Path, name: str, rank: int, reasons: set[str], share_s: float
) -> None:
    verdict = _diagnose(tmp_path, sorted((CASES / name).iterdir()))
    assert [one.subject.rank for one in verdict.findings] == [rank]
    assert verdict.findings[0].reason in reasons
    assert verdict.findings[0].seconds.share == pytest.approx(share_s, rel=0.3)
    assert "hosts share no collective" not in render_text(verdict)


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@pytest.mark.parametrize(("ranks", "late"), [(3, 0), (4, 3), (8, 5)])
def test_a_device_that_computes_longer_is_named_from_one_step_on(
    tmp_path: Path, steps: int, ranks: int, late: int
) -> None:
    gemms = [5.0] * ranks
    gemms[late] = 8.0
    verdict = _made(tmp_path, TrainedJob(tuple(gemms), steps=steps))
    assert [(f.reason, f.subject.rank) for f in verdict.findings] == [("UNKNOWN_GPU", late)]
    assert verdict.findings[0].confidence.band == "low"
    assert verdict.findings[0].seconds.share == pytest.approx(0.012, rel=0.3)


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize(("ranks", "late", "pause_ms"), [(3, 1, 40.0), (8, 6, 30.0)])
def test_a_host_that_launches_late_is_named_from_one_step_on(
    tmp_path: Path, steps: int, ranks: int, late: int, pause_ms: float
) -> None:
    pauses = [0.0] * ranks
    pauses[late] = pause_ms
    verdict = _made(tmp_path, TrainedJob((5.0,) * ranks, tuple(pauses), steps=steps))
    assert [f.subject.rank for f in verdict.findings] == [late]
    assert verdict.findings[0].reason == "UNKNOWN_HOST"
    assert verdict.findings[0].confidence.band == "low"


@pytest.mark.parametrize("steps", [1, 3, 12])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_equal_ranks_are_not_accused(tmp_path: Path, steps: int, ranks: int) -> None:
    gemms = tuple(5.0 + 0.1 * (rank % 2) for rank in range(ranks))
    assert _made(tmp_path, TrainedJob(gemms, steps=steps)).findings == ()


def test_of_one_rank_it_is_said_where_its_steps_go(tmp_path: Path) -> None:
    verdict = _diagnose(tmp_path, sorted((CASES / "one_rank").iterdir()))
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())
    text = render_text(verdict)
    assert "the device is idle for 74 % of a step" in text
    assert "nothing was launched" in text
    assert "fewer than the 20" not in text
    idle = next(one for one in verdict.known if one.signal == "training.device.idle_time")
    assert idle.value == pytest.approx(0.0142, rel=0.05)
