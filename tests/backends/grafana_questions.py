"""What a page of Grafana asks of its server: values of variables, a panel's query, whether a data source is well."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboards import INTERVAL, STEP_S
from grafana_server import Grafana
from questions import ask
from servers import Server

# How many points a panel of half a screen has room for.
PIXELS = 700
# By what the dashboards' variables of data sources ask for.
CHOSEN = {"prometheus": "rootwalk-prometheus", "jaeger": "rootwalk-jaeger"}
# How many points there are of each series, by its labels; or how many traces by id.
Found = dict[str, int]
Difference = tuple[str, Found, Found]


@dataclass(frozen=True, slots=True)
class Answer:
    """What Grafana answered to a query of a panel.

    Attributes:
        query: The query with its variables filled in, but those that Grafana's server fills in.
        executed: PromQL that its server says that it asked for, and at which distance, s; None where it says nothing.
        begin_s: Begin of the time that was asked for, Unix time.
        end_s: Its end.
        found: What there is.
    """

    query: Mapping[str, Any]
    executed: tuple[str, float] | None
    begin_s: int
    end_s: int
    found: Found


class Asker:
    """Asks a Grafana as its pages do."""

    def __init__(self, grafana: Grafana) -> None:
        self.grafana = grafana
        listed = grafana.get("/api/frontend/settings")["datasources"].values()
        self._sources = {one["uid"]: one for one in listed if "uid" in one}

    def health(self, uid: str) -> str:
        """Return "OK", or what is wrong; where its server has no question for that, it is asked what its page asks."""
        source = self._sources[uid]
        if not self._is_asked_by_server(uid):
            answer = self.grafana.get(f"{source['url']}/api/services")
            return "OK" if answer and answer["data"] else f"no services: {answer!r}"
        answer = self.grafana.get(f"/api/datasources/uid/{uid}/health")
        if answer is not None:
            return str(answer["status"] if answer["status"] == "OK" else answer)
        target: dict[str, Any] = {"refId": "A", "expr": "1+1", "instant": True}
        target["datasource"] = {"type": source["type"], "uid": uid}
        now_s = int(time.time())
        return "OK" if self.ask(target, {}, now_s - STEP_S, now_s).found else "no answer to 1+1"

    def choose(self, board: Mapping[str, Any], job: str) -> tuple[list[str], dict[str, str]]:
        """Return which variables of a dashboard have no value, and what is chosen of the others."""
        lacking: list[str] = []
        chosen: dict[str, str] = {}
        for variable in board["templating"]["list"]:
            name = variable["name"]
            if variable["type"] == "datasource":
                values = [CHOSEN[variable["query"]]]
                values = [uid for uid in values if uid in self._sources]
            else:
                uid = fill(variable["datasource"]["uid"], chosen)
                values = self._label_values(uid, variable["query"]["query"])
            wanted = job if name == "job" else next(iter(values), "")
            if wanted in values:
                chosen[name] = variable.get("allValue") or wanted
            else:
                lacking.append(name)
        return lacking, chosen

    def hosts_of(self, job: str) -> list[str]:
        """Return the hosts of a job, as somebody would choose them."""
        metric = f'training_thread_time_seconds_total{{training_job_id="{job}"}}'
        return self._label_values(CHOSEN["prometheus"], f"label_values({metric}, host_name)")

    def _label_values(self, uid: str, query: str) -> list[str]:
        metric, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
        path = f"/api/datasources/uid/{uid}/resources/api/v1/label/{label}/values"
        return list(self.grafana.get(path, **{"match[]": metric})["data"])

    def ask(
        self,
        target: Mapping[str, Any],
        chosen: Mapping[str, str],
        begin_s: int,
        end_s: int,
        pixels: int = PIXELS,
    ) -> Answer:
        """Ask a query of a panel that has room for so many points."""
        query = json.loads(json.dumps(target))
        query = {
            key: fill(one, chosen) if isinstance(one, str) else one for key, one in query.items()
        }
        uid = fill(target["datasource"]["uid"], chosen)
        query["datasource"] = target["datasource"] | {"uid": uid}
        if not self._is_asked_by_server(uid):
            found = dict.fromkeys(self._find_traces(uid, query, begin_s, end_s), 1)
            return Answer(query, None, begin_s, end_s, found)
        body = {
            "queries": [query | {"intervalMs": 1000, "maxDataPoints": pixels}],
            "from": str(begin_s * 1000),
            "to": str(end_s * 1000),
        }
        answer = self.grafana.post("/api/ds/query", body)
        result = answer.get("results", {}).get(query["refId"])
        assert result is not None, (query, answer)
        assert "error" not in result, (query, answer)
        frames = result.get("frames", [])
        if query["datasource"]["type"] == "jaeger":
            found = {trace: 1 for frame in frames for trace in _first(frame["data"]["values"])}
            return Answer(query, None, begin_s, end_s, found)
        return Answer(query, read_executed(frames), begin_s, end_s, read_frames(frames))

    def _is_asked_by_server(self, uid: str) -> bool:
        """Return whether Grafana's server asks it, and not the page by way of the server."""
        return bool(self._sources[uid]["meta"].get("backend"))

    def _find_traces(
        self, uid: str, query: Mapping[str, Any], begin_s: int, end_s: int
    ) -> list[str]:
        at = self._sources[uid]["url"]
        found = self.grafana.get(f"{at}/api/traces", **search_of(query, begin_s, end_s))
        return [trace["traceID"] for trace in found["data"]]

    def ask_behind(self, answer: Answer, prometheus: Server, jaeger: Server) -> Found:
        """Ask the back end itself for what Grafana was asked for."""
        query = answer.query
        if query["datasource"]["type"] == "jaeger":
            search = search_of(query, answer.begin_s, answer.end_s)
            return {one["traceID"]: 1 for one in ask(f"{jaeger.api}/api/traces", **search)["data"]}
        text, step_s = answer.executed or (
            query["expr"].replace("$__rate_interval", INTERVAL),
            STEP_S,
        )
        if query.get("instant"):
            path, when = "query", {"time": str(answer.end_s)}
        else:
            # Grafana asks for multiples of the distance.
            begin_s, end_s = (at // step_s * step_s for at in (answer.begin_s, answer.end_s))
            path, when = "query_range", {"start": str(begin_s), "end": str(end_s)}
            when["step"] = str(step_s)
        series = ask(f"{prometheus.api}/api/v1/{path}", query=text, **when)["data"]["result"]
        return {_key(one["metric"]): len(one.get("values", [one.get("value")])) for one in series}


def fill(text: str, chosen: Mapping[str, str]) -> str:
    """Put in what is chosen for a dashboard's variables."""
    for name, value in chosen.items():
        text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    return text


def search_of(query: Mapping[str, Any], begin_s: int, end_s: int) -> dict[str, str]:
    """Return Jaeger's parameters of a search, its tags as Grafana makes them of what is written."""
    key, _, value = query["tags"].partition("=")
    return {
        "service": query["service"],
        "operation": query["operation"],
        "tags": json.dumps({key: value.strip('"')}),
        "limit": str(query["limit"]),
        "start": str(begin_s * 1_000_000),
        "end": str(end_s * 1_000_000),
        "lookback": "custom",
    }


def read_executed(frames: list[Any]) -> tuple[str, float] | None:
    """Return what Grafana's server says that it asked of Prometheus."""
    for frame in frames:
        said = frame["schema"].get("meta", {}).get("executedQueryString", "")
        expression, _, _ = said.removeprefix("Expr: ").partition("\nStep: ")
        fields = frame["schema"].get("fields") or [{}]
        interval_ms = fields[0].get("config", {}).get("interval")
        if said and interval_ms:
            return expression, interval_ms / 1000
    return None


def read_frames(frames: list[Any]) -> Found:
    """Return how many points each series has."""
    found = {}
    for frame in frames:
        fields = frame["schema"].get("fields") or []
        for field, values in zip(fields, frame["data"]["values"], strict=True):
            if field["type"] != "time" and values:
                found[_key(field.get("labels") or {})] = len(values)
    return found


def _key(labels: Mapping[str, str]) -> str:
    return json.dumps({name: one for name, one in sorted(labels.items()) if name != "__name__"})


def _first(columns: list[Any]) -> list[Any]:
    return columns[0] if columns else []
