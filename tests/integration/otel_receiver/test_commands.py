"""`rootwalk receive` and `rootwalk sql` as commands: what they print, refuse and return."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rootwalk.graph.commands.sql import render_json, render_table
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import create_store, save_journal_batch
from support.otlp_messages import span, trace_request
from support.receiver_process import run_command, running_receiver


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two spans, s1 and s2."""
    path = tmp_path / "s.duckdb"
    create_store(path)
    body = trace_request([span(1, "s1", attributes={"k": 1}), span(2, "s2")])
    save_journal_batch(path, [JournalRecord(Signal.TRACES, 1, body, 1, 1)])
    return path


def test_sql_prints_a_table(store: Path, tmp_path: Path) -> None:
    query = "SELECT name, rank, parent_span_id FROM spans ORDER BY name"

    done = run_command("sql", str(store), query, cwd=tmp_path)

    assert done.stdout.splitlines() == [
        "name  rank  parent_span_id",
        "----  ----  --------------",
        "s1       1",
        "s2       1",
    ]


def test_sql_prints_json_and_csv(store: Path, tmp_path: Path) -> None:
    query = "SELECT name, attributes, status_message FROM spans ORDER BY name LIMIT 1"

    as_json = run_command("sql", str(store), query, "--json", cwd=tmp_path)
    as_csv = run_command("sql", str(store), query, "--csv", cwd=tmp_path)

    assert as_json.stdout == '[{"name": "s1", "attributes": {"k": 1}, "status_message": null}]\n'
    assert as_csv.stdout == 'name,attributes,status_message\ns1,"{""k"":1}",\n'


@pytest.mark.parametrize(
    ("file", "query", "saw"),
    [
        ("s.duckdb", "SELEC 1", "cannot answer the query: Parser Error"),
        ("s.duckdb", "DROP VIEW spans", "cannot answer the query: "),
        ("none.duckdb", "SELECT 1", "no such file"),
    ],
)
def test_sql_refuses_in_a_sentence(
    store: Path, tmp_path: Path, file: str, query: str, saw: str
) -> None:
    done = run_command("sql", str(store.with_name(file)), query, cwd=tmp_path)

    assert done.returncode == 1
    assert done.stdout == ""
    assert saw in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_fits_the_terminal() -> None:
    rows = [("a" * 50, 1), ("b", None)]

    assert render_table(["text", "n"], rows, 20).splitlines() == [
        "text               n",
        "-----------------  -",
        "aaaaaaaaaaaaaaaa…  1",
        "b",
    ]


def test_a_row_that_cannot_fit_becomes_lines() -> None:
    assert render_table(["first", "second"], [("a" * 30, "b"), (None, 2)], 14).splitlines() == [
        "first   aaaaa…",
        "second  b",
        "",
        "first",
        "second  2",
    ]


def test_repeated_column_names_get_numbers() -> None:
    assert (
        render_json(["n", "n", "n_1"], ["INTEGER"] * 3, [(1, 2, 3)])
        == '[{"n": 1, "n_1": 2, "n_1_1": 3}]'
    )


@pytest.mark.parametrize("option", ["--grpc", "--http"])
def test_an_occupied_port(tmp_path: Path, option: str) -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        address = f"127.0.0.1:{occupied.getsockname()[1]}"
        other = "--http" if option == "--grpc" else "--grpc"
        done = run_command("receive", option, address, other, "127.0.0.1:0", cwd=tmp_path)

    assert done.returncode == 2
    assert f"cannot listen on {address}: address in use; needs a free port" in done.stderr
    assert f"{option} 127.0.0.1:0" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "rootwalk.duckdb.journal").exists()


@pytest.mark.parametrize(
    ("store_name", "saw"),
    [
        ("text.duckdb", "saw a file that is not a DuckDB database"),
        ("none/s.duckdb", "no such file or directory"),
        ("text.duckdb/s.duckdb", "not a directory"),
    ],
)
def test_a_store_that_cannot_be_used(tmp_path: Path, store_name: str, saw: str) -> None:
    (tmp_path / "text.duckdb").write_text("hello\n")

    options = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    done = run_command("receive", "--store", store_name, *options, cwd=tmp_path)

    assert done.returncode == 1
    assert saw in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text.duckdb"]
    assert (tmp_path / "text.duckdb").read_text() == "hello\n"


def test_one_receiver_for_each_store(tmp_path: Path) -> None:
    with running_receiver(tmp_path / "s.duckdb") as receiver:
        options = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        done = run_command("receive", "--store", "s.duckdb", *options, cwd=tmp_path)
        receiver.stop()

    assert done.returncode == 1
    assert "another receiver writes it" in done.stderr


def test_a_receiver_says_where_it_listens_and_warns(tmp_path: Path) -> None:
    with running_receiver(tmp_path / "s.duckdb", "--http", "0.0.0.0:0") as receiver:
        said = receiver.stop()

    assert f"listening for OTLP on {receiver.grpc} (gRPC) and {receiver.http} (HTTP)" in said
    assert "warning: anyone who reaches 0.0.0.0 can write to the store" in said


def test_a_receiver_ends_with_its_parent(tmp_path: Path) -> None:
    """The parent is a shell that is killed; the receiver stores what it has and goes."""
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "rootwalk.graph", "receive", "--exit-with-parent"]
    command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready)]
    script = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    parent = subprocess.Popen([sys.executable, "-c", script, *command], cwd=tmp_path)
    deadline = time.monotonic() + 30
    while not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    parent.kill()
    parent.wait()

    while (tmp_path / "rootwalk.duckdb.journal").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(children) == 1
    while Path(f"/proc/{children[0]}/exe").exists() and _is_running(int(children[0])):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_ctrl_c_is_a_clean_stop(tmp_path: Path) -> None:
    with running_receiver(tmp_path / "s.duckdb") as receiver:
        receiver.process.send_signal(signal.SIGINT)
        _, said = receiver.process.communicate(timeout=30)

    assert receiver.process.returncode == 0
    assert "Traceback" not in said
    assert not (tmp_path / "s.duckdb.journal").exists()
