"""A loop that no hook understands says itself what its steps and phases are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.instrumentation.shared_ring import RecordKind, RingReader
from support.rings import Rank

BOOTSTRAP = Path(__file__).resolve().parents[3] / "instrumentation" / "bootstrap"
LOOP = """
for _ in range(5):
    with rootwalk.phase("forward"):
        pass
    with rootwalk.phase("optimiser"):
        pass
    rootwalk.step()
print("trained")
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.close()


def steps(rank: Rank) -> list[tuple[int, int]]:
    rank.tracker.close()
    return [
        (one.start_mono_ns, one.end_mono_ns)
        for one in rank.records()
        if one.kind is RecordKind.STEP and not one.flags
    ]


def mark(rank: Rank, now_ns: int) -> None:
    rank.clock.now_ns = now_ns
    rank.tracker.end_step()


def test_marks_alone_make_steps(rank: Rank) -> None:
    for now_ns in (1_000, 2_000, 3_000, 4_000):
        mark(rank, now_ns)
    assert steps(rank) == [(1_000, 2_000), (2_000, 3_000), (3_000, 4_000)]


def test_marks_with_phases_make_steps_from_the_first_phase_on(rank: Rank) -> None:
    for start in (1_000, 2_000):
        rank.phase("forward", start, start + 100)
        rank.phase("backward", start + 100, start + 200)
        mark(rank, start + 500)
    assert steps(rank) == [(1_000, 1_500), (1_500, 2_500)]


def test_where_a_program_marks_its_steps_updates_end_none(rank: Rank) -> None:
    for start in (1_000, 2_000, 3_000):
        for turn in (0, 200):
            rank.phase("backward", start + turn, start + turn + 50)
            rank.phase("optimizer", start + turn + 50, start + turn + 100)
        mark(rank, start + 500)
    assert steps(rank)[-2:] == [(1_500, 2_500), (2_500, 3_500)]


def run_loop(folder: Path, head: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if "ENDPOINT" not in name},
        "ROOTWALK_RING_DIRECTORY": str(folder),
        "ROOTWALK_KEEP_RING": "1",
        "PYTHONPATH": str(BOOTSTRAP.parents[1] / ".editable"),
        **more,
    }
    return subprocess.run(
        [sys.executable, "-c", head + LOOP],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize(
    ("head", "is_watched"),
    [("import rootwalk.instrumentation as rootwalk", False), ("import rootwalk", True)],
)
def test_loop_says_its_steps_in_one_line(tmp_path: Path, head: str, is_watched: bool) -> None:
    """`import rootwalk` is enough where `rootwalk run` has started the instrumentation."""
    more = {"PYTHONPATH": str(BOOTSTRAP)} if is_watched else {}
    done = run_loop(tmp_path, head, **more)
    assert done.stdout == "trained\n"
    assert 'phase "optimiser" is not recorded' in done.stderr
    (path,) = tmp_path.glob("*.ring")
    ring = RingReader(path)
    kinds = [(one.kind, one.name) for one in ring.read(1_000)]
    ring.close()
    assert kinds.count((RecordKind.STEP, "")) == 5
    assert kinds.count((RecordKind.PHASE, "forward")) == 5


def test_marks_do_nothing_where_the_instrumentation_is_off(tmp_path: Path) -> None:
    head = "import rootwalk.instrumentation as rootwalk"
    assert run_loop(tmp_path, head, ROOTWALK_DISABLED="1").stdout == "trained\n"
    assert list(tmp_path.iterdir()) == []
