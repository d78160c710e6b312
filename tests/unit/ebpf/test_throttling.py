"""For how long a rank was throttled, by looks at a control group made by hand.

ms       0         500       1000      1500
throttled     0         200       400             summed by the kernel between the looks; one busy thread, half a CPU
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.cgroups import CgroupReader, Limit
from rootwalk.ebpf.throttling import RankThrottling
from support.fake_cgroups import FakeCgroups

MS = 1_000_000
RANK = 100


class Rank:
    """A rank in a group whose counters the test moves."""

    def __init__(self, root: Path, version: str) -> None:
        self.machine = FakeCgroups(root, version)
        self.machine.group("a", 50_000)
        self.machine.move(RANK, "/a")
        self.throttling = RankThrottling(RANK, CgroupReader(root))

    def look(self, at_ms: int, throttled_ms: int | None = None, group: str = "a") -> None:
        if throttled_ms is not None:
            periods = throttled_ms // 50
            self.machine.group(group, 50_000, counts=(periods, periods, throttled_ms * 1000))
        self.throttling.look(lambda: at_ms * MS)

    def throttled_ms(self, start_ms: int, end_ms: int) -> float | None:
        found = self.throttling.throttled_ns(start_ms * MS, end_ms * MS)
        return None if found is None else found / MS


@pytest.fixture(params=["v1", "v2", "hybrid"])
def rank(request: pytest.FixtureRequest, tmp_path: Path) -> Rank:
    made = Rank(tmp_path, request.param)
    for at_ms, throttled_ms in ((0, 0), (500, 0), (1000, 200), (1500, 600)):
        made.look(at_ms, throttled_ms)
    return made


def test_looks_are_interpolated(rank: Rank) -> None:
    assert rank.throttled_ms(0, 500) == 0
    assert rank.throttled_ms(500, 1000) == 200
    assert rank.throttled_ms(750, 1250) == 100 + 200
    assert rank.throttled_ms(1400, 1450) == 40


def test_before_the_first_look_and_after_the_last_nothing_is_known(tmp_path: Path) -> None:
    rank = Rank(tmp_path, "v2")
    rank.look(100)
    assert rank.throttled_ms(100, 100) is None
    rank.look(600)
    assert rank.throttled_ms(99, 300) is None
    assert rank.throttled_ms(300, 601) is None
    assert rank.throttled_ms(100, 600) == 0


def test_rank_that_is_moved_is_unknown_in_between_and_never_counts_the_past(rank: Rank) -> None:
    rank.machine.group("b", 50_000, counts=(900, 900, 45_000_000))
    rank.machine.move(RANK, "/b")
    rank.look(2000)
    rank.look(2500, 45_000 + 250, "b")
    assert rank.throttled_ms(1400, 1600) is None
    assert rank.throttled_ms(2000, 2500) == 250
    totals = rank.throttling.totals()
    assert totals is not None
    assert totals.throttled_ns == (600 + 250) * MS
    assert (totals.throttled_periods, totals.periods) == (12 + 5, 12 + 5)
    assert totals.limit == Limit(50 * MS, 100 * MS)


def test_group_that_is_made_again_under_its_name_is_unknown_once(rank: Rank) -> None:
    rank.look(2000, 100)
    rank.look(2500, 150)
    assert rank.throttled_ms(1600, 1700) is None
    assert rank.throttled_ms(2000, 2500) == 50


def test_limit_of_an_ancestor_counts(tmp_path: Path) -> None:
    rank = Rank(tmp_path, "v2")
    rank.machine.group("a/b", None)
    rank.machine.move(RANK, "/a/b")
    rank.look(0, 0)
    rank.look(500, 100)
    assert rank.throttled_ms(0, 500) == 100


def test_rank_is_never_throttled_for_longer_than_the_clock_says(tmp_path: Path) -> None:
    # The kernel adds a whole period's stand when it ends: more than what has passed since the last look.
    rank = Rank(tmp_path, "v1")
    rank.look(0, 0)
    rank.look(20, 50)
    assert rank.throttled_ms(0, 20) == 20


def test_rank_that_is_gone_tells_nothing(rank: Rank) -> None:
    (rank.machine.root / f"proc/{RANK}/cgroup").unlink()
    rank.look(2000)
    assert rank.throttled_ms(1600, 1700) is None
    assert rank.throttling.totals() is None
