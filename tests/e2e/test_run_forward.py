"""`rootwalk run --forward` around a job without a step: agent, two receivers, and the user's own environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rootwalk.otel_receiver.store import query_store
from support.command import run_rootwalk
from support.forward_targets import http_other
from support.receiver_process import running_receiver

pytestmark = [pytest.mark.slow, pytest.mark.side_by_side]

# What a receiver tells of itself, every ten seconds, stays in its own store.
POINTS = """
    SELECT name, unix_ns, attributes::VARCHAR
    FROM metrics WHERE service_name IS DISTINCT FROM 'rootwalk-receiver' ORDER BY ALL
"""
JOB = ("--", sys.executable, "-c", "import time; time.sleep(2)")


@pytest.mark.long
@pytest.mark.parametrize(
    ("scheme", "is_named_by_environment"), [("http", False), ("http", True), ("grpc", False)]
)
def test_both_receivers_have_everything(
    tmp_path: Path, scheme: str, is_named_by_environment: bool
) -> None:
    far_store = tmp_path / "far.duckdb"
    with running_receiver(far_store) as far:
        url = f"{scheme}://{far.http if scheme == 'http' else far.grpc}"
        options = () if is_named_by_environment else ("--forward", url)
        environment = url if is_named_by_environment else ""
        done = run_rootwalk(
            "run",
            "--store",
            "near.duckdb",
            *options,
            *JOB,
            cwd=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=environment,
        )
        far.stop()

    near = query_store(tmp_path / "near.duckdb", POINTS)[2]
    assert done.returncode == 0, done.stderr
    assert "rootwalk.sensor.state" in {row[0] for row in near}
    assert query_store(far_store, POINTS)[2] == near
    assert not (tmp_path / "near.duckdb.journal").exists()


def test_headers_go_with_what_is_sent_on(tmp_path: Path) -> None:
    with http_other() as other:
        done = run_rootwalk(
            "run", "--store", "s.duckdb", *JOB, cwd=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=other.url, OTEL_EXPORTER_OTLP_HEADERS="api-key=k",
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert other.accepted
    assert {headers.get("api-key") for headers in other.headers} == {"k"}


def test_an_endpoint_where_nobody_listens_changes_nothing_for_the_job(tmp_path: Path) -> None:
    with http_other() as other:
        pass
    job = ("--", sys.executable, "-c", "import sys; sys.exit(7)")

    done = run_rootwalk(
        "run", "--store", "s.duckdb", *job, cwd=tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=other.url
    )

    assert done.returncode == 7
    assert f"not all could be forwarded to {other.url}; it waits in" in done.stderr
    assert f"hint: rootwalk receive --store s.duckdb --forward {other.url} sends it" in done.stderr
    assert query_store(tmp_path / "s.duckdb", "SELECT count(*) > 0 FROM metrics")[2] == [(True,)]


def test_an_endpoint_that_is_no_url_is_said(tmp_path: Path) -> None:
    done = run_rootwalk(
        "run", "--store", "s.duckdb", *JOB, cwd=tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="nowhere"
    )

    assert done.returncode == 0
    assert 'cannot forward to "nowhere"' in done.stderr
