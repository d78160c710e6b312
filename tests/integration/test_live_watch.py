"""A watcher on stores that grow step by step: what it tells, when, and what is kept in the store.

A healthy step takes 120 ms, a slow one 180 ms (see `support.jobs`); the clock is that of the job.
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from rootwalk.graph.detect import MEDIAN_STEPS
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.live.pace import EARLY_REPEATS
from rootwalk.graph.live.track import Change
from rootwalk.graph.live.watch import SUSPICION_S
from rootwalk.graph.model import Verdict
from rootwalk.otel_receiver import store
from support.growing_store import GrowingStore, Watched
from support.jobs import NS, Fault, Job, write_rows

FAULT_S = 0.060


def fault(kind: str = "contention", rank: int = 1, first: int = 60, last: int | None = 99) -> Fault:
    return Fault(kind, rank, FAULT_S, first, last)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.variant) for seed in (1, 2))]
)
def test_a_healthy_job_tells_nothing(tmp_path: Path, seed: int) -> None:
    job = Job(ranks=2, steps=400, jitter_ratio=0.1, seed=seed, spikes=(80, 200, 333))
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", job))

    watched.run(400, every=10)

    assert watched.told == []
    assert watched.hurried == []
    assert store.query_store(tmp_path / "s.duckdb", "FROM findings")[2] == []


def test_slow_steps_make_the_receiver_hurry_once_a_minute(tmp_path: Path) -> None:
    """Two long steps in a batch of ten are suspect and no episode; a job has them every ten seconds or so."""
    pairs = range(100, 800, 100)
    job = Job(ranks=2, steps=800, spikes=tuple(s for step in pairs for s in (step, step + 5)))
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", job))

    watched.run(800, every=10)

    assert watched.told == []
    ended = watched.growing.ended_unix_ns
    hurried_s = [ended[step] / NS for step in watched.hurried]
    assert watched.hurried[0] == 109
    assert len(hurried_s) >= 2
    assert all(later - sooner >= SUSPICION_S for sooner, later in pairwise(hurried_s))


@pytest.mark.long
def test_an_episode_opens_within_its_first_steps_and_closes_after_its_end(tmp_path: Path) -> None:
    job = Job(ranks=4, steps=140, jitter_ratio=0.02, faults=(fault(rank=2),))
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", job))

    watched.run(140)

    assert watched.summary() == [
        ("opened", "CPU_CONTENTION", 2),
        ("closed", "CPU_CONTENTION", 2),
    ]
    (opened_at, opened), (closed_at, closed) = watched.told
    # at the second slow step, and when it is seen; once each, though it lasts, and not for its end
    assert watched.hurried == [61, opened_at]
    # slow from step 60 to 99: five slow steps are needed to see it, three healthy ones of five to see its end
    assert 64 <= opened_at <= 67
    assert 102 <= closed_at <= 106
    ended = watched.growing.ended_unix_ns
    assert abs(opened.finding.first_step - 60) <= 1
    assert opened.finding.detected_unix_ns <= ended[65]
    assert opened.finding.named_unix_ns <= ended[67]
    assert closed.finding.id == opened.finding.id
    assert abs(closed.finding.last_step - 99) <= 1
    assert opened.finding.text.startswith(
        "rank 2 (host-0, CPU 2): CPU contention by 'node_exporter' pid 4411, +0.0"
    )


def test_a_young_episode_is_asked_about_every_few_steps_and_an_old_one_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tells a cause comes some seconds late, so the first answers may be vague."""
    asked: list[int] = []

    def note(
        *arguments: object, steps: tuple[int, int] | None = None, **options: object
    ) -> Verdict:
        asked.extend([] if steps is None else [steps[1]])
        return diagnose(*arguments, steps=steps, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("rootwalk.graph.live.watch.diagnose", note)
    monkeypatch.setattr("rootwalk.graph.live.pace.EARLY_S", 0.0)
    monkeypatch.setattr("rootwalk.graph.live.pace.EARLY_PAUSE_PER_COST", 0.0)
    monkeypatch.setattr("rootwalk.graph.live.pace.PAUSE_PER_COST", 1e9)
    job = Job(steps=140, faults=(fault(last=None),))
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", job))
    watched.run(80, every=30)  # seen when it has twenty steps already
    watched.run(140)

    assert len(asked) == 1 + EARLY_REPEATS
    assert {later - sooner for sooner, later in pairwise(asked)} == {MEDIAN_STEPS}


def test_the_exemplar_is_the_culprits_part_of_a_slow_step(tmp_path: Path) -> None:
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", Job(steps=70, faults=(fault(),))))

    watched.run(70)

    query = "SELECT trace_id, span_id FROM steps WHERE rank = 1 AND step BETWEEN 60 AND 66"
    (exemplar,) = watched.exemplars
    assert exemplar is not None
    assert exemplar[:2] in store.query_store(tmp_path / "s.duckdb", query)[2]


def test_diagnose_has_the_id_and_the_times_of_the_first_naming(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    watched = Watched(GrowingStore(path, Job(steps=130, faults=(fault(),))))
    watched.run(130, every=8)
    opened = watched.told[0][1].finding

    (finding,) = diagnose(path).findings

    assert (finding.id, finding.detected_unix_ns, finding.named_unix_ns) == (
        opened.id,
        opened.detected_unix_ns,
        opened.named_unix_ns,
    )
    columns = "id, state, reason, rank, detected_unix_ns, named_unix_ns, verdict"
    rows = store.query_store(path, f"SELECT {columns} FROM findings")[2]  # noqa: S608
    assert [row[:6] for row in rows] == [
        (opened.id, "closed", "CPU_CONTENTION", 1, opened.detected_unix_ns, opened.named_unix_ns)
    ]
    (told,) = json.loads(rows[0][6])["findings"]
    assert (told["id"], told["named_unix_ns"]) == (opened.id, opened.named_unix_ns)


def test_without_live_detection_the_times_are_null(tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "s.duckdb", Job(steps=130, faults=(fault(),)))
    growing.grow(130)

    (finding,) = diagnose(growing.path).findings

    assert (finding.detected_unix_ns, finding.named_unix_ns) == (None, None)
    columns = "detected_unix_ns, named_unix_ns, closed_unix_ns"
    rows = store.query_store(growing.path, f"SELECT {columns} FROM findings")[2]  # noqa: S608
    assert rows == [(None, None, None)]


@pytest.mark.long
def test_two_faults_at_once_open_and_close_both(tmp_path: Path) -> None:
    faults = (fault("contention", 0), fault("quota", 1))
    job = Job(steps=140, jitter_ratio=0.02, faults=faults)
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", job))

    watched.run(140, every=3)

    assert sorted(watched.summary()) == [
        ("closed", "CPU_CONTENTION", 0),
        ("closed", "CPU_QUOTA", 1),
        ("opened", "CPU_CONTENTION", 0),
        ("opened", "CPU_QUOTA", 1),
    ]


@pytest.mark.long
def test_a_second_fault_that_joins_a_long_episode_opens_too(tmp_path: Path) -> None:
    # rank 0 is 60 ms late since step 60; from step 200 on both are 120 ms late
    more = Fault("contention", 0, FAULT_S, 200, 299, phase="forward")
    faults = (fault("contention", 0, 60, 299), more, Fault("quota", 1, 2 * FAULT_S, 200, 299))
    job = Job(steps=340, jitter_ratio=0.02, faults=faults)
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", job))

    watched.run(190, every=70)
    watched.run(240, every=4)
    watched.run(340, every=50)

    opened = {n.finding.reason: step for step, n in watched.told if n.change is Change.OPENED}
    assert set(opened) == {"CPU_CONTENTION", "CPU_QUOTA"}
    assert 204 <= opened["CPU_QUOTA"] <= 216
    rows = store.query_store(watched.growing.path, "SELECT state FROM findings")[2]
    assert {state for (state,) in rows} == {"closed"}


@pytest.mark.long
def test_one_fault_after_the_other_are_two_findings(tmp_path: Path) -> None:
    faults = (fault(first=60, last=79), fault(first=120, last=139))
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", Job(steps=160, faults=faults)))

    watched.run(160, every=4)

    assert [n.change.value for _, n in watched.told] == ["opened", "closed", "opened", "closed"]
    assert len({n.finding.id for _, n in watched.told}) == 2


def test_an_episode_that_came_in_one_batch_opens_and_closes(tmp_path: Path) -> None:
    job = Job(steps=140, faults=(fault(first=60, last=79),))
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", job))

    watched.run(140, every=90)

    assert watched.summary() == [("opened", "CPU_CONTENTION", 1), ("closed", "CPU_CONTENTION", 1)]


@pytest.mark.long
def test_a_restart_in_the_middle_goes_on_and_tells_nothing_twice(tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "s.duckdb", Job(steps=140, faults=(fault(),)))
    first = Watched(growing)
    first.run(80, every=4)
    (opened,) = (n.finding for _, n in first.told)

    second = Watched(growing)
    second.run(140, every=4)

    ((_, closed),) = second.told
    assert (closed.change, closed.finding.id) == (Change.CLOSED, opened.id)
    assert closed.finding.named_unix_ns == opened.named_unix_ns
    assert len(store.query_store(growing.path, "FROM live_findings")[2]) == 1


@pytest.mark.long
def test_a_restart_beside_the_end_does_not_move_it(tmp_path: Path) -> None:
    """The second one asks at its first look, two healthy steps after the slow ones, when they seem to go on."""
    growing = GrowingStore(tmp_path / "s.duckdb", Job(steps=140, faults=(fault(),)))
    first = Watched(growing)
    first.run(80, every=4)
    growing.grow(20)

    second = Watched(growing)
    growing.grow(2)
    second.watcher.poll()
    second.run(140, every=4)

    ((_, closed),) = second.told
    assert (closed.change, closed.finding.last_step) == (Change.CLOSED, 99)


@pytest.mark.long
def test_a_restart_after_the_end_tells_nothing(tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "s.duckdb", Job(steps=200, faults=(fault(),)))
    Watched(growing).run(140, every=5)

    again = Watched(growing)
    again.run(200, every=10)

    assert again.told == []


def test_old_episodes_of_a_store_are_not_news(tmp_path: Path) -> None:
    growing = GrowingStore(tmp_path / "s.duckdb", Job(steps=200, faults=(fault(),)))
    growing.grow(140)

    watched = Watched(growing)
    watched.run(200, every=10)

    assert watched.told == []


@pytest.mark.long
def test_two_jobs_in_one_store_are_told_apart(tmp_path: Path) -> None:
    slow, healthy = Job(steps=120, faults=(fault(),)), Job(name="j2", steps=120)
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", slow, healthy))

    watched.run(120, every=2)

    assert {n.finding.job for _, n in watched.told} == {"j1"}
    assert [n.change for _, n in watched.told] == [Change.OPENED, Change.CLOSED]


@pytest.mark.long
def test_a_new_attempt_closes_what_the_old_one_had_open(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    watched = Watched(GrowingStore(path, Job(steps=80, faults=(fault(last=None),))))
    watched.run(80)
    assert [n.change for _, n in watched.told] == [Change.OPENED]
    rows = [
        row | {"received_unix_ns": watched.growing.now_unix_ns + 1}
        for row in GrowingStore(tmp_path / "t.duckdb", Job(steps=1, attempt=1))._rows_by_step[0]
    ]

    write_rows(path, rows)
    watched.watcher.poll()

    assert [n.change for _, n in watched.told] == [Change.OPENED, Change.CLOSED]


@pytest.mark.long
def test_a_store_that_somebody_holds_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    growing = GrowingStore(tmp_path / "s.duckdb", Job(steps=140, faults=(fault(),)))
    watched = Watched(growing)
    watched.run(70)
    assert watched.summary() == [("opened", "CPU_CONTENTION", 1)]
    growing.grow(60)
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(growing.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"

    watched.watcher.poll()
    assert (len(watched.told), caplog.messages) == (1, [])
    growing.now_unix_ns += 10 * NS
    watched.watcher.poll()
    watched.watcher.poll()
    assert len(watched.told) == 1
    (complaint,) = caplog.messages
    assert complaint.startswith("live detection waits: cannot open the store")
    holder.communicate("\n", timeout=30)
    watched.watcher.poll()

    assert watched.summary()[1:] == [("closed", "CPU_CONTENTION", 1)]
    assert caplog.messages[1:] == ["live detection goes on"]


@pytest.mark.parametrize(
    ("kind", "reason"), [("contention", "CPU_CONTENTION"), ("work", "WORK_IMBALANCE")]
)
def test_a_rank_that_is_slow_from_the_start_is_told_once(
    tmp_path: Path, kind: str, reason: str
) -> None:
    job = Job(
        ranks=3, steps=160, jitter_ratio=0.05, faults=(fault(kind, rank=2, first=0, last=None),)
    )
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", job))

    watched.run(160, every=5)

    assert watched.summary() == [("opened", reason, 2)]
    told_at, notice = watched.told[0]
    assert told_at <= 55  # the first fifty are one batch
    assert notice.finding.first_step <= 2


@pytest.mark.parametrize("period", [12, 30])
def test_what_comes_every_so_many_steps_is_told_after_five_of_them(
    tmp_path: Path, period: int
) -> None:
    stalls = Fault("stopped", 1, 0.03 * period, 10, period=period)
    job = Job(steps=12 + 6 * period, jitter_ratio=0.05, faults=(stalls,))
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", job))

    watched.run(12 + 6 * period, every=4)

    assert watched.summary()[0] == ("opened", "PROCESS_SUSPENDED", 1)
    assert watched.told[0][0] <= max(10 + 5 * period, 50)
