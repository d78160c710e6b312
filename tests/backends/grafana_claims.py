"""What must be true of examples/grafana in a real Grafana, asked through its own HTTP API as its pages ask."""

from __future__ import annotations

import json
import re
import string
import time
from collections.abc import Iterator
from typing import Any

import yaml
from claims import Claim
from dashboards import DASHBOARDS, LOOK_BACK_S, Query, is_of_any_machine
from grafana_questions import PIXELS, Asker, Difference
from grafana_server import MORE_SOURCES, PROVISIONING, Grafana
from servers import Server

FOLDER = "Rootwalk"
AS_WRITTEN = ("title", "tags", "links", "templating", "panels", "time", "refresh")
# Those that nobody answers behind here.
UNVERIFIED_SOURCES = ("rootwalk-tempo", "rootwalk-pyroscope")


def read_sources(grafana: Grafana) -> dict[str, dict[str, Any]]:
    """Return the data sources of the provisioning files by uid, as Grafana should have understood them."""
    paths = [*sorted((PROVISIONING / "datasources").iterdir()), MORE_SOURCES]
    listed = [one for path in paths for one in yaml.safe_load(path.read_text())["datasources"]]
    return {one["uid"]: _expand(one, grafana) for one in listed}


def _expand(value: Any, grafana: Grafana) -> Any:
    """Put in the variables of the environment, as its documentation has it: `$$` is a dollar."""
    if isinstance(value, dict):
        return {key: _expand(inner, grafana) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expand(inner, grafana) for inner in value]
    if isinstance(value, str):
        return string.Template(value).safe_substitute(grafana.variables)
    return value


def about_provisioning(grafana: Grafana) -> Iterator[Claim]:
    """Ask for every dashboard by its uid, and for every data source: they are there as they are written."""
    written = {path.stem: json.loads(path.read_text()) for path in DASHBOARDS.glob("*.json")}
    found = {
        name: grafana.get(f"/api/dashboards/uid/{one['uid']}") for name, one in written.items()
    }
    there = sorted(name for name, one in found.items() if one and one["meta"]["provisioned"])
    yield Claim(f"{len(there)} dashboards are provisioned", sorted(written), there)
    folders = {one["meta"]["folderTitle"] for one in found.values() if one}
    yield Claim(f"they are in the folder {FOLDER}", {FOLDER}, folders)
    changed = [
        (name, field)
        for name in there
        for field in AS_WRITTEN
        if found[name]["dashboard"].get(field) != written[name].get(field)
    ]
    yield Claim("each is as it is written", [], changed)
    sources = read_sources(grafana)
    has = {one["uid"]: one for one in grafana.get("/api/datasources")}
    if not grafana.variables:
        # Of a Grafana that runs already, nobody here knows where they point, nor whether it has Tempo's.
        sources = {uid: one for uid, one in sources.items() if uid not in UNVERIFIED_SOURCES}
        sources = {
            uid: one | {"url": has[uid]["url"]} for uid, one in sources.items() if uid in has
        }
    differ = [
        (uid, key)
        for uid, one in sources.items()
        for key in ("name", "type", "url", "access", "jsonData")
        if key in one and has.get(uid, {}).get(key) != one[key]
    ]
    yield Claim(f"{len(sources)} data sources are provisioned as they are written", [], differ)


def about_references(grafana: Grafana) -> Iterator[Claim]:
    """Follow every link between dashboards and data sources, and look for every kind of panel."""
    boards = [json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))]
    links = {link["url"] for board in boards for link in board["links"]}
    uids = {match[1] for url in links if (match := re.match(r"/d/([\w-]+)\?", url))}
    dead = [uid for uid in sorted(uids) if grafana.get(f"/api/dashboards/uid/{uid}") is None]
    yield Claim(f"{len(uids)} links between dashboards lead to one", (True, []), (bool(uids), dead))
    settings = grafana.get("/api/frontend/settings")
    kinds = {panel["type"] for board in boards for panel in board["panels"]}
    yield Claim("it has every kind of panel", [], sorted(kinds - settings["panels"].keys()))
    has = {one["uid"]: one["type"] for one in grafana.get("/api/datasources")}
    asked = {
        target["datasource"]["type"] for b in boards for p in b["panels"] for target in p["targets"]
    }
    yield Claim(
        "and a data source of every kind that is asked", [], sorted(asked - set(has.values()))
    )
    named = re.findall(r'"datasourceUid": "([^"]+)"', json.dumps(read_sources(grafana)))
    yield Claim(
        "data sources name others that are there",
        (True, []),
        (bool(named), [uid for uid in named if grafana.variables and uid not in has]),
    )


def about_health(asker: Asker) -> Iterator[Claim]:
    """Ask every data source with a server behind it whether it is well, in the way its page has for that."""
    for uid in ("rootwalk-prometheus", "rootwalk-jaeger"):
        yield Claim(f"{uid} is well", "OK", asker.health(uid))


def about_boards(
    asker: Asker, job: str, prometheus: Server, jaeger: Server, is_everything_there: bool
) -> Iterator[Claim]:
    """Ask every query of every dashboard through Grafana, and the same of Prometheus and Jaeger themselves.

    Args:
        asker: Who asks, with Grafana's own values of the variables.
        job: The job that is chosen in the dashboards.
        prometheus: What is behind one data source.
        jaeger: What is behind the other.
        is_everything_there: Whether every query should find something, or what a machine may lack is left out.
    """
    end_s = int(time.time()) // 5 * 5
    for path in sorted(DASHBOARDS.glob("*.json")):
        uid = json.loads(path.read_text())["uid"]
        board = asker.grafana.get(f"/api/dashboards/uid/{uid}")["dashboard"]
        values, chosen = asker.choose(board, job)
        yield Claim(f"{uid}: its variables have values", (), tuple(values))
        asked, empty = 0, []
        differ: list[Difference] = []
        for panel in board["panels"]:
            for target in panel["targets"]:
                asked += 1
                pixels = panel.get("maxDataPoints", PIXELS)
                answer = asker.ask(target, chosen, end_s - LOOK_BACK_S, end_s, pixels)
                if not answer.found:
                    empty.append(panel["title"])
                if (here := asker.ask_behind(answer, prometheus, jaeger)) != answer.found:
                    differ.append((panel["title"], answer.found, here))
        is_excused = not is_everything_there
        wrong = [
            title
            for title in empty
            if not (is_excused and not is_of_any_machine(Query(path.stem, title, None)))
        ]
        said = f"{uid}: {asked - len(empty)} of {asked} queries have data"
        yield Claim(f"{said}, none is missing that should have", [], wrong)
        yield Claim(f"{uid}: and it is what its back ends say", [], differ)
