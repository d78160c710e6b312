"""Counters of hosts, links and ranks that tell the cause, in synthetic jobs with known seconds; and their near misses.

    steps   200 of 120 ms | 200 of 180 ms        the fault costs 60 ms a step, from 24 s on
    points  every 5 s, as an agent sends them (see `support.counters`)

Every reason fires in one test, and stays silent when its counter costs nothing, moves at another time, moves at all
hosts alike, or was not read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.graph import graph_store
from rootwalk.graph.diagnosis import Investigation, diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.verdict import to_object
from rootwalk.otel_receiver import store
from support.counter_cases import (
    ETH0,
    FAULT_S,
    HEALTHY_S,
    HOST_CASES,
    HOSTS,
    LENGTH_S,
    ONSET_S,
    PAGES,
    QUEUE,
    STALLS,
    STEPS,
    TRANSFER,
    WORK,
    Case,
    count,
    swapped,
)
from support.counters import Told, add_counters, add_event, growing, level, tell_sensor
from support.device_cases import DEVICE, DEVICE_CASES
from support.jobs import Fault, Job, write_job
from support.stores import query_rows
from support.verdicts import check_verdict

Add = Callable[[tuple[Fault, ...], tuple[Told, ...]], Path]
FAULTS = (TRANSFER, WORK, PAGES, QUEUE)
CASES = HOST_CASES | DEVICE_CASES
SENSORS = (
    "tcp",
    "nic_counters",
    "cpu",
    "cpu_frequency",
    "vmstat",
    "paging",
    "cgroup_memory",
    "affinity",
    "nvml",
)
# One of flows, one of a host, one of a rank and one of a device; that the others fire is in `make test-long`, all else
# about them in `make test-variants`.
SHORT = ("retransmissions", "steal", "mask", "hot gpu")


every_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=name,
            marks=pytest.mark.long if name in DEVICE_CASES and name not in SHORT else (),
        )
        for name, case in CASES.items()
    ],
)
some_cases = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name in SHORT else pytest.mark.variant)
        for name, case in CASES.items()
    ],
)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Fault, ...], Path]:
    """Stores of jobs with one fault, or none, to be copied."""
    folder = tmp_path_factory.mktemp("jobs")
    made: tuple[tuple[Fault, ...], ...] = ((), *((fault,) for fault in FAULTS), STALLS, (DEVICE,))
    return {
        faults: write_job(
            folder / f"{number}.duckdb", Job(ranks=2, hosts=2, steps=STEPS, faults=faults)
        )
        for number, faults in enumerate(made)
    }


@pytest.fixture
def add(tmp_path: Path, jobs: dict[tuple[Fault, ...], Path]) -> Add:
    """Returns a store with counters beside a job's records."""

    def copy(faults: tuple[Fault, ...], told: tuple[Told, ...]) -> Path:
        path = tmp_path / f"store{len(list(tmp_path.iterdir()))}.duckdb"
        shutil.copy(jobs[faults], path)
        add_counters(path, told, LENGTH_S if faults else HEALTHY_S)
        return path

    return copy


def find(path: Path) -> Verdict:
    """Diagnose a store and check its verdict."""
    return check_verdict(diagnose(path))


def only(
    case: Case, host: int = 1, much: float = 1.0, begin_s: float = ONSET_S
) -> tuple[Told, ...]:
    """The counter of one host moves, that of the other stands still."""
    moving = case.tell(host, much, begin_s)
    return (
        *moving,
        *(one for other in HOSTS if other != host for one in case.tell(other, 0.0, 0.0)),
    )


@every_case
def test_counter_that_moves_with_the_slow_steps_is_the_cause(add: Add, case: Case) -> None:
    verdict = find(add((case.fault,), only(case)))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.node) == (case.reason, case.subject)
    assert finding.confidence.band == ("medium" if case.needs_tcp else "high")
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)
    assert finding.subject.host == "host-1"
    kind = "communication_slow" if case.fault is TRANSFER else "non_communication_slow"
    assert verdict.syndrome == kind


@every_case
def test_counter_that_costs_next_to_nothing_is_not_the_cause(add: Add, case: Case) -> None:
    verdict = find(add((case.fault,), only(case, much=0.004)))
    assert [finding.reason for finding in verdict.findings] == [case.without]


@every_case
def test_counter_that_moves_in_a_healthy_job_is_no_finding(add: Add, case: Case) -> None:
    assert find(add((), only(case))).outcome == "healthy"


