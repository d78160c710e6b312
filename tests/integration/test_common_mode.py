"""What all ranks lose alike: machines do that for a while, so it is named when it lasts, and never hides a real cause.

The healthy step is 120 ms, so a slowdown of 60 ms has lasted for a minute after 334 steps (see `support.jobs`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Band
from rootwalk.graph.render import render_text
from support.growing_store import GrowingStore, Watched
from support.jobs import Fault, Job, write_job
from support.verdicts import check_verdict, solve

SLOW_S = 0.060
MINUTE_STEPS = 334


def slowness(first_step: int, last_step: int | None = None, seconds: float = SLOW_S) -> Fault:
    return Fault("uniform", 0, seconds, first_step, last_step)


def unseen_transfer(first_step: int) -> Fault:
    return Fault("transfer_unseen", 0, SLOW_S, first_step)


def monitor(seconds: float) -> Fault:
    return Fault("contention", 1, seconds, 40, pid=77, name="rootwalk-agent")


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param((slowness(40),), id="work"),
        pytest.param((slowness(40, seconds=0.2),), id="much work"),
        pytest.param((unseen_transfer(40),), id="transfers in the memory of one host"),
        pytest.param((slowness(40), monitor(0.008)), id="a helper that takes longer as well"),
        pytest.param((slowness(70),), id="of the last steps"),
    ],
)
def test_what_all_ranks_lose_for_a_while_is_not_named(
    tmp_path: Path, faults: tuple[Fault, ...]
) -> None:
    verdict = solve(tmp_path, Job(faults=faults))
    onset = faults[0].first_step
    assert (verdict.outcome, verdict.findings) == ("healthy", ())
    assert verdict.window.slow_steps == tuple(range(onset, 80))
    first, *rest = render_text(verdict).splitlines()
    assert first.startswith("healthy so far: ")
    assert f"a step since step {onset}, usual 0.120 s" in " ".join([first, *rest])


def test_what_has_passed_is_not_spoken_of(tmp_path: Path) -> None:
    verdict = solve(tmp_path, Job(steps=160, faults=(slowness(60, 90),)))
    assert (verdict.outcome, verdict.window.slow_steps) == ("healthy", ())
    assert render_text(verdict).startswith("healthy: 0.120 s a step over the last 50 steps")


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Job(steps=45 + MINUTE_STEPS, faults=(slowness(40),)), "GLOBAL_SLOW"),
        (Job(steps=45 + MINUTE_STEPS, faults=(unseen_transfer(40),)), "UNKNOWN_NET"),
        # between hosts it is the network's, which no machine's own slowness explains
        (Job(hosts=2, faults=(unseen_transfer(40),)), "UNKNOWN_NET"),
    ],
    ids=["work", "transfers", "transfers between hosts"],
)
def test_what_lasts_or_lies_between_hosts_is_named(tmp_path: Path, job: Job, reason: str) -> None:
    verdict = solve(tmp_path, job)
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == (reason, None)
    assert finding.seconds.share == pytest.approx(SLOW_S, abs=0.002)
    assert verdict.unexplained_s == pytest.approx(0.0, abs=0.002)
    if reason == "GLOBAL_SLOW":
        assert finding.confidence.band == Band.MEDIUM


def test_a_cause_is_named_although_everything_is_slower_too(tmp_path: Path) -> None:
    verdict = solve(tmp_path, Job(faults=(slowness(40), Fault("contention", 1, 0.080, 40))))
    assert [f.reason for f in verdict.findings] == ["CPU_CONTENTION", "GLOBAL_SLOW"]
    assert [f.seconds.share for f in verdict.findings] == pytest.approx([0.080, SLOW_S], abs=0.002)


@pytest.mark.parametrize("last_step", [190, None])
def test_an_earlier_cause_is_not_forgotten(tmp_path: Path, last_step: int | None) -> None:
    contention = Fault("contention", 1, SLOW_S, 40, 70)
    verdict = solve(tmp_path, Job(steps=200, faults=(contention, slowness(150, last_step))))
    assert [f.reason for f in verdict.findings] == ["CPU_CONTENTION"]
    assert (verdict.window.first_step, verdict.window.last_step) == (40, 70)


def test_after_many_of_them_the_last_steps_are_the_answer(tmp_path: Path) -> None:
    stretches = tuple(slowness(first, first + 14) for first in range(60, 460, 50))
    verdict = solve(tmp_path, Job(steps=480, faults=stretches))
    assert (verdict.outcome, verdict.window.last_step) == ("healthy", 479)


def test_steps_that_somebody_names_are_explained(tmp_path: Path) -> None:
    path = write_job(tmp_path / "s.duckdb", Job(faults=(slowness(40),)))
    verdict = check_verdict(diagnose(path, steps=(45, 70)))
    assert [f.reason for f in verdict.findings] == ["GLOBAL_SLOW"]


def test_live_it_is_named_when_it_has_lasted_for_a_minute(tmp_path: Path) -> None:
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", Job(steps=600, faults=(slowness(80),))))
    watched.run(80 + MINUTE_STEPS - 10, every=10)
    assert watched.told == []
    watched.run(600, every=10)
    assert watched.summary() == [("opened", "GLOBAL_SLOW", None)]
    (step, notice) = watched.told[0]
    assert notice.finding.first_step == 80
    # It is asked about again when half as many steps have come.
    assert step < 80 + 1.5 * MINUTE_STEPS
