"""A finding's chain goes on to the device where the store has profiles of the rank: simulated jobs with known seconds.

steps   60 of 120 ms | 60 of 180 ms, rank 1 forward 60 ms longer       both ranks' steps 75 to 84 are profiled
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph import graph_store
from rootwalk.graph.diagnosis import Investigation, diagnose
from rootwalk.graph.model import Finding, Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.otel_receiver import store
from rootwalk.otel_receiver.store import reading
from support.jobs import Job, write_job
from support.program_cases import DEVICE, FAULT_S, ONSET, STEPS, Row, Tell, add_told
from support.verdicts import check_verdict

KINDS = ("computation", "collective", "copy", "launch_gap", "host", "input", "queued", "unknown")
PROFILED = range(75, 85)
USUAL_S = 0.020


@dataclass(frozen=True)
class Part:
    """An operation of a path: what it takes, and how much more of the fault at rank 1."""

    kind: str
    name: str
    usual_s: float
    more_s: float = 0.0


GEMM = Part("computation", "gemm_128x64", USUAL_S, FAULT_S)
NORM = Part("computation", "batch_norm", 0.030)
NCCL = Part("collective", "ncclDevKernel_AllReduce", 0.010)
NONZERO = Part("launch_gap", "aten::nonzero", 0.001, FAULT_S)


def told(*parts: Part) -> Tell:
    """Spans of a path as the importer of profiles sends them."""

    def tell(step: Row, much: float) -> Iterator[Row]:
        sums = dict.fromkeys(KINDS, 0.0)
        for number, part in enumerate(parts):
            seconds = part.usual_s + part.more_s * much
            sums[part.kind] += seconds
            told: dict[str, Any] = {
                "training.device.path.kind": part.kind,
                "training.device.operation.name": part.name,
                "training.device.operation.time": seconds,
                "training.device.operation.count": 1,
            }
            name = "training.device.operation"
            yield {"name": name, "span_number": number, "attributes": json.dumps(told)}
        seconds_of = {f"training.device.path.{kind}_time": s for kind, s in sums.items()}
        yield {"name": "training.device.path", "attributes": json.dumps(seconds_of)}

    return tell


def of_steps(tell: Tell, steps: range, ranks: tuple[int, ...] = (0, 1)) -> Tell:
    """The same of some steps and ranks only."""

    def chosen(step: Row, much: float) -> Iterator[Row]:
        if step["step"] in steps and step["rank"] in ranks:
            yield from tell(step, much)

    return chosen


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "store.duckdb"
    return write_job(path, Job(ranks=2, hosts=2, steps=STEPS, faults=(DEVICE,)))


@pytest.fixture
def copy(job: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(job, tmp_path / "store.duckdb"))


def find(path: Path, tell: Tell) -> tuple[Finding, Verdict]:
    """Add paths, in which the fault is rank 1's from the onset on, and return the finding."""
    add_told(path, tell, lambda rank, step: float(rank == 1 and step >= ONSET))
    verdict = check_verdict(diagnose(path))
    (finding,) = verdict.findings
    return finding, verdict


def links(finding: Finding) -> list[tuple[str, str]]:
    return [(link.node, link.edge) for link in finding.chain]


def test_without_a_profile_the_chain_ends_at_the_host(copy: Path) -> None:
    finding, verdict = find(copy, of_steps(told(GEMM), range(0)))
    assert not any(node.startswith("gpu:") for node, _ in links(finding))
    assert "device  " not in render_text(verdict)


@pytest.mark.parametrize("steps", [PROFILED, range(50, 85)], ids=["peers", "peers and before"])
def test_a_longer_kernel_on_the_path_is_named_with_its_seconds(copy: Path, steps: range) -> None:
    (before,) = diagnose(copy).findings
    finding, verdict = find(copy, of_steps(told(GEMM, NORM, NCCL), steps))
    *_, waits, runs = finding.chain
    assert (waits.node.split(":")[0], waits.edge) == ("thread", "waits_for")
    assert (runs.node, runs.edge) == ("gpu:host-1/rank1", "running")
    assert runs.seconds == pytest.approx(FAULT_S)
    assert runs.text == "the device of rank 1 ran longer in gemm_128x64"
    # Everything else of the verdict is as it was.
    assert links(finding)[:-2] == links(before)
    assert (finding.reason, finding.seconds, finding.confidence) == (
        before.reason,
        before.seconds,
        before.confidence,
    )
    text = render_text(verdict)
    assert "device    kernels 0.110 s/step on the critical path" in text
    assert "gemm_128x64 0.080 s" in " ".join(text.split())


