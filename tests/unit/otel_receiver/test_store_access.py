"""A store of somebody else, and a query, reach no file but the store, no network and no extension."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.compaction import apply_retention, compact
from rootwalk.otel_receiver.retention import Retention
from rootwalk.otel_receiver.schema import SCHEMA_VERSION
from rootwalk.otel_receiver.store import query_store, read_position, reading, writing

PRIVATE = "root:*:20228:0:99999"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text(PRIVATE)
    return path


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM glob('{folder}/*')",
        "COPY (SELECT 1) TO '{folder}/written.csv'",
        "EXPORT DATABASE '{folder}/written'",
        "ATTACH '{folder}/written.duckdb'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM read_csv('http://127.0.0.1:1/x.csv')",
        "SET enable_external_access = true",
        "SET memory_limit = '1TB'",
        "SET threads = 999",
        "RESET lock_configuration",
        "PRAGMA enable_logging",
    ],
)
def test_a_query_reaches_nothing_else(store: Path, secret: Path, query: str) -> None:
    before = sorted(store.parent.iterdir())
    with pytest.raises(StoreError) as caught:
        query_store(store, query.format(secret=secret, folder=store.parent))
    assert PRIVATE not in str(caught.value)
    assert sorted(store.parent.iterdir()) == before


def test_a_query_may_when_its_user_says_so(store: Path, secret: Path) -> None:
    query = "SELECT content FROM read_text('{}')"
    rows = query_store(store, query.format(secret), allow_files=True)[2]
    assert rows == [(PRIVATE,)]


def _with_view(store: Path, name: str, query: str) -> None:
    with duckdb.connect(str(store)) as connection:
        connection.execute(f"CREATE OR REPLACE VIEW {name} AS {query}")


OPENERS: tuple[Callable[[Path], object], ...] = (
    lambda store: query_store(store, "FROM jobs"),
    read_position,
    compact,
    lambda store: apply_retention(store, Retention(age_s=3600.0), 10**18),
    lambda store: _read(store),
    lambda store: _write(store),
)


def _read(store: Path) -> list[object]:
    with reading(store) as connection:
        return list(connection.execute("FROM jobs").fetchall())


def _write(store: Path) -> list[object]:
    with writing(store) as connection:
        return list(connection.execute("FROM jobs").fetchall())


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("name", ["rootwalk_schema", "jobs"])
def test_a_view_of_a_foreign_store_reads_no_file_of_its_reader(
    store: Path, secret: Path, opener: Callable[[Path], object], name: str
) -> None:
    columns = {
        "rootwalk_schema": f"{SCHEMA_VERSION} AS version, 1 AS created_unix_ns, content AS product",
        "jobs": "content AS job",
    }
    source = f"read_text('{secret}')"
    _with_view(store, name, " ".join(("SELECT", columns[name], "FROM", source)))
    answer = ""
    try:
        answer = repr(opener(store))
    except (StoreError, duckdb.Error) as error:
        answer = str(error)
    assert PRIVATE not in answer


def test_a_writer_cannot_open_the_way_again(store: Path) -> None:
    with writing(store) as connection, pytest.raises(duckdb.Error):
        connection.execute("SET enable_external_access = true")
