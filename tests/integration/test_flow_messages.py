"""Messages between ranks: which end or path is slow, from logs of NCCL Inspector to the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.graph.verdict import to_object
from support.inspector_logs import to_bytes
from support.ring_logs import ring_lines
from support.verdicts import check_schema

Slow = Mapping[tuple[int, int], float]


def solve(
    folder: Path, slow: Slow, *, ranks: int = 8, per_host: int = 1, cut: int | None = None
) -> Verdict:
    paths = []
    for rank, lines in ring_lines(ranks, slow, per_host=per_host).items():
        path = folder / f"rank{rank}.log"
        path.write_bytes(to_bytes(lines[: -cut if rank == 0 and cut else None]))
        paths.append(str(path))
    store = folder / "store.duckdb"
    assert main(["import", "nccl-inspector", *paths, "--store", str(store), "--quiet"]) == 0
    verdict = diagnose(store)
    check_schema(to_object(verdict))
    assert all(len(row) <= 80 for row in render_text(verdict).splitlines())
    with duckdb.connect(str(store)) as connection:
        edges = connection.execute("SELECT source_id, kind FROM edges").fetchall()
        for finding in verdict.findings:
            assert {(link.node, link.edge) for link in finding.chain} <= set(edges)
            assert all(connection.execute(str(e.query)).fetchall() for e in finding.evidence)
    return verdict


def around(rank: int, ranks: int = 8) -> tuple[int, int]:
    return (rank - 1) % ranks, (rank + 1) % ranks


@pytest.mark.parametrize(
    ("name", "slow", "subject", "ranks"),
    [
        ("sender", {(3, 4): 4.0, (3, 2): 4.0}, "rank:3", (3,)),
        ("receiver", {(4, 3): 4.0, (2, 3): 4.0}, "rank:3", (3,)),
        ("end", {(3, 4): 4.0, (3, 2): 4.0, (4, 3): 4.0, (2, 3): 4.0}, "rank:3", (3,)),
        ("cell", {(5, 6): 4.0}, "path:5/6", (5, 6)),
    ],
)
def test_the_end_or_path_that_slow_messages_have_in_common(
    name: str, slow: Slow, subject: str, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    (finding,) = solve(tmp_path, slow).findings
    assert (finding.reason, finding.method) == ("UNKNOWN_NET", "flow_only")
    assert (finding.subject.node, finding.subject.ranks) == (subject, ranks)
    assert finding.seconds.share == pytest.approx(0.024, rel=0.15)
    assert finding.confidence.band == "low"


def test_all_messages_between_two_hosts_are_one_path(tmp_path: Path) -> None:
    # Eight ranks on four hosts: between node1 and node2 only ranks 3 and 4 are neighbours.
    slow = {(3, 4): 4.0, (4, 3): 4.0}
    verdict = solve(tmp_path, slow, per_host=2)
    (finding,) = verdict.findings
    assert (finding.subject.node, finding.subject.communicator) == (
        "path:node1/node2",
        "node1 - node2",
    )
    assert "path node1 - node2: slower transfers" in render_text(verdict)


def test_messages_alike_accuse_nobody(tmp_path: Path) -> None:
    verdict = solve(tmp_path, {})
    assert (verdict.outcome, verdict.findings) == ("healthy", ())


def test_slow_everywhere_is_no_difference(tmp_path: Path) -> None:
    slow = {(a, b): 4.0 for a in range(8) for b in around(a)}
    assert solve(tmp_path, slow).findings == ()


def test_a_log_that_breaks_off_leaves_its_pairs_out(tmp_path: Path) -> None:
    # Messages of rank 0 cannot be told apart any more; others can.
    verdict = solve(tmp_path, {(5, 6): 4.0, (0, 1): 4.0}, cut=5)
    assert [finding.subject.node for finding in verdict.findings] == ["path:5/6"]