def test_a_stream_that_ran_dry_is_the_hosts(copy: Path) -> None:
    finding, verdict = find(copy, of_steps(told(GEMM_ALIKE, NONZERO, NCCL), PROFILED))
    assert [link.edge for link in finding.chain[-3:]] == ["waits_for", "waits_for", "running"]
    assert finding.chain[-1].node == "launches:host-1/1"
    assert finding.chain[-1].text == "the launches of rank 1 ran longer in aten::nonzero"
    assert finding.chain[-1].seconds == pytest.approx(FAULT_S)
    assert "device    device idle for want of a launch 0.061 s/step" in render_text(verdict)


GEMM_ALIKE = Part("computation", "gemm_128x64", 0.080)


@pytest.mark.parametrize(
    ("parts", "steps"),
    [
        # As long on rank 0.
        ((GEMM_ALIKE, NORM), PROFILED),
        # Longer, and not nearly as much as the step.
        ((GEMM_ALIKE, Part("computation", "batch_norm", 0.030, 0.010)), PROFILED),
        # Before the slow steps only.
        ((GEMM, NORM), range(40, 55)),
        # Too few steps.
        ((GEMM, NORM), range(75, 77)),
    ],
    ids=["alike", "little", "before", "two steps"],
)
def test_what_does_not_stand_out_in_the_slow_steps_is_not_named(
    copy: Path, parts: tuple[Part, ...], steps: range
) -> None:
    finding, _ = find(copy, of_steps(told(*parts), steps))
    assert not any(node.startswith("gpu:") for node, _ in links(finding))


def test_the_profile_of_one_rank_alone_names_nothing(copy: Path) -> None:
    finding, _ = find(copy, of_steps(told(GEMM, NORM), PROFILED, (1,)))
    assert not any(node.startswith("gpu:") for node, _ in links(finding))


def test_a_rank_alone_is_held_against_its_own_healthy_steps(copy: Path) -> None:
    finding, _ = find(copy, of_steps(told(GEMM, NORM), range(50, 85), (1,)))
    assert finding.chain[-1].text.endswith("gemm_128x64")


def test_without_an_edge_or_its_evidence_the_finding_is_worth_less(copy: Path) -> None:
    whole, _ = find(copy, of_steps(told(GEMM, NORM, NCCL), PROFILED))
    scores = [whole.confidence.score or 0.0]
    with store.writing(copy) as connection:
        investigation = Investigation(connection, None, None)
        assert investigation.key is not None
        for delete in (
            "DELETE FROM edges WHERE target_id LIKE 'gpu:%'",
            "DELETE FROM edges WHERE target_id LIKE 'operation:%'",
            "DELETE FROM evidence WHERE signal LIKE 'training.device.operation.time%'",
            "DELETE FROM evidence WHERE signal = 'training.device.path.computation_time'",
        ):
            connection.execute("BEGIN")
            assert connection.execute(f"{delete} RETURNING 1").fetchall()
            damaged = investigation.conclude(*graph_store.load_graph(connection, investigation.key))
            connection.execute("ROLLBACK")
            scores.append(max([f.confidence.score or 0.0 for f in damaged.findings], default=0.0))
    assert max(scores[1:]) <= scores[0] / 2 + 0.001


def test_every_query_of_the_path_shows_something(copy: Path) -> None:
    finding, _ = find(copy, of_steps(told(GEMM, NORM, NCCL), PROFILED))
    rows = [row for row in finding.evidence if row.signal.startswith("training.device.")]
    assert len(rows) == 2
    with reading(copy) as connection:
        for row in rows:
            assert row.query is not None
            assert len(connection.execute(row.query).fetchall()) == 2 * len(PROFILED)
