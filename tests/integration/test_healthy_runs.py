"""Generated healthy jobs, whose work varies as that of real workers does: none is accused. `make healthy` has 1,000."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.healthy_jobs import healthy_job, read_workers
from support.jobs import simulate
from support.verdicts import solve


@pytest.mark.parametrize("seed", range(6))
def test_generated_healthy_runs_are_healthy(tmp_path: Path, seed: int) -> None:
    verdict = solve(tmp_path, healthy_job(seed))
    assert (verdict.outcome, verdict.findings) == ("healthy", ())


def test_there_are_enough_real_workers_and_they_do_vary() -> None:
    workers = read_workers()
    assert len(workers) >= 20
    assert len({worker.name for worker in workers}) == len(workers)
    for worker in workers:
        assert np.median(worker.forward) == pytest.approx(1.0)
        assert worker.backward.std() > 0.001


def test_a_seed_gives_the_same_run_and_another_one_another() -> None:
    assert simulate(healthy_job(7)) == simulate(healthy_job(7))
    assert simulate(healthy_job(7)) != simulate(healthy_job(8))