@some_cases
@pytest.mark.parametrize(
    "begin_s",
    [-70.0, ONSET_S / 2, ONSET_S + 15.0],
    ids=["always", "long before", "after the slow steps began"],
)
def test_counter_that_moves_at_another_time_is_not_the_cause(
    add: Add, case: Case, begin_s: float
) -> None:
    verdict = find(add((case.fault,), only(case, begin_s=begin_s)))
    assert [finding.reason for finding in verdict.findings] == [case.without]


@some_cases
def test_counter_that_moves_everywhere_blames_no_one(add: Add, case: Case) -> None:
    told = tuple(one for host in HOSTS for one in case.tell(host, 1.0, ONSET_S))
    (finding,) = find(add((case.fault,), told)).findings
    if case.is_alike_silent:
        assert finding.reason == case.without
    else:
        # the network between them, and no link of it
        assert (finding.reason, finding.subject.node) == (case.reason, "fabric:j1")
        assert finding.subject.host is None


@some_cases
def test_counter_of_another_host_is_not_the_cause_of_a_late_rank(add: Add, case: Case) -> None:
    (finding,) = find(add((case.fault,), only(case, host=0))).findings
    if case.fault is TRANSFER:
        kind = case.subject.partition(":")[0]
        assert finding.subject.node.startswith(f"{kind}:host-0/")
    else:
        assert (finding.reason, finding.subject.rank) == (case.without, 1)


@some_cases
def test_sensor_that_is_missing_is_named_and_makes_nothing_surer(add: Add, case: Case) -> None:
    def look(status: str, told: tuple[Told, ...]) -> Verdict:
        path = add((case.fault,), told)
        for host in HOSTS:
            for sensor in SENSORS:
                tell_sensor(path, sensor, status if sensor == case.sensor else "available", host)
        return check_verdict(diagnose(path))

    seen = look("available", only(case))
    missing = look("unavailable", ())
    assert [finding.reason for finding in seen.findings] == [case.reason]
    assert [finding.reason for finding in missing.findings] == [case.without]
    assert (missing.findings[0].confidence.score or 0) <= (seen.findings[0].confidence.score or 0)
    if case.sensor not in ("rdma_counters", "kernel_log", "sched"):
        (item,) = missing.missing_sensors
        assert (item.sensor, item.hosts) == (case.sensor, ("host-0", "host-1"))
        assert case.reason in item.would_decide


@some_cases
def test_without_the_edge_or_its_evidence_the_finding_falls_back(add: Add, case: Case) -> None:
    path = add((case.fault,), only(case))
    (finding,) = diagnose(path).findings
    link, signal = finding.chain[-1], finding.evidence
    counters = [row for row in signal if row.query and "FROM metrics" in row.query]
    with store.writing(path) as connection:
        for row in counters:
            assert row.query is not None
            assert connection.execute(row.query).fetchall()
        investigation = Investigation(connection, None, None)
        assert investigation.key is not None
        for delete, what in (
            ("DELETE FROM edges WHERE source_id = ? AND kind = ? AND target_id = ?", None),
            ("DELETE FROM evidence WHERE signal = ?", counters[0].signal),
        ):
            connection.execute("BEGIN")
            asked = [link.node, link.edge, finding.subject.node] if what is None else [what]
            assert connection.execute(f"{delete} RETURNING 1", asked).fetchall()
            damaged = investigation.conclude(*graph_store.load_graph(connection, investigation.key))
            connection.execute("ROLLBACK")
            assert [one.reason for one in damaged.findings] == [case.without]


def test_counters_that_say_nothing_change_no_byte(add: Add) -> None:
    quiet = tuple(one for case in CASES.values() for host in HOSTS for one in case.tell(host, 0, 0))
    texts = []
    for told in ((), quiet):
        for fault in FAULTS:
            verdict = to_object(find(add((fault,), told)))
            verdict.pop("cost")
            texts.append(json.dumps(verdict))
    assert texts[: len(FAULTS)] == texts[len(FAULTS) :]


def test_loss_beside_longer_round_trips_is_no_congestion(add: Add) -> None:
    told = (*only(CASES["round trips"]), *only(CASES["retransmissions"]))
    assert [finding.reason for finding in find(add((TRANSFER,), told)).findings] == ["NET_LOSS"]


