"""The dashboards of examples/grafana asked as Grafana asks: every query of every panel and variable."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from questions import ask
from servers import Server

DASHBOARDS = Path(__file__).resolve().parents[2] / "examples" / "grafana" / "dashboards"
# What of its variables Grafana would put in.
INTERVAL = "1m"
LOOK_BACK_S = 900
STEP_S = 5
# What a machine may lack, so that a job on it has nothing to answer with; stand-ins answer for them.
MACHINE_MAY_LACK = {
    ("devices", ""): "a GPU",
    ("hosts", "Packets dropped and errors"): "a network device",
    ("hosts", "Memory: pages swapped, stalls"): "too little memory",
    ("ranks", "Major page faults"): "a page that has to be read from a disk while the job runs",
    ("hosts", "Clock of the ranks' CPUs"): "a CPU that tells its clock",
}


@dataclass(frozen=True, slots=True)
class Query:
    """One question of a dashboard: PromQL, or None and Jaeger's service, operation and tags."""

    board: str
    panel: str
    expression: str | None
    traces: tuple[str, str, str] | None = None


def read_queries(job: str) -> Iterator[Query]:
    """Yield every query of every dashboard, its variables filled in."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                inner = variable["definition"].removeprefix("label_values(").removesuffix(")")
                name, _, label = inner.rpartition(", ")
                yield Query(path.stem, f"${variable['name']}", f"count by ({label}) ({name})")
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield _query(path.stem, panel["title"], target, job)


def _query(board: str, panel: str, target: dict[str, Any], job: str) -> Query:
    if target["datasource"]["type"] == "jaeger":
        tags = target["tags"].replace("$job", job)
        return Query(board, panel, None, (target["service"], target["operation"], tags))
    text = target["expr"].replace("$__rate_interval", INTERVAL)
    return Query(board, panel, text.replace("$job", job).replace("$host", ".*"))


def is_of_any_machine(query: Query) -> bool:
    """Return whether a job on any machine should answer this."""
    return not MACHINE_MAY_LACK.keys() & {(query.board, ""), (query.board, query.panel)}


def unanswered(prometheus: Server, jaeger: Server, queries: list[Query]) -> list[Query]:
    """Return the queries to which the back ends have nothing, over the last quarter of an hour."""
    return [query for query in queries if not _answer(prometheus, jaeger, query)]


def _answer(prometheus: Server, jaeger: Server, query: Query) -> bool:
    now_s = time.time()
    if query.traces is not None:
        service, operation, tags = query.traces
        key, _, value = tags.partition("=")
        found = ask(
            f"{jaeger.api}/api/traces",
            service=service,
            operation=operation,
            tags=json.dumps({key: value.strip('"')}),
            start=str(int((now_s - 4 * LOOK_BACK_S) * 1e6)),
            end=str(int(now_s * 1e6)),
            limit="20",
        )
        return bool(found and found["data"])
    answer = ask(
        f"{prometheus.api}/api/v1/query_range",
        query=str(query.expression),
        start=str(now_s - LOOK_BACK_S),
        end=str(now_s),
        step=str(STEP_S),
    )
    return bool(answer["data"]["result"])
