"""A store as Parquet files, and its verdict's graph as DOT: read again by others' means, equal to the store."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest
from pyarrow import parquet as arrow

from rootwalk.graph.cli import main
from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.exporters import dot
from rootwalk.graph.model import EdgePayload, NodePayload
from rootwalk.otel_receiver.store import create_store, reading
from support.jobs import Fault, Job, write_job
from support.stores import query_rows

JOB = Job(ranks=3, steps=60, jitter_ratio=0.02, faults=(Fault("contention", 1, 0.06, 40),))
# A quoted string as Graphviz reads it, and one statement of what is written.
STRING = r'"(?:[^"\\]|\\.)*"'
NODE = re.compile(rf"^  ({STRING}) \[label=({STRING})(.*)\];$")
EDGE = re.compile(rf"^  ({STRING}) -> ({STRING}) \[label=({STRING})(.*)\];$")


def export(store: Path, form: str, output: Path, *options: str) -> int:
    arguments = ["export", str(store), "--format", form, "--output", str(output), "--quiet"]
    return main([*arguments, *options])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_job(tmp_path_factory.mktemp("store") / "job.duckdb", JOB)
    diagnose(path)
    return path


def views_of(store: Path) -> set[str]:
    """Return what `rootwalk_schema` and its neighbours are: views, and the tables that the README calls public."""
    rows = query_rows(store, "SELECT view_name FROM duckdb_views() WHERE NOT internal")
    return {name for (name,) in rows} | {"nodes", "edges", "evidence"}


def unquoted(text: str) -> str:
    """Return what Graphviz shows of a quoted label."""
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text[1:-1])


def test_every_view_is_a_file_with_its_rows(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    assert export(store, "parquet", folder) == 0
    assert {path.stem for path in folder.iterdir()} == views_of(store)
    with reading(store) as connection, duckdb.connect() as other:
        for path in folder.iterdir():
            wanted = connection.sql(f"FROM {path.stem} ORDER BY ALL")
            found = other.sql("SELECT * FROM read_parquet(?) ORDER BY ALL", params=[str(path)])
            assert found.columns == wanted.columns
            assert found.fetchall() == wanted.fetchall(), path.stem
            # Others read it too.
            assert arrow.read_metadata(path).num_rows == len(
                connection.sql(f"FROM {path.stem}").fetchall()
            )


def test_ranks_and_steps_are_chosen_where_a_view_has_them(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert export(store, "parquet", folder, "--steps", "41:42", "--ranks", "1", "--job", "j1") == 0

    def count(view: str) -> int:
        return int(arrow.read_metadata(folder / f"{view}.parquet").num_rows)

    assert (count("steps"), count("phases"), count("ranks"), count("jobs")) == (2, 8, 1, 1)
    assert count("nodes") == query_rows(store, "SELECT count(*) FROM nodes")[0][0]
    assert export(store, "parquet", tmp_path / "none", "--job", "another") == 1
    assert not (tmp_path / "none").exists()


def test_a_folder_is_only_replaced_if_it_is_an_earlier_export(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert export(store, "parquet", folder, "--steps", "41:42") == 0
    assert export(store, "parquet", folder) == 2
    assert "--force" in capsys.readouterr().err
    assert export(store, "parquet", folder, "--force") == 0
    assert arrow.read_metadata(folder / "steps.parquet").num_rows == 3 * 60
    (folder / "mine.txt").write_text("mine")
    assert export(store, "parquet", folder, "--force") == 2
    assert (folder / "mine.txt").read_text() == "mine"
    # A file for a folder, and a folder for a file.
    assert export(store, "dot", folder, "--force") == 2
    (tmp_path / "file").write_text("mine")
    assert export(store, "parquet", tmp_path / "file", "--force") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]
    assert export(store, "parquet", tmp_path / "no" / "folder") == 1
    assert "needs a folder that can be written to" in capsys.readouterr().err


def test_the_graph_is_drawn_as_it_is_stored(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.dot"
    assert export(store, "dot", path) == 0
    lines = path.read_text().splitlines()
    nodes = {unquoted(m[1]): m for line in lines if (m := NODE.match(line))}
    edges = [m for line in lines if (m := EDGE.match(line))]
    assert len(nodes) + len(edges) + 5 == len(lines)
    assert nodes.keys() == {node for (node,) in query_rows(store, "SELECT id FROM nodes")}
    drawn = sorted((unquoted(m[1]), unquoted(m[2])) for m in edges)
    stored = "SELECT source_id, target_id FROM edges ORDER BY ALL"
    assert drawn == query_rows(store, stored)
    # What stands out is the chain of the verdict, and only that.
    (finding,) = diagnose(store).findings
    red = {node for node, m in nodes.items() if "#b00020" in m[3]}
    assert {link.node for link in finding.chain} | {finding.subject.node} <= red
    assert sum("#b00020" in m[4] for m in edges) == len(finding.chain)
    for link in finding.chain:
        assert link.seconds is not None
        (own,) = [
            m
            for m in edges
            if unquoted(m[1]) == link.node
            and "#b00020" in m[4]
            and unquoted(m[3]).startswith(link.edge.replace("_", " "))
        ]
        assert unquoted(own[3]).endswith(f"{link.seconds:.3f} s a step")
    assert [node for node, m in nodes.items() if "fillcolor" in m[3]] == [finding.subject.node]


def test_hostile_names_stay_in_their_labels(tmp_path: Path) -> None:
    name = 'a"];\n} \\" \\N <b>\x1b[31m \\'
    fault = Fault("contention", 0, 0.06, 40, name=name)
    store = write_job(tmp_path / "job.duckdb", Job(steps=60, faults=(fault,)))
    path = tmp_path / "out.dot"
    assert export(store, "dot", path) == 0
    lines = path.read_text().splitlines()
    matched = [line for line in lines if NODE.match(line) or EDGE.match(line)]
    assert len(matched) + 5 == len(lines)
    assert "\x1b" not in path.read_text()
    (label,) = [m[2] for line in lines if (m := NODE.match(line)) and "pid 4411" in m[2]]
    assert unquoted(label) == ('process\na"]; } \\" \\N <b>⟨U+001B⟩[31m \\, pid 4411')


def test_a_large_graph_is_cut_to_what_matters(store: Path) -> None:
    verdict = diagnose(store)
    graph = DependencyGraph()
    with reading(store) as connection:
        for (node,) in connection.execute("SELECT id FROM nodes").fetchall():
            graph.add_node(node, NodePayload("x", node, {}))
        rows = connection.execute(
            "SELECT source_id, target_id, kind, seconds FROM edges"
        ).fetchall()
    for source, target, kind, seconds in rows:
        graph.add_edge(source, target, EdgePayload(kind, seconds, (), {}))
    for number in range(1000):
        graph.add_node(f"n{number}", NodePayload("x", "x", {}))
        # The heaviest beside the job; each to itself as well.
        graph.add_edge("job:j1", f"n{number}", EdgePayload("x", float(number), (), {}))
        graph.add_edge(f"n{number}", f"n{number}", EdgePayload("x", 1e6, (), {}))
    text, nodes, left_out = dot.render_dot(verdict, graph)
    assert nodes == dot.MAX_NODES
    assert nodes + left_out == 1000 + len(query_rows(store, "FROM nodes"))
    assert '"n999"' in text
    assert '"n500"' not in text
    for link in verdict.findings[0].chain:
        assert f'"{link.node}"' in text


def test_without_a_finding_there_is_no_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = write_job(tmp_path / "job.duckdb", Job(steps=60))
    empty = tmp_path / "empty.duckdb"
    create_store(empty)
    for path in (healthy, empty):
        assert export(path, "dot", tmp_path / "out.dot") == 1
        assert "saw no dependency graph" in capsys.readouterr().err
    assert export(empty, "parquet", tmp_path / "out") == 1
    assert "saw no row" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.duckdb", "job.duckdb"]