@pytest.mark.parametrize("network", ["round trips", "retransmissions"])
@pytest.mark.parametrize("device", ["peers", "nvlinks"])
def test_what_a_gpu_lost_is_not_why_packets_are_late(add: Add, device: str, network: str) -> None:
    told = (*only(CASES[device]), *only(CASES[network]))
    (finding,) = find(add((TRANSFER,), told)).findings
    assert finding.reason == CASES[network].reason


@pytest.mark.parametrize("port_stops", [True, False])
def test_nccl_says_that_it_sends_over_tcp_since_a_port_stopped(add: Add, port_stops: bool) -> None:
    def tell(host: int, much: float, begin_s: float) -> tuple[Told, ...]:
        port = CASES["fallback"].tell(host, much if port_stops else 0.0, begin_s)[1]
        way = {"training.nccl.transport": "NET/Socket"}
        made = level(2.0, 2.0 + 6.0 * much, begin_s)
        return port, Told("training.nccl.connections", made, host, host, way)

    (finding,) = find(add((TRANSFER,), (*tell(1, 1.0, ONSET_S), *tell(0, 0.0, 0.0)))).findings
    assert finding.reason == ("TRANSPORT_FALLBACK" if port_stops else "UNKNOWN_NET")


def test_connections_to_services_outside_are_not_those_of_the_ranks(add: Add) -> None:
    outside = {"training.tcp.peer": "outside", "network.peer.port": "443"}
    lost = count("training.tcp.retransmitted.segments", 5.0, outside, of_rank=True)
    (finding,) = find(add((TRANSFER,), (*lost(1, 1, ONSET_S), *lost(0, 0, 0)))).findings
    assert finding.reason == "UNKNOWN_NET"


def test_hosts_whose_clocks_differ_are_compared_at_the_same_time(tmp_path: Path) -> None:
    # as host-1 tells it, its segments were lost 20 s after the slow steps began
    told = tuple(
        replace(one, skew_s=20.0) if one.host == 1 else one for one in only(CASES["drops"])
    )
    job = Job(ranks=2, hosts=2, steps=STEPS, faults=(TRANSFER,), skew_s=(0.0, 20.0))
    path = write_job(tmp_path / "store.duckdb", job)
    add_counters(path, told, LENGTH_S)
    (finding,) = find(path).findings
    assert (finding.reason, finding.subject.host) == ("NET_LOSS", "host-1")


@pytest.mark.parametrize(
    ("faults", "pages"),
    [(33_000.0, 0.0), (33_000.0, 5_000.0), (0.0, 33_000.0), (500.0, 500.0)],
    ids=["of files", "of files, beside a swapping stranger", "a stranger's", "a few of its own"],
)
def test_more_work_beside_other_faults_stays_work(add: Add, faults: float, pages: float) -> None:
    told = (*swapped(faults, pages)(1, 1.0, ONSET_S), *swapped(faults, pages)(0, 0.0, 0.0))
    (finding,) = find(add((WORK,), told)).findings
    assert (finding.reason, finding.subject.rank) == ("WORK_IMBALANCE", 1)


def test_rank_that_reads_its_own_pages_from_swap_shows_both_counts(add: Add) -> None:
    (finding,) = find(add((WORK,), only(CASES["swap in memory"]))).findings
    signals = [row.signal for row in finding.evidence]
    assert "training.memory.major_faults" in signals
    assert "system.paging.operations" in signals


KILLED = "training.process.oom_kill"


def test_kill_of_a_rank_s_process_as_the_slow_steps_begin_is_the_cause(add: Add) -> None:
    path = add((PAGES,), ())
    add_event(path, KILLED, ONSET_S - 0.1, host=1, rank=1)
    (finding,) = find(path).findings
    assert (finding.reason, finding.subject.rank) == ("OOM_KILL", 1)
    (row,) = [row for row in finding.evidence if row.signal == KILLED]
    assert row.query is not None
    assert len(query_rows(path, row.query)) == 1


XID = {
    "training.kernel.message.kind": "gpu_error",
    "training.kernel.message.device": "0000:3b:00",
    "training.kernel.message.code": 79,
}


def test_driver_that_says_that_a_gpu_is_lost_as_the_slow_steps_begin(add: Add) -> None:
    path = add((PAGES,), ())
    add_event(path, "training.kernel.message", ONSET_S - 0.1, host=1, rank=None, attributes=XID)
    (finding,) = find(path).findings
    assert (finding.reason, finding.subject.node) == ("GPU_LOST", "gpu:host-1/0000:3b:00")
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)


