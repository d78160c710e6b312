"""Ranks come and go under a real agent: the short form of `make soak-agent`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.targets import CORE
from support.agent_soak import run_soak
from support.bpf_programs import skip_without

pytestmark = [pytest.mark.bpf, pytest.mark.variant]

SECONDS, PERIOD_S, PERIODS_A_LOOK = 75.0, 2.0, 3
# What remembers a bounded number of steps, processes and files is full after some minutes only.
MAX_MEMORY_GROWTH_BYTES = 12_000_000


def test_nothing_grows_while_ranks_come_and_go_and_a_kill_leaves_nothing(tmp_path: Path) -> None:
    skip_without(CORE)
    result = run_soak(
        tmp_path / "soak.duckdb",
        SECONDS,
        PERIOD_S,
        PERIODS_A_LOOK,
        max_memory_growth_bytes=MAX_MEMORY_GROWTH_BYTES,
    )
    assert result.wrong() == []
    assert result.started_ranks > 12
    # A rank that was killed or has crashed is told as far as it came.
    assert result.told_ranks == result.started_ranks
