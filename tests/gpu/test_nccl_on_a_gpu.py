"""Two ranks with NCCL on one GPU, over TCP: their own times of collectives, who is late, NCCL's own log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command import query, run_rootwalk, torchrun
from support.real_gpu import ON_A_GPU

pytestmark = ON_A_GPU

RANKS = Path(__file__).with_name("nccl_ranks.py")
LATE = ("--steps", "900", "--late-rank", "1", "--late-from", "500", "--late-s", "0.03")
# The two implementations of PyTorch's process group for NCCL.
GROUPS = {"nccl2": "1", "legacy": "0"}
TIMED = """
SELECT rank, count(*) AS collectives FROM spans
WHERE (attributes ->> '$."collective.device_time"')::DOUBLE > 0 GROUP BY rank ORDER BY rank
"""
CONNECTED = """
SELECT DISTINCT rank, attributes ->> '$."training.nccl.transport"' AS transport FROM metrics
WHERE name = 'training.nccl.connections' ORDER BY rank
"""


@pytest.fixture(params=GROUPS)
def finished(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the folder of a job with a late rank: its store, its verdict, its dumps and NCCL's own files."""
    (tmp_path / "logs").mkdir()
    words = ["run", "--job", "nccl", "--store", "job.duckdb", "--json", "verdict.json", "--"]
    environment = {
        "TORCH_DIST_USE_NCCL2": GROUPS[request.param],
        # A short ring is read often: a step of this job takes 0.03 s.
        "TORCH_FR_BUFFER_SIZE": "64",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM,NET,TUNING",
        "NCCL_DEBUG_FILE": str(tmp_path / "logs" / "nccl.%h.%p"),
    }
    job = torchrun(2, *LATE, "--dumps", str(tmp_path / "dumps"), script=RANKS)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        done = run_rootwalk(*words, *job, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_a_late_rank_is_named_by_a_job_that_is_watched_and_by_its_dumps(finished: Path) -> None:
    timed = query(finished / "job.duckdb", TIMED, cwd=finished)
    assert [row["rank"] for row in timed] == [0, 1]
    assert query(finished / "job.duckdb", CONNECTED, cwd=finished) == [
        {"rank": rank, "transport": "NET/Socket"} for rank in (0, 1)
    ]
    first = json.loads((finished / "verdict.json").read_text("utf-8"))["findings"][0]
    assert first["subject"]["rank"] == 1
    assert first["reason"] in ("WORK_IMBALANCE", "UNKNOWN_HOST")

    dumps = sorted(str(path) for path in (finished / "dumps").glob("*.json"))
    late = str(finished / "dumps.duckdb")
    done = run_rootwalk("import", "flight-recorder", *dumps, "--store", late, cwd=finished)
    assert done.returncode == 0, done.stderr
    said = run_rootwalk("diagnose", late, cwd=finished).stdout
    assert said.startswith("rank 1 "), said
