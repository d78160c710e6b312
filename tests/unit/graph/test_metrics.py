"""Jobs of which only metrics exist: who is named, that nobody is without a symptom, and what is said instead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rootwalk.graph.columns import SensorRow
from rootwalk.graph.dependencies import page_rank
from rootwalk.graph.metrics.diagnosis import tell_metrics
from rootwalk.graph.metrics.graph import build_metric_graph
from rootwalk.graph.metrics.rules import RULES, Role
from rootwalk.graph.metrics.scores import Episode, find_episode, score
from rootwalk.graph.metrics.verdict import metric_verdict
from rootwalk.graph.model import Verdict
from rootwalk.graph.reasons import RULES as REASON_RULES
from rootwalk.graph.render.text import headline, render_text
from rootwalk.graph.verdict import to_object
from support.metric_cases import BINS, Metrics
from support.verdicts import check_schema


def solve(metrics: Metrics) -> Verdict:
    story = tell_metrics(metrics.case())
    graph, evidence = build_metric_graph(story)
    verdict = metric_verdict(story, graph, evidence)
    check_schema(to_object(verdict))
    assert all(len(line) <= 80 for line in render_text(verdict).splitlines())
    edges = {(edge.source, edge.payload.kind) for edge in graph.edges()}
    for finding in verdict.findings:
        assert (finding.method, finding.confidence.band) == ("metric_only", "low")
        assert finding.confidence.score is not None
        assert finding.confidence.score < 0.5
        assert {(link.node, link.edge) for link in finding.chain} <= edges
        assert finding.seconds.share is None
        assert str(finding.subject.host) in headline(finding)
    return verdict


def named(verdict: Verdict) -> list[tuple[str, str | None, str | None]]:
    return [(f.reason, f.subject.host, f.subject.device) for f in verdict.findings]


def told(verdict: Verdict) -> str:
    return " ".join(item.text for item in verdict.data_quality)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_nobody_is_accused_where_all_are_alike(block: int) -> None:
    for seed in range(25 * block, 25 * block + 25):
        hosts, gpus = ((1, 8), (4, 8), (8, 1), (5, 2))[seed % 4]
        verdict = solve(Metrics(hosts, gpus, seed=seed))
        assert (verdict.findings, verdict.kind) == ((), None), seed
        assert verdict.outcome == "healthy", (seed, told(verdict))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 8), (4, 8), (8, 1), (2, 4), (1, 1)])
def test_nobody_is_accused_for_noise(shape: tuple[int, int]) -> None:
    for seed in range(12):
        draw = np.random.default_rng(seed)
        metrics = Metrics(*shape, seed=seed)
        # Heavy tails, and now and then a busy disk or lost packets somewhere.
        for rule, mean, spread in (("gpu_busy", 0.85, 0.05), ("network", 4e9, 4e8)):
            noise = draw.standard_t(3, metrics.values[rule].shape)
            metrics.values[rule] = np.clip(mean + spread * noise, 0.0, 4.0 * mean)
        for rule, most, often in (("disk_busy", 1.0, 0.1), ("drops", 50.0, 0.05)):
            size = metrics.values[rule].shape
            metrics.values[rule] = np.where(draw.random(size) < often, most * draw.random(size), 0)
        assert solve(metrics).findings == (), seed


def test_one_gpu_with_a_low_clock_among_eight_that_draws_less() -> None:
    metrics = Metrics(hosts=1)
    metrics.values["gpu_clock"][5] = 0.7e9
    metrics.values["gpu_power"][5] *= 0.4
    verdict = solve(metrics)
    assert named(verdict) == [("UNKNOWN_GPU", "node0", "5")]
    assert (verdict.outcome, verdict.kind) == ("finding", "slow")
    assert verdict.syndrome == "non_communication_slow"
    (finding,) = verdict.findings
    assert (finding.layer, finding.onset and finding.onset.unix_ns) == ("device", None)
    clock = finding.evidence[0]
    assert (clock.signal, clock.unit, clock.value) == ("DCGM_FI_DEV_SM_CLOCK", "Hz", 0.7e9)
    assert clock.peers == pytest.approx(1.98e9, rel=0.01)
    assert "GPU 5 of node0: SM clock" in render_text(verdict)


def test_the_reason_that_the_gpu_itself_tells_is_given() -> None:
    metrics = Metrics(hosts=1)
    metrics.values["gpu_clock"][5] = 0.7e9
    metrics.values["gpu_power"][5] *= 0.4
    metrics.values["thermal"][5] = 1.0
    metrics.values["gpu_heat"][5] = 91.0
    verdict = solve(metrics)
    assert named(verdict) == [("GPU_THERMAL", "node0", "5")]
    shown = [row.signal for row in verdict.findings[0].evidence]
    assert shown[0] == "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
    assert "DCGM_FI_DEV_GPU_TEMP" in shown


def test_a_low_clock_that_nothing_suffers_from_accuses_nobody() -> None:
    metrics = Metrics(hosts=1)
    metrics.values["gpu_clock"][5] = 0.7e9
    verdict = solve(metrics)
    assert (verdict.outcome, verdict.kind, verdict.findings) == ("insufficient_evidence", None, ())
    assert "GPU 5 of node0: SM clock" in told(verdict)


def test_a_gpu_that_no_job_uses_is_not_slow() -> None:
    metrics = Metrics(hosts=1)
    metrics.values["gpu_busy"][5] = 0.0
    metrics.values["gpu_power"][5] = 70.0
    metrics.values["gpu_clock"][5] = 0.3e9
    assert solve(metrics).outcome == "healthy"


def test_the_disk_of_the_host_whose_gpus_starve() -> None:
    metrics = Metrics()
    starving = [place.host == "node2" for place in metrics.gpus]
    metrics.values["gpu_busy"][starving] *= 0.4
    metrics.values["disk_busy"][2] = 1.0
    metrics.values["disk_reads"][2] = 7.5
    verdict = solve(metrics)
    assert named(verdict) == [("DATALOADER_IO", "node2", "nvme0n1")]
    assert verdict.findings[0].layer == "storage"


def test_a_busy_disk_of_another_host_is_not_near_the_symptom() -> None:
    metrics = Metrics()
    metrics.values["gpu_busy"][[place.host == "node1" for place in metrics.gpus]] *= 0.4
    metrics.values["disk_busy"][2] = 1.0
    verdict = solve(metrics)
    assert (verdict.outcome, verdict.kind, verdict.findings) == (
        "insufficient_evidence",
        "slow",
        (),
    )
    assert "disk nvme0n1 of node2" in told(verdict)


def test_what_came_with_the_fall_is_named_with_its_onset() -> None:
    metrics = Metrics()
    metrics.values["gpu_busy"][:, 25:] *= 0.6
    metrics.values["drops"][3, 25:] = 500.0
    # Lost before and after: not what came with it.
    metrics.values["disk_busy"][1] = 0.95
    verdict = solve(metrics)
    assert named(verdict) == [("NET_LOSS", "node3", "eth0")]
    assert verdict.syndrome == "communication_slow"
    (finding,) = verdict.findings
    assert finding.onset is not None
    assert finding.onset.unix_ns == 10**18 + 25 * 30 * 10**9
    assert (finding.state, finding.evidence[0].value) == ("open", 500.0)
    assert finding.evidence[-1].signal == "DCGM_FI_DEV_GPU_UTIL"
    assert finding.evidence[-1].history == pytest.approx(0.96, abs=0.02)


def test_what_becomes_as_busy_as_its_peers_does_not_stand_out() -> None:
    metrics = Metrics()
    metrics.values["gpu_busy"][:, 25:] *= 0.6
    metrics.values["disk_busy"][:] = 0.9
    metrics.values["disk_busy"][1, :25] = 0.05
    verdict = solve(metrics)
    assert (verdict.kind, verdict.findings) == ("slow", ())


def test_a_slowdown_that_is_over_is_closed() -> None:
    metrics = Metrics()
    metrics.values["gpu_busy"][:, 20:28] *= 0.5
    metrics.values["disk_busy"][0, 20:28] = 1.0
    verdict = solve(metrics)
    assert named(verdict) == [("UNKNOWN_HOST", "node0", "nvme0n1")]
    assert (verdict.findings[0].state, verdict.findings[0].layer) == ("closed", "storage")


def test_what_all_hosts_have_alike_sets_none_apart() -> None:
    metrics = Metrics(hosts=2, gpus=1)
    metrics.values["gpu_busy"][:, 25:] *= 0.6
    metrics.values["disk_busy"][:, 25:] = 1.0
    verdict = solve(metrics)
    assert (verdict.kind, verdict.findings) == ("slow", ())
    assert "2 of 2 stand out alike" in told(verdict)


def test_one_host_with_a_past_is_held_against_it() -> None:
    metrics = Metrics(hosts=1, gpus=1)
    metrics.values["gpu_busy"][:, 25:] *= 0.6
    metrics.values["steal"][0, 25:] = 0.4
    assert named(solve(metrics)) == [("CPU_STEAL", "node0", None)]


@pytest.mark.parametrize("slow", [False, True])
def test_one_host_alone_without_a_past_is_not_judged(slow: bool) -> None:
    metrics = Metrics(hosts=1, gpus=1)
    if slow:
        metrics.values["gpu_clock"][:] = 0.5e9
        metrics.values["disk_busy"][:] = 1.0
    verdict = solve(metrics)
    assert (verdict.outcome, verdict.kind, verdict.findings) == ("insufficient_evidence", None, ())


def test_without_a_measure_of_the_work_nobody_is_accused() -> None:
    metrics = Metrics().without("gpu_busy", "gpu_power", "network")
    metrics.values["disk_busy"][2] = 1.0
    verdict = solve(metrics)
    assert (verdict.outcome, verdict.findings) == ("insufficient_evidence", ())
    assert "nothing measures the work" in told(verdict)
    assert "disk nvme0n1 of node2" in told(verdict)


def test_the_end_of_a_job_is_no_fall() -> None:
    metrics = Metrics(bins=60)
    metrics.values["gpu_busy"][:, 40:] = 0.0
    metrics.values["gpu_power"][:, 40:] = 70.0
    metrics.values["gpu_clock"][:, 40:] = 0.3e9
    metrics.values["network"][:, 40:] = 1e4
    assert solve(metrics).outcome == "healthy"


def test_sensors_that_nobody_read_are_told() -> None:
    metrics = Metrics().without("gpu_clock", "thermal", "drops")
    missing = {item.sensor for item in solve(metrics).missing_sensors}
    assert {"instrumentation", "sched", "nvml", "nic_counters"} <= missing
    assert "disks" not in missing


def test_what_an_agent_says_of_its_sensors_is_told() -> None:
    rows = (
        SensorRow("node0", "nvml", "unavailable", "NO_DEVICE"),
        SensorRow("node0", "sched", "available", None),
    )
    story = tell_metrics(replace(Metrics().without("gpu_clock", "thermal").case(), sensors=rows))
    missing = metric_verdict(story, *build_metric_graph(story)).missing_sensors
    told = [(item.sensor, item.reason, item.hosts) for item in missing]
    hosts = ("node0", "node1", "node2", "node3")
    assert told == [("instrumentation", "NO_STEPS", hosts), ("nvml", "NO_DEVICE", ("node0",))]


def test_order_of_hosts_does_not_matter() -> None:
    metrics = Metrics()
    metrics.values["gpu_busy"][[place.host == "node2" for place in metrics.gpus]] *= 0.4
    metrics.values["disk_busy"][2] = 1.0
    first = to_object(solve(metrics))
    metrics.hosts.reverse()
    metrics.gpus.reverse()
    for rule in metrics.values:
        metrics.values[rule] = metrics.values[rule][::-1]
    assert to_object(solve(metrics)) == first


def test_a_walker_is_where_the_symptom_and_the_anomaly_are() -> None:
    # job - a, job - b alike, but for the weight: three times as many go to a.
    weights = {("job", "a"): 3.0, ("job", "b"): 1.0, ("a", "job"): 1.0, ("b", "job"): 1.0}
    found = page_rank(weights, {"job": 1.0})
    assert sum(found.values()) == pytest.approx(1.0)
    # In balance: job = .15 + .85 (a + b), and a + b = .85 job.
    assert found["job"] == pytest.approx(1.0 / 1.85, abs=1e-6)
    assert found["a"] == pytest.approx(3.0 * found["b"], abs=1e-6)


def test_scores_are_deviations_by_medians_with_a_floor() -> None:
    values = np.full((5, 10), 100.0)
    values[4] = 80.0
    peers = score(values, -1, 1.0, slice(0, 10), None)
    # 20 below, and 2 % of 100 is the least scatter.
    assert peers.z[4] == pytest.approx(10.0)
    assert peers.peers[4] == 100.0
    assert np.isnan(score(values[3:], -1, 1.0, slice(0, 10), None).z).all()


@pytest.mark.parametrize(
    ("low", "expected"),
    [(slice(20, 40), Episode(20, None)), (slice(20, 30), Episode(20, 30)), (slice(20, 22), None)],
)
def test_a_fall_of_three_bins_by_a_tenth_is_an_episode(
    low: slice, expected: Episode | None
) -> None:
    curve = np.full(BINS, 10.0)
    curve[low] = 8.9
    assert find_episode(curve) == expected


def test_conditions_have_a_reason_of_the_contract_and_others_none() -> None:
    for rule in RULES.values():
        assert (rule.reason is not None) == (rule.role is Role.CONDITION), rule.id
        assert rule.reason is None or rule.reason in REASON_RULES
