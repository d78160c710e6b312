"""One verdict in every form: text, JSON, HTML, Perfetto, OTLP and DOT say the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.live.events import build_events
from rootwalk.graph.live.track import EpisodeSpan, Ledger
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import save_journal_batch
from support.jobs import Fault, Job, write_job
from support.pages import Page, flat
from support.perfetto_files import read_perfetto

JOB = Job(ranks=4, jitter_ratio=0.05, faults=(Fault("contention", 2, 0.060, 40),))
NOW_NS = 1_900_000_000_000_000_000


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "--quiet"]) == 0
    return capsys.readouterr().out


def store_event(store: Path) -> None:
    """Store what live detection sends when it opens the verdict's finding."""
    verdict = diagnose(store)
    window = verdict.window
    assert window.first_step is not None
    assert window.last_step is not None
    onset_ns = window.start_unix_ns or 0
    episode = EpisodeSpan(window.first_step, window.last_step, True, onset_ns, onset_ns)
    (notice,) = Ledger().take(verdict, episode, NOW_NS)
    body = build_events(notice, None, NOW_NS).SerializeToString()
    save_journal_batch(store, [JournalRecord(Signal.LOGS, NOW_NS, body, 1, 0)])


def event_of(file: Path) -> dict[str, Any]:
    """Return body and attributes of the one finding in an OTLP file."""
    found = []
    for line in file.read_text().splitlines():
        for resource in json.loads(line).get("resourceLogs", ()):
            for scope in resource["scopeLogs"]:
                found += [r for r in scope["logRecords"] if "finding" in r["eventName"]]
    (record,) = found
    values = {a["key"]: next(iter(a["value"].values())) for a in record["attributes"]}
    return {"body": record["body"]["stringValue"], **values}


def test_the_same_numbers_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write_job(tmp_path / "job.duckdb", JOB)
    store_event(store)
    page, trace = tmp_path / "page.html", tmp_path / "out.pftrace"
    lines, graph = tmp_path / "out.jsonl", tmp_path / "out.dot"
    text = flat(ask(capsys, "diagnose", str(store)))
    verdict: dict[str, Any] = json.loads(ask(capsys, "diagnose", str(store), "--json"))
    ask(capsys, "report", str(store), "--output", str(page))
    for form, path in (("perfetto", trace), ("otlp", lines), ("dot", graph)):
        ask(capsys, "export", str(store), "--format", form, "--output", str(path))
    html = Page(page.read_text(encoding="utf-8")).text
    (instant,) = [s for s in read_perfetto(trace).slices if s.category == "verdict"]
    event = event_of(lines)

    (finding,) = verdict["findings"]
    share_s = finding["seconds"]["share"]
    # The first line, in every form that has words.
    assert text.startswith(instant.name)
    assert instant.name in html
    assert instant.name.replace('"', '\\"') in graph.read_text()
    assert instant.name.endswith(f"+{share_s:.3f} s/step")
    assert event["body"].startswith(instant.name.rpartition(",")[0])
    # The numbers: to the last digit where they are numbers, to the millisecond where they are words.
    for value, name, words in [
        (verdict["step_s"], "step_s", "step {}"),
        (verdict["healthy_step_s"], "healthy_step_s", "healthy {}"),
        (finding["predicted_step_s"], "predicted_step_s", "without it {}"),
        (share_s, "share_s", "+{}/step"),
        (finding["victims"]["waited_s"], "victims_waited_s", "waited {}"),
        (verdict["unexplained_s"], "unexplained_s", "unexplained {}"),
    ]:
        assert instant.arguments[name] == value, name
        said = words.format(f"{value:.3f} s")
        assert said in text
        assert said in html
    assert instant.arguments["victim_ranks"] == finding["victims"]["count"] == 3
    for key, value in [
        ("rootwalk.finding.id", finding["id"]),
        ("rootwalk.finding.reason", finding["reason"]),
        ("rootwalk.finding.owner", finding["owner"]),
        ("rootwalk.finding.confidence", finding["confidence"]["band"]),
        ("rootwalk.finding.share", share_s),
        ("rootwalk.finding.first_step", str(verdict["window"]["first_step"])),
        ("rootwalk.finding.last_step", str(verdict["window"]["last_step"])),
        ("training.rank", str(finding["subject"]["rank"])),
        ("host.name", finding["subject"]["host"]),
    ]:
        assert event[key] == value, key
    assert instant.arguments["finding_id"] == finding["id"]
    assert instant.arguments["reason"] == finding["reason"]
    assert finding["reason"] == "CPU_CONTENTION"
    for link in finding["chain"]:
        assert f"{link['seconds']:.3f} s a step" in html
        assert f"{link['seconds']:.3f} s a step" in graph.read_text()
