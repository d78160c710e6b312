"""A Grafana with the dashboards and data sources of examples/grafana: one that runs, or a program that is started here.

GRAFANA=http://127.0.0.1:3000 JAEGER_OTLP=127.0.0.1:4317   its data sources say where Prometheus and Jaeger are
GRAFANA_BINARY=/usr/sbin/grafana-server GRAFANA_HOME=/usr/share/grafana   with Prometheus and Jaeger built here
GRAFANA_TOKEN, or GRAFANA_USER and GRAFANA_PASSWORD        admin and admin where none is said
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from dashboards import DASHBOARDS
from questions import TIMEOUT_S, wait_for
from servers import Server

from support.ports import free_ports
from support.relays import running_relay

GRAFANA = DASHBOARDS.parent
PROVISIONING = GRAFANA / "provisioning"
# For who has Tempo and Pyroscope as well.
MORE_SOURCES = GRAFANA / "tempo-and-pyroscope.yaml"
SEEN_AT = "/var/lib/grafana/dashboards"
NOBODY_THERE = "http://127.0.0.1:9"
# It asks its makers for nothing, and adds nothing that was not in its folder.
STAYS_HERE = {
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    "GF_PLUGINS_PREINSTALL_DISABLED": "true",
    "GF_NEWS_NEWS_FEED_ENABLED": "false",
    "GF_SECURITY_DISABLE_GRAVATAR": "true",
}


@dataclass(frozen=True, slots=True)
class Grafana:
    """A Grafana that answers.

    Attributes:
        url: Its base URL.
        login: Headers that say who asks.
        variables: What the variables of the provisioning files stand for, where they are known.
    """

    url: str
    login: Mapping[str, str]
    variables: Mapping[str, str]

    def get(self, path: str, **parameters: str) -> Any:
        """Return what it answers; None for "not found"."""
        answer = self._send("GET", path, params=parameters)
        if answer.status_code == requests.codes.not_found:
            return None
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, body: Any) -> Any:
        """Return what it answers; to a question that it cannot answer, why."""
        return self._send("POST", path, json=body).json()

    def _send(self, method: str, path: str, **content: Any) -> requests.Response:
        return requests.request(
            method,
            self.url + path,
            headers=dict(self.login),
            timeout=TIMEOUT_S,
            proxies={"http": ""},
            **content,
        )

    def version(self) -> str:
        """Return its version and the commit that it was built from."""
        health = self.get("/api/health")
        return f"{health['version']} ({health.get('commit', 'commit not said')})"


def read_login() -> dict[str, str]:
    """Return who asks, by the environment."""
    where = os.environ.get
    if token := where("GRAFANA_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    user, password = where("GRAFANA_USER", "admin"), where("GRAFANA_PASSWORD", "admin")
    prepared = requests.Request("GET", NOBODY_THERE, auth=(user, password)).prepare()
    return {"Authorization": prepared.headers["Authorization"]}


def lay_out(folder: Path) -> Path:
    """Copy the provisioning files; only where the dashboards are is another path here."""
    there = folder / "provisioning"
    shutil.copytree(PROVISIONING, there)
    shutil.copy(MORE_SOURCES, there / "datasources")
    for path in (there / "dashboards").iterdir():
        text = path.read_text(encoding="utf-8")
        assert SEEN_AT in text, path
        path.write_text(text.replace(SEEN_AT, str(DASHBOARDS)), encoding="utf-8")
    return there


@contextlib.contextmanager
def running_grafana(
    binary: Path, home: Path, folder: Path, prometheus: Server, jaeger: Server
) -> Iterator[Grafana]:
    """Run a Grafana of one's own with our provisioning, its data in a folder.

    Args:
        binary: `grafana-server`, or `grafana`, which takes that as a command.
        home: Where its `conf` and `public` are.
        folder: Where its data goes.
        prometheus: What its data source for metrics asks.
        jaeger: What its data source for traces asks.
    """
    (port,) = free_ports(1)
    variables = {
        "PROMETHEUS_URL": prometheus.api,
        "JAEGER_URL": jaeger.api,
        "TEMPO_URL": NOBODY_THERE,
        "PYROSCOPE_URL": NOBODY_THERE,
    }
    environment = {
        "GF_PATHS_DATA": str(folder / "data"),
        "GF_PATHS_LOGS": str(folder / "logs"),
        "GF_PATHS_PLUGINS": str(folder / "plugins"),
        "GF_PATHS_PROVISIONING": str(lay_out(folder)),
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(port),
    }
    command = [str(binary), *(["server"] if binary.name == "grafana" else [])]
    command.append(f"--homepath={home}")
    everything = os.environ | STAYS_HERE | environment | variables
    with running_relay(command, port, folder / "grafana.log", everything):
        grafana = Grafana(f"http://127.0.0.1:{port}", read_login(), variables)
        boards = len(list(DASHBOARDS.glob("*.json")))
        wait_for(lambda: len(grafana.get("/api/search", type="dash-db")), boards)
        yield grafana


def find_grafana(url: str, jaeger_otlp: str) -> tuple[Grafana, Server, Server]:
    """Return a Grafana that runs, and the Prometheus and Jaeger that its data sources ask.

    Args:
        url: Its base URL.
        jaeger_otlp: Where that Jaeger takes OTLP/gRPC.
    """
    grafana = Grafana(url.rstrip("/"), read_login(), {})
    metrics = grafana.get("/api/datasources/uid/rootwalk-prometheus")
    traces = grafana.get("/api/datasources/uid/rootwalk-jaeger")
    if metrics is None or traces is None:
        raise SystemExit(
            f"cannot ask {url}: saw no data sources of examples/grafana; needs its provisioning files"
        )
    at, jaeger = metrics["url"].rstrip("/"), traces["url"].rstrip("/")
    return (
        grafana,
        Server(f"{at}/api/v1/otlp", at),
        Server(jaeger_otlp, jaeger, f"{jaeger}/api/v3/traces/"),
    )