@pytest.mark.parametrize(
    ("at_s", "host", "code"),
    [(ONSET_S - 12.0, 1, 79), (LENGTH_S, 1, 79), (ONSET_S - 0.1, 0, 79), (ONSET_S - 0.1, 1, 45)],
    ids=["before", "after", "of another host", "an end of the program"],
)
def test_driver_that_says_so_at_another_time_or_says_another_thing(
    add: Add, at_s: float, host: int, code: int
) -> None:
    path = add((PAGES,), ())
    said = {**XID, "training.kernel.message.code": code}
    add_event(path, "training.kernel.message", at_s, host=host, rank=None, attributes=said)
    assert [finding.reason for finding in find(path).findings] == ["UNKNOWN_HOST"]


@pytest.mark.parametrize("whose", [1, 0, None], ids=["its own", "another rank's", "nobody's"])
def test_driver_means_the_gpu_at_its_address(add: Add, whose: int | None) -> None:
    gpus = {rank: f"GPU-{rank}" for rank in (1, whose)}
    told = [
        Told(
            "training.gpu.pcie.width",
            lambda _: 16.0,
            host=1,
            rank=rank,
            attributes={
                "hw.id": gpu,
                "training.gpu.pci.address": "0000:3b:00" if rank == whose else "0000:86:00",
            },
        )
        for rank, gpu in gpus.items()
    ]
    path = add((PAGES,), tuple(told))
    add_event(path, "training.kernel.message", ONSET_S - 0.1, host=1, rank=None, attributes=XID)
    (finding,) = find(path).findings
    if whose == 1:
        assert (finding.reason, finding.subject.node) == ("GPU_LOST", "gpu:host-1/GPU-1")
        assert finding.subject.device == "GPU-1"
    else:
        assert (finding.reason, finding.subject.device) == ("UNKNOWN_HOST", None)


def test_driver_that_says_so_on_all_hosts_cleans_up(add: Add) -> None:
    path = add((PAGES,), ())
    for host in HOSTS:
        add_event(path, "training.kernel.message", ONSET_S, host=host, rank=None, attributes=XID)
    assert [finding.reason for finding in find(path).findings] == ["UNKNOWN_HOST"]


@pytest.mark.parametrize("part", [0, 1], ids=["the clock alone", "the throttling alone"])
def test_clock_and_what_holds_it_down_are_both_needed(add: Add, part: int) -> None:
    told = tuple(DEVICE_CASES["hot gpu"].tell(host, float(host), ONSET_S)[part] for host in HOSTS)
    assert [finding.reason for finding in find(add((PAGES,), told)).findings] == ["UNKNOWN_HOST"]


def test_power_limit_that_always_held_the_clock_is_not_why_it_fell(add: Add) -> None:
    # the clock falls for heat, while the bit of the power limit is set all of the time, as is common
    always = tuple(DEVICE_CASES["power"].tell(host, 1.0, -70.0)[1] for host in HOSTS)
    told = (*only(DEVICE_CASES["hot gpu"]), *always)
    assert [finding.reason for finding in find(add((PAGES,), told)).findings] == ["GPU_THERMAL"]


def waiting(add: Add, told: tuple[Told, ...]) -> list[str]:
    """Diagnose a job of which one rank waits for its GPU, on hosts whose GPUs are read."""
    path = add((DEVICE,), told)
    for host in HOSTS:
        tell_sensor(path, "nvml", "available", host)
    return [finding.reason for finding in find(path).findings]


STEADY = tuple(DEVICE_CASES["hot gpu"].tell(host, 0.0, ONSET_S)[0] for host in HOSTS)


def test_gpu_that_is_slower_at_the_same_clock_with_nothing_else_is_named(add: Add) -> None:
    assert waiting(add, STEADY) == ["GPU_SILENT_SLOW"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        pytest.param("", "UNKNOWN_GPU", id="nobody reads its clock"),
        pytest.param("hot gpu", "GPU_THERMAL", id="its clock falls"),
        pytest.param("memory errors", "GPU_ECC", id="memory errors", marks=pytest.mark.variant),
        pytest.param("co-tenant", "GPU_COTENANT", id="a co-tenant", marks=pytest.mark.variant),
        pytest.param("narrow link", "PCIE_DEGRADED", id="its link", marks=pytest.mark.variant),
    ],
)
def test_gpu_of_which_a_sensor_says_more_or_nothing_is_not_silent(
    add: Add, case: str, reason: str
) -> None:
    told = only(DEVICE_CASES[case]) if case else ()
    is_clock_told = case in ("", "hot gpu")
    assert waiting(add, told if is_clock_told else (*told, *STEADY)) == [reason]


