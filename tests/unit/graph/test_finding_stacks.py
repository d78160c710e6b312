"""Stacks that a finding starts: whose, for how long, and when none are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rootwalk.graph.commands.finding_stacks import MAX_TIMES, STACKS_FOR_S, FindingStacks
from rootwalk.graph.live.findings import LiveFinding
from rootwalk.graph.live.track import Change, Notice

FINDING = LiveFinding(
    *("job", 0, "f", "PY_GC", "rank 3", None, "job code", "high", "high", 3, "h", 0.5, 10, 20),
    *(0, 0, 0, None, "text", "{}"),
)


class Agents:
    """Agents of this host, as their sockets answer; `is_deaf` take no request."""

    def __init__(self, *ranks: tuple[str, int], hz: int = 0, is_deaf: bool = False) -> None:
        self.ranks = [
            {"job": job, "rank": rank, "level": 1, "profile_hz": hz} for job, rank in ranks
        ]
        self.is_deaf = is_deaf
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        if request:
            self.asked.append(request)
            for one in self.ranks:
                if one["job"] == request["job"] and one["rank"] in request["ranks"]:
                    one["profile_hz"] = 0 if self.is_deaf else request["profile_hz"]
        return [{"pid": 1, "ranks": self.ranks}, {"pid": 2, "error": "agent 2 has not answered"}]


def notice(change: Change = Change.OPENED, **changes: Any) -> Notice:
    return Notice(change, replace(FINDING, **changes))


def test_the_rank_and_the_one_next_to_it_are_asked_for_for_a_time() -> None:
    agents = Agents(("job", 0), ("job", 3), ("job", 5), ("other", 2))
    said = FindingStacks(49, agents).take(notice())
    assert said == "taking stacks of rank 3 and its peer 5 for 30 s, up to 49 a second and CPU"
    assert agents.asked == [
        {"job": "job", "level": 1, "ranks": [3, 5], "for_s": STACKS_FOR_S, "profile_hz": 49}
    ]


def test_a_rank_alone_has_no_peer() -> None:
    agents = Agents(("job", 3))
    assert "rank 3 for 30 s" in str(FindingStacks(49, agents).take(notice()))
    assert agents.asked[0]["ranks"] == [3]


@pytest.mark.parametrize(
    ("hz", "one"),
    [
        (0, notice()),
        (49, notice(rank=None)),
        (49, notice(Change.CLOSED)),
    ],
)
def test_without_a_rate_or_a_rank_nobody_is_asked(hz: int, one: Notice) -> None:
    agents = Agents(("job", 3))
    assert FindingStacks(hz, agents).take(one) is None
    assert agents.asked == []


def test_what_is_sampled_already_is_left_alone() -> None:
    agents = Agents(("job", 3), hz=19)
    assert FindingStacks(49, agents).take(notice()) is None
    assert agents.asked == []


@pytest.mark.parametrize(
    ("agents", "text"),
    [
        (Agents(("job", 2), ("other", 3)), "saw no agent on this host that watches it"),
        (Agents(("job", 3), is_deaf=True), "saw no answer of its agent"),
    ],
)
def test_what_cannot_be_is_said(agents: Agents, text: str) -> None:
    assert text in str(FindingStacks(49, agents).take(notice()))


def test_the_same_rank_is_not_asked_for_again_meanwhile_and_a_job_only_so_often() -> None:
    agents, now = Agents(*(("job", rank) for rank in range(20))), [0.0]
    stacks = FindingStacks(49, agents, lambda: now[0])
    assert stacks.take(notice()) is not None
    now[0] = STACKS_FOR_S / 2
    assert stacks.take(notice(Change.CHANGED)) is None
    for rank in range(4, 4 + 3 * MAX_TIMES, 3):
        stacks.take(notice(rank=rank))
    assert len(agents.asked) == MAX_TIMES
