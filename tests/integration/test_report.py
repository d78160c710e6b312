"""The page of `rootwalk report` about stores with known faults, and about odd ones."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rootwalk.graph.cli import main
from rootwalk.otel_receiver import store
from support.jobs import Fault, Job, write_job
from support.pages import Page, flat, page_of, read_page
from support.stores import query_rows

FAULT_S = 0.060
CONTENTION = Job(ranks=4, jitter_ratio=0.05, faults=(Fault("contention", 2, FAULT_S, 40),))
DUMPS = Path(__file__).parents[1] / "data" / "nvrx_flight_recorder" / "fr_traces"
# What shows when a missing value is printed.
HOLES = re.compile(r"\b(None|nan|NaN|inf|Undefined|undefined)\b")
SECTIONS = ["Step time", "What was watched, and what is missing", "What the observation cost"]


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "--quiet"]) == 0
    return capsys.readouterr().out


def test_the_same_words_and_numbers_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "store.duckdb", tmp_path / "page.html"
    write_job(path, CONTENTION)
    text = ask(capsys, "diagnose", str(path))
    markdown = ask(capsys, "diagnose", str(path), "--format", "markdown")
    verdict: dict[str, Any] = json.loads(ask(capsys, "diagnose", str(path), "--json"))
    assert ask(capsys, "report", str(path), "--output", str(output)) == f"{output}\n"
    page = Page(output.read_text(encoding="utf-8")).text

    text, _, following = text.partition("\nnext ")
    commands = [f"rootwalk explain {verdict['findings'][0]['reason']}"]
    commands += [f"rootwalk report {path}", f"rootwalk serve {path}"]
    assert [line.strip() for line in following.splitlines()] == commands
    rows = re.split(r"\n(?=\S)", text.rstrip("\n"))
    assert [row.split()[0] for row in rows[1:]] == [
        *("code", "step", "evidence", "excluded", "victims", "action", "owner"),
        *(["not"] if verdict["missing_sensors"] else []),
    ]
    for row in rows:
        words = flat(re.sub(r"(?<=\S) {6,}(?=unexplained)", "; ", row))
        assert words in page
        label, _, rest = words.partition(" ")
        assert words in markdown or f"**{label}** {rest.replace('#', chr(92) + '#')}" in markdown

    (finding,) = verdict["findings"]
    for value, before, after in [
        (verdict["step_s"], "step ", ", healthy"),
        (verdict["healthy_step_s"], "healthy ", " ("),
        (finding["predicted_step_s"], "without it ", ""),
        (finding["seconds"]["share"], "+", "/step"),
        (finding["victims"]["waited_s"], "waited ", "/step"),
        (verdict["unexplained_s"], "unexplained ", " of"),
    ]:
        said = f"{before}{value:.3f} s{after}"
        assert said in flat(text)
        assert said in page
        assert said in markdown.replace("**", "")
    for link in finding["chain"]:
        assert f"{link['text']} : {link['seconds']:.3f} s a step" in page.replace(": ", " : ")
    for row in finding["evidence"]:
        assert row["signal"] in page
        assert shlex.quote(row["query"]) in page
        assert row["trace_id"] in page


def test_the_map_shows_who_was_late_and_since_when(tmp_path: Path) -> None:
    report, text = page_of(tmp_path, CONTENTION)
    assert report.clock is not None
    assert report.lateness_s is not None
    assert report.is_lateness
    assert report.lateness_s.shape == (4, 80)
    late_s = report.lateness_s.mean(axis=1)
    assert report.lateness_s[2, 40:].mean() == pytest.approx(FAULT_S, abs=0.005)
    assert np.delete(report.lateness_s, 2, axis=0).max() < 0.010
    assert int(late_s.argmax()) == 2
    rows = query_rows(tmp_path / "store.duckdb", report.lateness_query)
    assert sum(int(ns) for _, _, ns in rows) / 1e9 == pytest.approx(float(report.lateness_s.sum()))
    names = [a.get("class") for tag, a in Page(text).elements if tag == "text"]
    assert names.count("accused") == 2  # in the map and beside the bars


def test_the_bars_add_up_to_the_step(tmp_path: Path) -> None:
    report, _ = page_of(tmp_path, CONTENTION)
    shares = report.shares
    assert shares is not None
    assert (shares.ranks, shares.first_step, shares.last_step, shares.step_count) == (
        (0, 1, 2, 3), 40, 79, 40
    )  # fmt: skip
    rows = query_rows(
        tmp_path / "store.duckdb",
        "SELECT rank, avg(duration_ns) / 1e9 FROM steps WHERE step BETWEEN 40 AND 79 GROUP BY rank ORDER BY rank",
    )
    assert shares.seconds.sum(axis=1) == pytest.approx([float(s) for _, s in rows])
    assert report.verdict.step_s == pytest.approx(
        float(shares.seconds.sum(axis=1).mean()), rel=0.01
    )
    from rootwalk.graph.report.shares import Share

    assert shares.seconds[2, Share.FOREIGN] == pytest.approx(FAULT_S, abs=0.001)
    assert shares.seconds[0, Share.RANKS] > FAULT_S - 0.01
    assert shares.seconds[2, Share.RANKS] < 0.01


def test_every_query_on_the_page_can_be_run(tmp_path: Path) -> None:
    _, text = page_of(tmp_path, Job(name='it\'s a "job"', faults=CONTENTION.faults[:0]))
    commands = re.findall(r"rootwalk sql .*?(?=</code>)", text)
    assert len(commands) >= 5
    for command in commands:
        words = shlex.split(Page(command).text)
        assert words[:3] == ["rootwalk", "sql", "store.duckdb"]
        query_rows(tmp_path / "store.duckdb", words[3])


ODD = {
    "one rank": Job(ranks=1, faults=(Fault("work", 0, FAULT_S, 40),)),
    "one step": Job(ranks=4, steps=1),
    "no sensor": Job(sensor=None, faults=(Fault("work", 1, FAULT_S, 40),)),
    "no collectives": Job(has_collectives=False),
    "healthy": Job(),
    "a rank missing": Job(world_size=8),
    "clocks apart": Job(ranks=4, hosts=2, skew_s=(0.0, 7.0), faults=CONTENTION.faults),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_jobs_give_a_decent_page(tmp_path: Path, name: str) -> None:
    report, text = page_of(tmp_path, ODD[name])
    page = Page(text)
    assert page.open == []
    assert page.references == []
    assert HOLES.search(page.text.partition("The verdict as JSON")[0]) is None
    for section in SECTIONS:
        assert section in page.text
    assert report.lateness_s is not None
    assert report.is_lateness == (name not in ("one rank", "no collectives"))
    assert float(np.nanmax(report.lateness_s)) < 1.0, "clocks are compared after alignment"


def test_an_empty_store_gives_a_page_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    store.create_store(path)
    page = Page(read_page(path)[1])
    assert (
        "not enough evidence: the store has no complete step of all ranks and no operation that hangs"
        in page.text
    )
    assert "so there is nothing to draw" in page.text
    assert page.count("svg") == 0


def test_a_hang_has_its_ranks_its_stacks_and_no_invented_seconds(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    dumps = [str(dump) for dump in sorted((DUMPS / "lock_gil_1st").glob("_dump_*"))]
    assert main(["import", "flight-recorder", *dumps, "--store", str(path), "--quiet"]) == 0
    report, text = read_page(path)
    page = Page(text)
    assert report.verdict.kind == "hang"
    assert "all_to_all #45265 of EXPERT_MODEL_PARALLEL_GROUP" in page.text
    assert "have not come to it 9, 14" in page.text
    assert "so there is nothing to draw" in page.text
    assert "unknown: no finished step supports a number" in page.text
    assert HOLES.search(page.text.partition("The verdict as JSON")[0]) is None


def test_names_from_the_store_stay_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>\x07\u202e"
    fault = Fault("contention", 1, FAULT_S, 40, name=evil)
    page = Page(page_of(tmp_path, Job(name=f"</script>{evil}'", faults=(fault,)))[1])
    assert page.count("img") == 0
    assert page.references == []
    assert "'<img src=x onerror=alert(1)>⟨U+0007⟩⟨U+202E⟩' pid 4411" in page.text
    assert "<img src=x onerror=alert(…, pid 4411" in page.text, "its box keeps the number"
    assert [a for _, a in page.elements if "onerror" in a] == []


@pytest.mark.long
@pytest.mark.slow
def test_64_ranks_and_200_steps_fit_in_2_mb(tmp_path: Path) -> None:
    job = Job(
        ranks=64, steps=200, hosts=8, jitter_ratio=0.5, faults=(Fault("contention", 37, 0.05, 120),)
    )
    report, text = page_of(tmp_path, job)
    assert report.lateness_s is not None
    assert report.lateness_s.shape == (64, 200)
    assert report.shares is not None
    assert len(report.shares.ranks) == 64
    assert len(text.encode()) < 2_000_000


def test_a_page_is_not_overwritten_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "store.duckdb", tmp_path / "page.html"
    write_job(path, Job(steps=30))
    output.write_text("mine")
    assert main(["report", str(path), "--output", str(output)]) == 2
    assert "--force" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert main(["report", str(path), "--output", str(output), "--force"]) == 0
    assert output.read_text().startswith("<!doctype html>")
    assert [p.name for p in tmp_path.iterdir() if "writing" in p.name] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.duckdb"], "no such file"),
        (["store.duckdb", "--output", "none/page.html"], "cannot write"),
        (["store.duckdb", "--job", "other"], 'cannot find job "other"'),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_job(Path("store.duckdb"), Job(steps=30))
    assert main(["report", *arguments]) in (1, 2)
    assert words in capsys.readouterr().err
    assert list(tmp_path.glob("*.html")) == []


def test_the_default_name_is_the_store_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_job(Path("rootwalk-j1.duckdb"), Job(steps=30))
    assert ask(capsys, "report", "rootwalk-j1.duckdb") == "rootwalk-j1.html\n"
    assert Path("rootwalk-j1.html").exists()