@pytest.mark.parametrize(
    ("at_s", "rank"),
    [(ONSET_S - 12.0, 1), (ONSET_S + 12.0, 1), (ONSET_S - 0.1, 0)],
    ids=["before", "after", "of another rank"],
)
def test_kill_at_another_time_or_of_another_rank_is_not(add: Add, at_s: float, rank: int) -> None:
    path = add((PAGES,), ())
    add_event(path, KILLED, at_s, host=rank, rank=rank)
    assert [finding.reason for finding in find(path).findings] == ["UNKNOWN_HOST"]


def test_narrow_mask_where_no_cpu_is_idle_is_not_the_cause(add: Add) -> None:
    told = tuple(one for one in only(CASES["mask"]) if one.name == "training.cpu.allowed")
    busy = Told("system.cpu.time", growing(0.1, -70.0), 1, None, {"cpu.mode": "idle"})
    (finding,) = find(add((QUEUE,), (*told, busy))).findings
    assert finding.reason == "THREAD_OVERSUBSCRIPTION"


def flap(begin_s: float) -> tuple[Told, ...]:
    """A link goes down and up four times, every 5 s from `begin_s` on, while host-0's stands still."""

    def changes(now: float) -> float:
        return 2.0 * min(max((now - begin_s) // 5.0 + 1, 0), 4)

    name = "training.nic.carrier.changes"
    return (Told(name, changes, 1, None, ETH0), Told(name, lambda _: 0.0, 0, None, ETH0))


def test_link_that_goes_down_and_up_is_a_flap(add: Add) -> None:
    (finding,) = find(add(STALLS, flap(ONSET_S + 0.1))).findings
    assert (finding.reason, finding.subject.node) == ("NET_FLAP", "link:host-1/eth0")


def test_loss_while_a_link_is_down_is_the_flap(add: Add) -> None:
    told = (*flap(ONSET_S + 0.1), *only(CASES["retransmissions"]))
    assert [one.reason for one in find(add(STALLS, told)).findings] == ["NET_FLAP"]


@pytest.mark.parametrize("at_s", [ONSET_S - 25.0, ONSET_S + 30.0], ids=["before", "after"])
def test_link_that_flaps_at_another_time_is_not_the_cause(add: Add, at_s: float) -> None:
    (finding,) = find(add(STALLS, flap(at_s))).findings
    assert finding.reason == "UNKNOWN_NET"


@pytest.mark.parametrize(("host", "reason"), [(0, "IRQ_SOFTIRQ"), (1, "WORK_IMBALANCE")])
def test_the_hosts_interrupts_speak_where_those_of_a_rank_are_not_seen(
    add: Add, host: int, reason: str
) -> None:
    path = add((WORK,), only(CASES["interrupts"]))
    tell_sensor(path, "interrupts", "available", host)
    (finding,) = find(path).findings
    assert (finding.reason, finding.subject.rank) == (reason, 1)


def test_own_priors_choose_between_counters_that_are_alike(add: Add, tmp_path: Path) -> None:
    """Segments sent again and a link below its rate, on the same host in the same steps: as sure each."""
    path = add((TRANSFER,), (*only(CASES["retransmissions"]), *only(CASES["rate"])))
    plain = to_object(find(path))
    shipped = to_object(check_verdict(diagnose(path, priors="default")))
    assert {k: v for k, v in plain.items() if k != "cost"} == {
        k: v for k, v in shipped.items() if k != "cost"
    }
    named = set()
    for code in ("NET_LOSS", "NIC_RATE"):
        own = tmp_path / f"{code}.toml"
        own.write_text(f"[log_prior]\n{code} = 1.0\n", encoding="utf-8")
        verdict = check_verdict(diagnose(path, priors=str(own)))
        assert verdict.producer.rules.endswith("+own")
        named.add(verdict.findings[0].reason)
        assert verdict.findings[0].reason == code
    assert plain["findings"][0]["reason"] in named
