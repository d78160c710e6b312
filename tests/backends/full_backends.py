"""A real job in back ends of one's own, where they are at hand; what is not is said, and kept with what answered.

    TEMPO=http://127.0.0.1:3200 TEMPO_OTLP=127.0.0.1:4317   its query API, and where it takes OTLP/gRPC
    JAEGER=http://127.0.0.1:16686 JAEGER_OTLP=127.0.0.1:4317  its page and query API, and where it takes OTLP/gRPC
    PYROSCOPE=http://127.0.0.1:4040                         profiles, by tests/integration/test_pyroscope.py
    GRAFANA=http://127.0.0.1:3000 JAEGER_OTLP=127.0.0.1:4317  one with the provisioning of examples/grafana, by its API
    GRAFANA_BINARY=…/grafana-server GRAFANA_HOME=…          or its program, with a Prometheus and a Jaeger built here

Who may ask Grafana is said by GRAFANA_TOKEN, or GRAFANA_USER and GRAFANA_PASSWORD: admin and admin where none is said.

What was built from its sources may not say its version: TEMPO_VERSION=, JAEGER_VERSION= or PYROSCOPE_VERSION= is kept
then, as said by who asks.

Jaeger's page is looked at in headless Chromium, for which `make test-browser` installs what it needs.

Four ranks train under `rootwalk run`, one begins to write into a slow pipe, and a Collector sends on everything, as in
`through_backends.py`; what Tempo has of it is asked by trace and by TraceQL. Needs go, like that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import requests

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(HERE), str(TESTS)]

import claims  # noqa: E402
import grafana_claims  # noqa: E402
from deployments import (  # noqa: E402
    FAULT,
    RANKS,
    REAL_REASON,
    REAL_STALL,
    Servers,
    about_dashboards,
    train,
)
from grafana_questions import Asker  # noqa: E402
from grafana_server import find_grafana, running_grafana  # noqa: E402
from questions import TIMEOUT_S, ask, wait_for  # noqa: E402
from sent import Sent, sent_to  # noqa: E402
from servers import (  # noqa: E402
    Server,
    running_collector,
    running_jaeger,
    running_prometheus,
)

from rootwalk.otel_receiver.store import query_store  # noqa: E402
from support.browsers import find_chromium, look  # noqa: E402

# Tempo finds by TraceQL what it has cut into blocks.
SEARCHED_S = 120.0
MANY = "100000"
ADDRESSES = ("TEMPO", "TEMPO_OTLP", "JAEGER", "JAEGER_OTLP", "PYROSCOPE")
GRAFANA_RUNS = ("GRAFANA", "JAEGER_OTLP")
GRAFANA_PROGRAM = ("GRAFANA_BINARY", "GRAFANA_HOME")
BACK_ENDS = {"Tempo", "Pyroscope", "Grafana", "Jaeger's page"}
NOT_SAID = "not said"
# In Jaeger's page, where its build has set it.
PAGE_VERSION = re.compile(r'"gitVersion"\s*:\s*"([^"]+)"')
# Rates want a job that is watched for a minute and more.
LONG_ENOUGH = ("--steps", "900")
STEPS_OF_RANK_2 = (
    "SELECT DISTINCT trace_id FROM spans WHERE name = 'training.rank_step' AND rank = 2"
)


def search(tempo: str, query: str) -> set[str]:
    """Return the ids of the traces that TraceQL finds in the last hour."""
    now_s = int(time.time())
    answer = ask(
        f"{tempo}/api/search", q=query, limit=MANY, start=str(now_s - 3600), end=str(now_s + 60)
    )
    return {trace["traceID"].zfill(32) for trace in answer["traces"]}


def about_traceql(tempo: str, sent: Sent, steps: set[str]) -> Iterator[claims.Claim]:
    """Ask what a person asks: the steps of a rank, those with the stall, and under which phase it lies.

    Args:
        tempo: Base URL.
        sent: What was sent.
        steps: Trace ids of rank 2's steps.
    """
    job = f'resource.training.job.id = "{sent.job}"'
    attribute, value = sent.stall
    stall = f'resource.training.rank = {sent.fault_rank} && span.{attribute} = "{value}"'
    asked: dict[str, tuple[str, set[str]]] = {
        "steps of rank 2": (
            f'{{ {job} && resource.training.rank = 2 && name = "training.rank_step" }}',
            steps,
        ),
        "steps with the stall": (f"{{ {job} && {stall} }}", set(sent.slow_traces)),
        "steps with the stall under a phase of its rank": (
            f"{{ {job} && span.training.phase != nil }} >> {{ {stall} }}",
            set(sent.slow_traces),
        ),
        "steps of a rank that is not there": (f"{{ {job} && resource.training.rank = 9 }}", set()),
    }
    for what, (query, wanted) in asked.items():
        seen = wait_for(partial(search, tempo, query), wanted, SEARCHED_S)
        differ = sorted(wanted ^ seen)
        yield claims.Claim(f"TraceQL: {what}: {len(seen)} of {len(wanted)}", [], differ[:10])


def train_into(server: Server, folder: Path) -> tuple[int, Path, Sent]:
    """Train a real job with a real fault, its traces sent on to a back end; return exit code, store, what was sent."""
    folder.mkdir()
    with running_prometheus(folder) as prometheus:
        return train_through(Servers(server, prometheus, folder))


def train_through(servers: Servers, *options: str) -> tuple[int, Path, Sent]:
    """Train a real job with a real fault, its traces and metrics sent on; return exit code, store, what was sent."""
    folder = Path(tempfile.mkdtemp(dir=servers.folder, prefix="full-"))  # and the job's name
    written = folder / "files"
    written.mkdir()
    ways = {
        "JAEGER_GRPC": servers.jaeger.otlp,
        "PROMETHEUS_OTLP": servers.prometheus.otlp,
        "TELEMETRY_FOLDER": str(written),
    }
    with running_collector("from-rootwalk.yaml", folder, **ways) as collector:
        store = folder / "job.duckdb"
        code, _ = train(f"{folder.name}-{time.time_ns()}", store, collector, *options)
    (job,) = claims.jobs_of(store)
    return code, store, sent_to(store, job, RANKS, FAULT.rank, REAL_STALL, REAL_REASON)


def in_tempo(tempo: Server, folder: Path) -> Iterator[claims.Claim]:
    """Train a real job, and ask Tempo for it."""
    code, store, sent = train_into(tempo, folder)
    yield claims.Claim("the job was trained", 0, code)
    yield from claims.about_trace(tempo, sent)
    yield claims.about_spans(tempo, sent)
    rows = query_store(store, STEPS_OF_RANK_2)[2]
    yield from about_traceql(tempo.api, sent, {str(trace_id) for (trace_id,) in rows})


def in_jaeger(jaeger: Server, folder: Path, picture: Path | None) -> Iterator[claims.Claim]:
    """Train a real job, ask Jaeger for it, and look at the trace of a slow step in its page."""
    code, _, sent = train_into(jaeger, folder)
    yield claims.Claim("the job was trained", 0, code)
    yield from claims.about_trace(jaeger, sent)
    yield claims.about_spans(jaeger, sent)
    trace_id = sent.slow_traces[len(sent.slow_traces) // 2]
    attribute, value = sent.stall
    task = {
        "url": f"{jaeger.api}/trace/{trace_id}",
        "find": value,
        "open": "stall.",
        "picture": str(picture) if picture else None,
    }
    (seen,) = look(find_chromium(), [task], "jaeger.mjs")
    yield claims.Claim("its page has no error of its own", [], seen["said"])
    spans = re.search(r"Total Spans\s*(\d+)", seen["overview"])
    yield claims.Claim(
        "its page has all spans of a slow step",
        len(sent.span_ids[trace_id]),
        int(spans.group(1)) if spans else 0,
    )
    words = seen["details"].split()
    said = words[words.index(attribute) + 1] if attribute in words else seen["details"]
    yield claims.Claim("and says of the stall what was waited for", value, said)


def in_grafana(asker: Asker, servers: Servers) -> Iterator[claims.Claim]:
    """Look at what is provisioned; then ask every dashboard, with stand-ins for every metric there is."""
    yield from grafana_claims.about_provisioning(asker.grafana)
    yield from grafana_claims.about_references(asker.grafana)
    yield from about_dashboards(servers)
    yield from grafana_claims.about_health(asker)
    back_ends = servers.prometheus, servers.jaeger
    yield from grafana_claims.about_boards(asker, "every-metric", *back_ends, True)


def job_in_grafana(asker: Asker, servers: Servers) -> Iterator[claims.Claim]:
    """Train a real job, and ask every dashboard for it."""
    code, store, sent = train_through(servers, *LONG_ENOUGH)
    yield claims.Claim("the job was trained", 0, code)
    yield from claims.about_sums(servers.prometheus, sent, store)
    back_ends = servers.prometheus, servers.jaeger
    for claim in grafana_claims.about_boards(asker, sent.job, *back_ends, False):
        yield replace(claim, what=f"real job: {claim.what}")


def ask_grafana(folder: Path) -> dict[str, Any]:
    """Ask the Grafana that the environment names, one that runs or one that is run here."""
    where = os.environ.get
    folder.mkdir()
    with contextlib.ExitStack() as running:
        if url := where("GRAFANA"):
            grafana, prometheus, jaeger = find_grafana(url, os.environ["JAEGER_OTLP"])
        else:
            prometheus = running.enter_context(running_prometheus(folder))
            jaeger = running.enter_context(running_jaeger(folder))
            binary, home = Path(os.environ["GRAFANA_BINARY"]), Path(os.environ["GRAFANA_HOME"])
            server = running_grafana(binary, home, folder, prometheus, jaeger)
            grafana = running.enter_context(server)
        asker, servers = Asker(grafana), Servers(jaeger, prometheus, folder)
        claimed = claims.check("grafana", in_grafana(asker, servers))
        of_job = claims.check("grafana", job_in_grafana(asker, servers))
        if not all(claim.holds for claim in of_job):
            print(
                "grafana          once more: others may have kept the job from the CPUs", flush=True
            )
            of_job = claims.check("grafana", job_in_grafana(asker, servers))
        return note(grafana.version(), claimed + of_job)


def in_pyroscope(address: str) -> Iterator[claims.Claim]:
    """Run the tests of a real Pyroscope."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(TESTS / "integration" / "test_pyroscope.py")],
        env=os.environ | {"PYROSCOPE": address},
        capture_output=True,
        text=True,
        check=False,
    )
    yield claims.Claim(
        "its tests pass, none is skipped", (0, False), (done.returncode, "skipped" in done.stdout)
    )


