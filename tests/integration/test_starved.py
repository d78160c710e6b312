"""Slower transfers of a rank whose threads wait for a CPU: neither the network nor these threads are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from support.counter_cases import HOST_CASES, LENGTH_S, ONSET, ONSET_S, STEPS, TRANSFER
from support.counters import Told, add_counters, growing
from support.jobs import Fault, Job, write_job
from support.verdicts import check_verdict


def waiting(role: str, rate: float, begin_s: float = ONSET_S) -> tuple[Told, ...]:
    """Threads of one role wait for a CPU for so many seconds in one, on rank 1 from some moment on."""
    state = {"training.thread.role": role, "training.thread.state": "runnable"}
    return tuple(
        Told("training.thread.time", growing(rate * rank, begin_s), rank, rank, state)
        for rank in (0, 1)
    )


def find(
    folder: Path, *told: Told, beside: tuple[Fault, ...] = (), sensor: str = "core"
) -> Verdict:
    """Diagnose a job of two hosts whose transfers take 60 of each 180 ms longer."""
    job = Job(ranks=2, hosts=2, steps=STEPS, faults=(TRANSFER, *beside), sensor=sensor)
    path = write_job(folder / "store.duckdb", job)
    add_counters(path, told, LENGTH_S)
    return check_verdict(diagnose(path))


def test_where_the_training_thread_waits_too_the_transfers_are_left_open(tmp_path: Path) -> None:
    verdict = find(tmp_path, *waiting("collective", 1 / 3), *waiting("main", 1 / 3))
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())
    assert verdict.unexplained_s == pytest.approx(0.06, abs=0.002)


@pytest.mark.parametrize("main", [(0.01, ONSET_S), (1 / 3, -70.0)], ids=["hardly", "always"])
def test_where_it_does_not_those_threads_are_named(
    tmp_path: Path, main: tuple[float, float]
) -> None:
    told = (*waiting("collective", 1 / 3), *waiting("main", *main))
    (finding,) = find(tmp_path, *told).findings
    assert finding.reason == "PROXY_STARVED"


@pytest.mark.parametrize(
    ("rank", "sensor", "reasons"),
    [
        (1, "proc", ["UNKNOWN_HOST"]),
        (0, "proc", ["UNKNOWN_HOST", "PROXY_STARVED"]),
        (1, "core", ["UNKNOWN_HOST", "PROXY_STARVED"]),
    ],
    ids=["the same rank", "another", "threads seen"],
)
def test_a_rank_that_loses_as_much_elsewhere_unseen_has_one_cause(
    tmp_path: Path, rank: int, sensor: str, reasons: list[str]
) -> None:
    # its training thread stands behind the others: a twentieth of the time for a CPU itself
    told = (*waiting("collective", 1 / 3), *waiting("main", 0.05))
    lost = Fault("blocked", rank, 0.070, ONSET)
    verdict = find(tmp_path, *told, beside=(lost,), sensor=sensor)
    assert [f.reason for f in verdict.findings] == reasons
    assert verdict.findings[0].subject.rank == rank


@pytest.mark.parametrize(
    ("sensor", "seconds", "reasons"),
    [
        ("proc", 0.070, ["UNKNOWN_HOST"]),
        ("proc", 0.030, ["UNKNOWN_NET", "UNKNOWN_HOST"]),
        ("core", 0.070, ["UNKNOWN_HOST", "UNKNOWN_NET"]),
    ],
    ids=["more", "less", "threads seen"],
)
def test_transfers_beside_more_that_a_rank_loses_are_left_open_where_threads_are_hardly_seen(
    tmp_path: Path, sensor: str, seconds: float, reasons: list[str]
) -> None:
    verdict = find(tmp_path, beside=(Fault("blocked", 1, seconds, ONSET),), sensor=sensor)
    assert [f.reason for f in verdict.findings] == reasons
    left_s = 0.060 if len(reasons) == 1 else 0.0
    assert verdict.unexplained_s == pytest.approx(left_s, abs=0.006)


@pytest.mark.parametrize("name", ["round trips", "retransmissions"])
@pytest.mark.parametrize("sensor", ["proc", "core"])
def test_what_a_rank_that_is_held_up_does_to_its_connections_speaks_for_no_network(
    tmp_path: Path, name: str, sensor: str
) -> None:
    case = HOST_CASES[name]
    told = [one for host in (0, 1) for one in case.tell(host, host, ONSET_S)]
    lost = Fault("blocked", 1, 0.070, ONSET)
    verdict = find(tmp_path, *told, beside=(lost,), sensor=sensor)
    seen = [] if sensor == "proc" else [case.reason]
    assert [f.reason for f in verdict.findings] == ["UNKNOWN_HOST", *seen]


def test_a_training_thread_alone_says_nothing_of_transfers(tmp_path: Path) -> None:
    (finding,) = find(tmp_path, *waiting("main", 1 / 3)).findings
    assert finding.reason == "UNKNOWN_NET"
