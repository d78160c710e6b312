"""What lost time costs at the user's price: by the command, in JSON, in words and on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rootwalk.graph import cli
from support.jobs import Fault, Job, write_job
from support.progress_reports import absent, stuck_job, waiting

PRICE = 2.5
ARGUMENT = ["--price-per-device-hour", "2.50"]


def slow_store(path: Path, ranks: int, fault_s: float) -> Path:
    return write_job(path, Job(ranks=ranks, faults=(Fault("contention", 1, fault_s, 40),)))


def answer_of(store: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["diagnose", str(store), *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("ranks", "fault_s"), [(2, 0.1), (8, 0.05)])
def test_a_slow_job_costs_the_lost_time_of_every_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ranks: int, fault_s: float
) -> None:
    store = slow_store(tmp_path / "s.duckdb", ranks, fault_s)
    (finding,) = json.loads(answer_of(store, capsys, "--json", *ARGUMENT))["findings"]
    lost = finding["lost"]
    # By hand: so many steps, each by so much longer, on so many devices, at 2.50 an hour.
    by_hand = lost["steps"] * finding["seconds"]["share"] * ranks / 3600 * PRICE
    assert lost["cost"] == pytest.approx(by_hand, abs=1e-4)
    assert lost["steps"] * fault_s * ranks / 3600 * PRICE == pytest.approx(lost["cost"], rel=0.2)
    words = " ".join(answer_of(store, capsys, *ARGUMENT).split())
    assert f"lost in {lost['steps']} steps (cost {lost['cost']:.2g})" in words


def test_a_job_that_stands_still_costs_all_of_its_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = stuck_job(tmp_path / "s.duckdb", [waiting(), waiting(), waiting(), absent()])
    (finding,) = json.loads(answer_of(store, capsys, "--json", *ARGUMENT))["findings"]
    idle_s = finding["lost"]["wall_s"]
    assert idle_s > 10
    assert finding["lost"]["device_s"] == pytest.approx(4 * idle_s)
    assert finding["lost"]["cost"] == pytest.approx(4 * idle_s / 3600 * PRICE, abs=1e-4)
    assert "device-hours stood still" in answer_of(store, capsys, *ARGUMENT)


def test_without_a_price_no_cost_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = slow_store(tmp_path / "s.duckdb", 2, 0.1)
    (finding,) = json.loads(answer_of(store, capsys, "--json"))["findings"]
    assert finding["lost"]["cost"] is None
    assert "(cost" not in answer_of(store, capsys)


def test_the_page_says_it(tmp_path: Path) -> None:
    store, page = slow_store(tmp_path / "s.duckdb", 2, 0.1), tmp_path / "s.html"
    assert cli.main(["report", str(store), "--output", str(page), *ARGUMENT]) == 0
    assert "cost so far" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e400", "two", "", "1_0", "\u0663"])
def test_what_is_no_price_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["diagnose", "s.duckdb", f"--price-per-device-hour={text}"])
    assert ended.value.code == 2
    assert "needs a price above 0 such as 2.50" in capsys.readouterr().err