def main() -> int:
    """Ask every back end that is named; return 0 when every claim holds, 2 where none is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="keep a picture of Jaeger's page"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="keep what was asked there, beside what others have been asked",
    )
    arguments = parser.parse_args()
    where = os.environ.get
    tempo, tempo_otlp, jaeger, jaeger_otlp, pyroscope = map(where, ADDRESSES)
    has_grafana = all(map(where, GRAFANA_RUNS)) or all(map(where, GRAFANA_PROGRAM))
    # A Jaeger that a Grafana asks is asked for its page only where that is named.
    if not (pyroscope or (tempo and tempo_otlp) or (jaeger and jaeger_otlp) or has_grafana):
        needed = (*ADDRESSES, *GRAFANA_RUNS[:1], *GRAFANA_PROGRAM)
        sys.stderr.write(f"cannot ask back ends: saw no address; needs some of {needed}\n")
        return 2
    tried: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="rootwalk-full-") as name:
        if tempo and tempo_otlp:
            server = Server(tempo_otlp, tempo, f"{tempo}/api/v2/traces/")
            version = version_of(
                "TEMPO", (ask(f"{tempo}/api/status/buildinfo") or {}).get("version")
            )
            tried["Tempo"] = note(
                version, claims.check("tempo", in_tempo(server, Path(name, "tempo")))
            )
        if jaeger and jaeger_otlp:
            server = Server(jaeger_otlp, jaeger, f"{jaeger}/api/v3/traces/")
            claimed = in_jaeger(server, Path(name, "jaeger"), arguments.picture)
            version = version_of("JAEGER", find_page_version(jaeger))
            tried["Jaeger's page"] = note(version, claims.check("jaeger", claimed))
        if pyroscope:
            info = ask(f"{pyroscope}/api/v1/status/buildinfo") or {}
            version = version_of("PYROSCOPE", info.get("data", {}).get("version"))
            tried["Pyroscope"] = note(version, claims.check("pyroscope", in_pyroscope(pyroscope)))
        if has_grafana:
            tried["Grafana"] = ask_grafana(Path(name, "grafana"))
    print(f"not tried now: {', '.join(sorted(BACK_ENDS - tried.keys()))}")
    if arguments.output is not None:
        keep(tried, arguments.output)
    return 0 if all(one["holds"] for one in tried.values()) else 1


def version_of(name: str, said: str | None) -> str:
    """Return the version that a server says, else the one that the environment has of it."""
    told = os.environ.get(f"{name}_VERSION")
    return said or (f"{told} (said by who asks)" if told else NOT_SAID)


def find_page_version(address: str) -> str | None:
    """Return the version that Jaeger's page has of its server; None where it was built without."""
    page = requests.get(address, timeout=TIMEOUT_S, proxies={"http": ""}).text
    found = PAGE_VERSION.search(page)
    return found[1] if found else None


def keep(tried: dict[str, Any], path: Path) -> None:
    """Write what was asked now into a file; what it has of other back ends stays, each with its date."""
    before = json.loads(path.read_text(encoding="utf-8"))["tried"] if path.exists() else {}
    both = before | tried
    content = {"tried": both, "not_tried": sorted(BACK_ENDS - both.keys())}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def note(version: str, claimed: list[claims.Claim]) -> dict[str, Any]:
    """Return what is kept of one back end."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "version": version,
        "holds": all(claim.holds for claim in claimed),
        "claims": {claim.what: claim.holds for claim in claimed},
    }


if __name__ == "__main__":
    raise SystemExit(main())
