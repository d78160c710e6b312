"""What must hold of the dashboards and manifests without the servers that read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rootwalk.instrumentation import semconv

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BOARDS = sorted((EXAMPLES / "grafana" / "dashboards").glob("*.json"))
MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
UNITS = ("seconds", "bytes", "bytes_per_second", "hertz", "ratio")
# Of a panel that is half as wide as a small screen.
PIXELS = 512
CAPABILITIES = ["BPF", "PERFMON", "SYS_PTRACE", "SYSLOG"]


def prometheus_names() -> set[str]:
    """Return how Prometheus may call each metric of the registry: with its unit, and as a counter or histogram."""
    names = set()
    for name in semconv.METRICS:
        base = name.replace(".", "_")
        stems = [base, *(f"{base}_{unit}" for unit in UNITS)]
        ends = ("", "_total", "_bucket", "_sum", "_count")
        names |= {stem + end for stem in stems for end in ends}
    return names


def load(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def pods() -> list[tuple[str, Any]]:
    """Return the pod of every workload."""
    found = [(d["kind"], d["spec"]["template"]["spec"]) for d in documents("spec", "template")]
    (job,) = [d for p in MANIFESTS for d in load(p) if d["kind"] == "PyTorchJob"]
    replicas = job["spec"]["pytorchReplicaSpecs"].values()
    return found + [("PyTorchJob", one["template"]["spec"]) for one in replicas]


def documents(*keys: str) -> list[Any]:
    listed = [document for path in MANIFESTS for document in load(path)]
    return [d for d in listed if keys[0] in d and keys[1] in d[keys[0]]]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_dashboards_ask_for_what_the_registry_has(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    assert board["uid"] == f"rootwalk-{path.stem}"
    asked = [t["expr"] for p in board["panels"] for t in p["targets"] if "expr" in t]
    asked += [v["definition"] for v in board["templating"]["list"] if v["type"] == "query"]
    words = {
        word
        for text in asked
        for word in re.findall(r"\b(?:training|rootwalk|system|hw)_\w+(?=[{\[, )]|$)", text)
    }
    attributes = {key.replace(".", "_") for key in semconv.ATTRIBUTES}
    assert words - attributes <= prometheus_names()
    assert asked


def test_dashboards_and_their_links_go_together() -> None:
    uids = {json.loads(path.read_text())["uid"] for path in BOARDS}
    linked = {
        link["url"].split("/")[2].partition("?")[0]
        for path in BOARDS
        for link in json.loads(path.read_text())["links"]
    }
    assert linked == uids


def test_links_between_dashboards_keep_the_time_once() -> None:
    links = [link for path in BOARDS for link in json.loads(path.read_text())["links"]]
    assert [link["url"] for link in links if "time_range" in link["url"]] == []
    assert {link["keepTime"] for link in links} == {True}


def test_panels_of_states_have_room_for_what_they_show() -> None:
    panels = [panel for path in BOARDS for panel in json.loads(path.read_text())["panels"]]
    states = [panel for panel in panels if panel["type"] == "status-history"]
    # Grafana refuses more points than half the panel's pixels.
    assert {panel["maxDataPoints"] <= PIXELS // 2 for panel in states} == {True}


def test_tables_of_metrics_are_asked_for_as_tables() -> None:
    panels = [panel for path in BOARDS for panel in json.loads(path.read_text())["panels"]]
    asked = [one for p in panels if p["type"] == "table" for one in p["targets"] if "expr" in one]
    assert [one.get("format") for one in asked] == ["table"] * len(asked)
    assert asked


@pytest.mark.parametrize(
    ("kind", "pod"), pods(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_pod_of_ours_has_more_than_it_needs(kind: str, pod: Any) -> None:
    if kind == "PyTorchJob":
        return
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    is_agent = kind == "DaemonSet"
    assert security["capabilities"].get("add", []) == (CAPABILITIES if is_agent else [])
    assert pod.get("hostPID", False) is is_agent
    assert pod.get("securityContext", {}).get("runAsNonRoot", False) is not is_agent


def test_ranks_and_agent_share_their_rings() -> None:
    rings = {
        kind: (
            [v["hostPath"]["path"] for v in pod["volumes"] if v["name"] == "rings"],
            [m["mountPath"] for m in pod["containers"][0]["volumeMounts"] if m["name"] == "rings"],
            [e["value"] for e in pod["containers"][0]["env"] if "RING" in e["name"]],
        )
        for kind, pod in pods()
        if kind in ("DaemonSet", "PyTorchJob")
    }
    assert rings["DaemonSet"] == rings["PyTorchJob"] == (["/run/rootwalk"],) * 3


def test_what_rootwalk_sends_on_does_not_come_back() -> None:
    (config,) = [d["data"]["config.yaml"] for d in documents("data", "config.yaml")]
    pipelines = yaml.safe_load(config)["service"]["pipelines"]
    for name, pipeline in pipelines.items():
        is_from_rootwalk = pipeline["receivers"] == ["otlp/from-rootwalk"]
        assert ("otlp_grpc/rootwalk" in pipeline["exporters"]) is not is_from_rootwalk, name


def test_every_reference_of_the_compose_file_is_there() -> None:
    folder = EXAMPLES / "compose"
    (compose,) = load(folder / "compose.yaml")
    mounts = [v for s in compose["services"].values() for v in s.get("volumes", ())]
    files = [v.partition(":")[0] for v in mounts if v.startswith(".")]
    assert files
    for file in files:
        assert (folder / file).exists(), file
    assert (EXAMPLES.parent / compose["services"]["rootwalk"]["build"]["dockerfile"]).is_file()
    named = {v.partition(":")[0] for v in mounts if not v.startswith(".")}
    assert named == set(compose["volumes"])
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
