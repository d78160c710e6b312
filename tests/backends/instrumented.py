"""A program under the real `opentelemetry-instrument`, with OpenTelemetry's distribution and another instrumentor."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from backend_programs import build_program
from claims import Claim

from rootwalk.otel_receiver.store import query_store
from support.receiver_process import running_receiver

HOST = socket.gethostname()
STEP_SPANS = ["backward", "forward", "optimizer", "training.rank_step"]
SWITCHED_OFF = {
    "OTEL_SDK_DISABLED": "true",
    "ROOTWALK_DISABLED": "1",
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "rootwalk",
}


def run_program(store: Path, **environment: str) -> bool:
    """Run it as rank 1 of 2, its telemetry and ours to one receiver; return whether our hooks were in place."""
    python = build_program("python")
    with running_receiver(store, "--telemetry-interval", "0") as receiver:
        own = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{receiver.http}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "rootwalk,otel",
            "OTEL_SERVICE_NAME": "my-training",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "http",
            "RANK": "1",
            "WORLD_SIZE": "2",
            "ROOTWALK_JOB": "native",
            "ROOTWALK_RING_DIRECTORY": str(store.with_suffix(".rings")),
        }
        inherited = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME")}
        done = subprocess.run(
            [
                str(python.with_name("opentelemetry-instrument")),
                str(python),
                str(python.parents[2] / "script.py"),
                f"http://{receiver.http}/",
            ],
            env=inherited | own | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        receiver.stop()
    return bool(json.loads(done.stdout)["is_hooked"])


# Nothing but what it takes to send spans, with our detector by the name of its entry point.
CONFIGURATION = """
file_format: "1.0"
resource:
  attributes: [{name: service.name, value: my-configured-training}]
  detection/development:
    detectors: [{rootwalk: {}}]
tracer_provider:
  processors:
    - batch: {exporter: {otlp_http: {endpoint: "${OTEL_EXPORTER_OTLP_ENDPOINT}/v1/traces"}}}
"""


def about_configuration(folder: Path) -> Iterator[Claim]:
    """Run the program with OpenTelemetry's declarative configuration instead of variables of the environment."""
    file, store = folder / "otel.yaml", folder / "configured.duckdb"
    file.write_text(CONFIGURATION, encoding="utf-8")
    hooked = run_program(store, OTEL_CONFIG_FILE=str(file), OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="")
    yield Claim("a declarative configuration: our hooks are loaded", True, hooked)
    scope = "scope_name = 'rootwalk.instrumentation'"
    yield Claim("steps arrive", STEP_SPANS, names(store, f"{scope} AND rank = 1"))
    who = "SELECT DISTINCT service_name, job, rank, host_name FROM spans WHERE name = 'my own span'"
    saw = query_store(store, who)[2]
    wanted = [("my-configured-training", "native", 1, HOST)]
    yield Claim("and the detector that it names gives job and rank", wanted, saw)


def names(store: Path, where: str) -> list[str]:
    """Return the different names of spans, in order."""
    rows = query_store(store, f"SELECT DISTINCT name FROM spans WHERE {where} ORDER BY name")[2]  # noqa: S608
    return [str(name) for (name,) in rows]


def about_instrument(folder: Path) -> Iterator[Claim]:
    """Run the program as it is, and with each way to switch us off."""
    store = folder / "instrumented.duckdb"
    yield Claim("opentelemetry-instrument loads the hooks", True, run_program(store))
    scope = "scope_name = 'rootwalk.instrumentation'"
    yield Claim("its steps arrive", STEP_SPANS, names(store, f"{scope} AND rank = 1"))
    who = "SELECT DISTINCT service_name, job, rank, host_name FROM spans WHERE name = 'my own span'"
    saw = query_store(store, who)[2]
    yield Claim(
        "the program's own span has job and rank", [("my-training", "native", 1, HOST)], saw
    )
    clients = "SELECT count(*) FROM spans WHERE kind = 'CLIENT'"
    yield Claim(
        "its request is traced, our exports are not", [(1,)], query_store(store, clients)[2]
    )
    yield from about_configuration(folder)
    for variable, value in SWITCHED_OFF.items():
        off = folder / f"{variable.lower()}.duckdb"
        is_hooked = run_program(off, **{variable: value})
        left = [] if variable == "OTEL_SDK_DISABLED" else ["GET", "my own span"]
        wanted = (False, left, False)
        saw_off = (is_hooked, names(off, "true"), off.with_suffix(".rings").exists())
        yield Claim(f"{variable}={value}: nothing of ours", wanted, saw_off)
