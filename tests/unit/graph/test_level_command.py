"""`rootwalk level` and what `rootwalk check` tells of agents."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from rootwalk.ebpf import control
from rootwalk.graph.cli import build_parser
from rootwalk.graph.commands import level
from rootwalk.graph.commands.check import render_agent
from rootwalk.instrumentation.errors import ConfigError, RootwalkError

COST = {
    "cpu_s": 2.5,
    "resident_bytes": 61_000_000,
    "program_s": {"on_switch": 0.25, "on_exit": 0.0},
    "dropped": {"ring_full": 3, "stalls_full": 0},
    "events": 1234,
    "sent_bytes": 5_600_000,
    "cost_ratio": 0.0021,
    "lowered": 0,
}


def agent(pid: int = 7, **changes: Any) -> dict[str, Any]:
    told = {"job": "j1", "rank": 3, "level": 2, "asked": 2, "for_s": 60.0}
    answer = {"pid": pid, "host": "h1", "limits": None, "ranks": [told], "cost": COST}
    return answer | {"budget_ratio": 0.003} | changes


def run(monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], *options: str) -> Any:
    seen: list[dict[str, Any]] = []

    def ask(request: dict[str, Any]) -> list[dict[str, Any]]:
        seen.append(request)
        return answers

    monkeypatch.setattr(control, "ask_agents", ask)
    parser = argparse.ArgumentParser()
    level.add_arguments(parser)
    assert level.run(parser.parse_args(list(options))) == 0
    return seen[0]


def test_it_is_a_verb() -> None:
    assert "level" in build_parser().format_help()


def test_it_asks_and_prints_who_has_taken_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = run(monkeypatch, [agent()], "2", "--ranks", "3,8-10", "--for", "60s")
    ranks = [3, 8, 9, 10]
    assert request == {"level": 2, "ranks": ranks, "for_s": 60.0, "profile_hz": None}
    assert capsys.readouterr().out.splitlines() == [
        "agent 7 on h1: level 2 from now on, for 60 s",
        "  rank 3 of job j1: level 2",
    ]


def test_less_than_asked_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"job": "j1", "rank": 3, "level": 0, "asked": 2, "for_s": None}
    run(monkeypatch, [agent(ranks=[told], limits="rounds of 2 s, no stalls")], "2")
    assert (
        "less than asked, to keep its budget: rounds of 2 s, no stalls" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("answers", "options", "why"),
    [
        ([], ["0"], "saw no agent that this user may ask"),
        ([agent()], ["0", "--ranks", "5"], "saw none of these ranks"),
        ([{"pid": 7, "error": "cannot read the request"}], ["0"], "cannot read the request"),
        ([{"pid": 7, "error": "agent 7 runs, but"}], ["0"], "cannot set the level: agent 7 runs"),
    ],
)
def test_nobody_to_ask_is_an_error(
    monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], options: list[str], why: str
) -> None:
    with pytest.raises(RootwalkError, match=why):
        run(monkeypatch, answers, *options)


@pytest.mark.parametrize("text", ["", "3-1", "a", "1,,2", "-1", "1-9999999"])
def test_what_is_no_list_of_ranks(text: str) -> None:
    with pytest.raises(ConfigError, match="for --ranks: saw"):
        level.parse_ranks(text)


def test_no_time_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--for"):
        run(monkeypatch, [agent()], "0", "--for", "0s")


def test_a_trace_is_asked_for_and_where_it_will_be_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("2", "--ranks", "3", "--trace-steps", "5")
    request = run(monkeypatch, [agent(traced=[3])], *options)
    assert request["trace_steps"] == 5
    said = capsys.readouterr().out
    assert "ranks that trace their next 5 steps: 3" in said
    assert "rootwalk import kineto" in said
    run(monkeypatch, [agent(traced=[])], *options)
    assert "no rank can be asked for a trace" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ("1", "--ranks", "3", "--trace-steps", "5"),
        ("2", "--trace-steps", "5"),
        ("2", "--ranks", "3", "--trace-steps", "0"),
        ("2", "--ranks", "3", "--trace-steps", "51"),
    ],
)
def test_a_trace_that_nobody_makes_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match="cannot trace"):
        run(monkeypatch, [agent()], *options)


def test_check_shows_what_an_agent_costs() -> None:
    lines = render_agent(agent()).splitlines()
    assert lines == [
        "agent 7 watches 1 ranks",
        "  of the steps' time 0.21% (budget 0.30%)",
        "  agent            2.5 s CPU, 61 MB of memory",
        "  on_switch        0.250 s CPU in the kernel",
        "  events           1234",
        "  sent             5.6 MB of spans",
        "  dropped          3 ring_full",
    ]
    lowered = render_agent(agent(limits="rounds of 1 s", cost={}))
    assert lowered == "agent 7 watches 1 ranks; with less detail to keep its budget: rounds of 1 s"
