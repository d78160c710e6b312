"""A store that has metrics and nothing else: OTLP to a real receiver, then `rootwalk diagnose` as a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests

from support.command import query, run_rootwalk
from support.otlp_messages import key_values, metric, metric_request
from support.receiver_process import running_receiver
from support.scraped_metrics import SCRAPE_S, START_UNIX_NS, Cluster
from support.verdicts import check_schema

FALL = 36


def receive(folder: Path, bodies: list[bytes]) -> Path:
    store = folder / "store.duckdb"
    with running_receiver(store) as receiver:
        for body in bodies:
            headers = {"Content-Type": "application/x-protobuf"}
            url = f"http://{receiver.http}/v1/metrics"
            assert requests.post(url, body, headers=headers, timeout=60).status_code == 200
        receiver.stop()
    return store


def diagnose(store: Path, *options: str) -> tuple[str, dict[str, Any], int]:
    """Return the text, the JSON and the exit code."""
    folder = store.parent
    said = run_rootwalk("diagnose", str(store), *options, cwd=folder)
    assert said.returncode == 0, said.stderr
    told = run_rootwalk("diagnose", str(store), "--json", "--exit-code", *options, cwd=folder)
    verdict = json.loads(told.stdout)
    check_schema(verdict)
    # A command to copy is never broken.
    text = said.stdout.partition("\nnext ")[0]
    assert all(len(line) <= 80 for line in text.splitlines())
    return said.stdout, verdict, told.returncode


def test_the_disk_that_became_busy_when_the_gpus_became_idle(tmp_path: Path) -> None:
    cluster = Cluster(
        busy=lambda host, gpu, scrape: (40.0 if scrape >= FALL else 95.0) + (gpu + scrape) % 3,
        disk=lambda host, disk, scrape: 0.999 if host == 2 and scrape >= FALL else 0.02,
        reads=lambda host, disk, scrape: 6.0 if host == 2 and scrape >= FALL else 0.02,
    )
    store = receive(tmp_path, list(cluster.requests()))
    text, verdict, code = diagnose(store)
    assert (verdict["outcome"], verdict["kind"], code) == ("finding", "slow", 4)
    (finding,) = verdict["findings"]
    assert (finding["method"], finding["confidence"]["band"]) == ("metric_only", "low")
    assert (finding["reason"], finding["layer"]) == ("DATALOADER_IO", "storage")
    subject = finding["subject"]
    assert (subject["host"], subject["device"], subject["rank"]) == ("gpu-2", "nvme0n1", None)
    onset_s = (finding["onset"]["unix_ns"] - START_UNIX_NS) / 1e9
    assert onset_s == pytest.approx(FALL * SCRAPE_S, abs=2 * 1.5 * SCRAPE_S)
    signals = [row["signal"] for row in finding["evidence"]]
    assert signals[0] == "node_disk_read_time_seconds_total"
    assert signals[-1] == "DCGM_FI_DEV_GPU_UTIL"
    assert finding["evidence"][0]["value"] == pytest.approx(6.0, rel=0.01)
    assert finding["evidence"][0]["peers"] == pytest.approx(0.02, abs=0.01)
    for row in finding["evidence"]:
        assert query(store, row["query"], cwd=tmp_path)
    edges = query(store, "SELECT source_id, target_id, kind FROM edges", cwd=tmp_path)
    assert {(e["source_id"], e["kind"]) for e in edges} >= {
        (link["node"], link["edge"]) for link in finding["chain"]
    }
    headline = "disk nvme0n1 of gpu-2: reads in progress 6, peers 0.02, before 0.02"
    assert " ".join(text.split()).startswith(f"{headline} (DATALOADER_IO, low confidence) method")
    missing = {item["sensor"] for item in verdict["missing_sensors"]}
    assert {"instrumentation", "sched"} <= missing


def test_hosts_that_are_alike_are_healthy_as_far_as_metrics_tell(tmp_path: Path) -> None:
    text, verdict, code = diagnose(receive(tmp_path, list(Cluster().requests())))
    assert (verdict["outcome"], verdict["kind"], verdict["findings"]) == ("healthy", None, [])
    assert code == 0
    assert text.startswith("healthy, as far as metrics alone tell")
    assert verdict["window"]["start_unix_ns"] is not None


def test_steps_of_metrics_alone_cannot_be_explained(tmp_path: Path) -> None:
    store = receive(tmp_path, list(Cluster().requests()))
    said = run_rootwalk("diagnose", str(store), "--steps", "5:9", cwd=tmp_path)
    assert said.returncode == 2
    assert "cannot explain steps 5 to 9: saw metrics alone" in said.stderr
    assert "hint: leave --steps out" in said.stderr


def test_a_low_clock_among_sixteen_without_a_symptom_is_told_and_accuses_nobody(
    tmp_path: Path,
) -> None:
    cluster = Cluster(clock=lambda host, gpu, scrape: 705.0 if (host, gpu) == (1, 2) else 1980.0)
    text, verdict, code = diagnose(receive(tmp_path, list(cluster.requests())))
    assert (verdict["outcome"], verdict["findings"], code) == ("insufficient_evidence", [], 3)
    assert "GPU GPU-1-2 of gpu-1: SM clock 705 MHz" in " ".join(text.split())


def test_one_host_alone_is_not_enough(tmp_path: Path) -> None:
    store = receive(tmp_path, list(Cluster(hosts=1, gpus=1, scrapes=30).requests()))
    text, verdict, code = diagnose(store)
    assert (verdict["outcome"], verdict["findings"], code) == ("insufficient_evidence", [], 3)
    assert text.startswith("not enough evidence: metrics alone")


def test_hosts_scraped_under_one_address_are_not_told_apart(tmp_path: Path) -> None:
    def uname(host: int) -> bytes:
        labels = key_values({"nodename": f"gpu-{host}"})
        point = {"as_int": 1, "time_unix_nano": START_UNIX_NS, "attributes": labels}
        resource = {"service.name": "node", "service.instance.id": "localhost:9100"}
        return metric_request([metric("node_uname_info", gauge={"data_points": [point]})], resource)

    store = receive(tmp_path, [*Cluster().requests(), uname(1), uname(2)])
    text, verdict, _ = diagnose(store)
    assert (verdict["outcome"], verdict["findings"]) == ("insufficient_evidence", [])
    assert "cannot be told apart" in " ".join(text.split())


@pytest.mark.parametrize("work", ["system.network.io", "training.step.duration"])
def test_our_own_readers_of_a_job_that_was_not_instrumented(work: str, tmp_path: Path) -> None:
    """One host with a past: the work falls to a third when the disk is never idle. Still counters are not sent."""

    def points(rates: list[float], labels: dict[str, str]) -> list[dict[str, Any]]:
        total, made = 5.0, []
        for second, rate in enumerate([0.0, *rates]):
            total += rate
            if second == 0 or rate > 0.0:
                at = START_UNIX_NS + second * 10**9
                point: dict[str, Any] = {"as_double": total, "time_unix_nano": at}
                made.append(point | {"attributes": key_values(labels)})
        return made

    def counter(name: str, rates: list[float], labels: dict[str, str]) -> Any:
        fields = {"aggregation_temporality": 2, "is_monotonic": True}
        return metric(name, sum={"data_points": points(rates, labels), **fields})

    def steps(rates: list[float]) -> Any:
        """The number of steps in a histogram of how long they took."""
        made = [
            {
                "count": round(point["as_double"]),
                "sum": point["as_double"],
                "time_unix_nano": point["time_unix_nano"],
            }
            for point in points(rates, {})
        ]
        return metric(work, histogram={"data_points": made, "aggregation_temporality": 2})

    sent = {"network.interface.name": "eth0", "network.io.direction": "transmit"}
    body = metric_request(
        [
            counter(work, [3e8] * 120 + [1e8] * 120, sent)
            if work == "system.network.io"
            else steps([3.0] * 120 + [1.0] * 120),
            counter("system.disk.io_time", [0.0] * 120 + [1.0] * 120, {"system.device": "sdb"}),
        ],
        {"training.job.id": "j7", "host.id": "h1", "host.name": "alpha"},
    )
    text, verdict, code = diagnose(receive(tmp_path, [as_agent(body)]))
    assert (verdict["job"]["id"], code) == ("j7", 4)
    (finding,) = verdict["findings"]
    assert (finding["reason"], finding["layer"]) == ("UNKNOWN_HOST", "storage")
    assert (finding["subject"]["host"], finding["subject"]["device"]) == ("alpha", "sdb")
    assert "busy 100 %, before 0 %" in " ".join(text.split())
    assert finding["evidence"][-1]["signal"] == work


def as_agent(body: bytes) -> bytes:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    request = ExportMetricsServiceRequest.FromString(body)
    request.resource_metrics[0].scope_metrics[0].scope.name = "rootwalk.ebpf"
    return bytes(request.SerializeToString())


def test_files_that_broke_off_are_told(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.pb", tmp_path / "broken.pb"
    requests_ = [len(body).to_bytes(4) + body for body in Cluster().requests()]
    whole.write_bytes(b"".join(requests_))
    broken.write_bytes(requests_[0][:-7])
    store = tmp_path / "store.duckdb"
    files = [str(whole), str(broken)]
    done = run_rootwalk("import", "otlp", *files, "--store", str(store), cwd=tmp_path)
    assert done.returncode == 1
    _, verdict, _ = diagnose(store)
    assert verdict["outcome"] == "healthy"
    assert [item["code"] for item in verdict["data_quality"]] == ["BROKEN_FILE"]


def test_several_jobs_of_metrics_need_a_name(tmp_path: Path) -> None:
    point = {"as_double": 0.5, "time_unix_nano": START_UNIX_NS}
    bodies = [
        metric_request(
            [metric("hw.gpu.utilization", gauge={"data_points": [point]})], {"training.job.id": job}
        )
        for job in ("a", "b")
    ]
    store = receive(tmp_path, bodies)
    said = run_rootwalk("diagnose", str(store), cwd=tmp_path)
    assert said.returncode == 2
    assert "hint: name it: --job a" in said.stderr
    assert diagnose(store, "--job", "b")[1]["job"]["id"] == "b"
