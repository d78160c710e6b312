"""`--profile-hz`: checked before anything starts, handed on to the agent, and off by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.stacks.program import MAX_HZ
from rootwalk.graph.cli import main
from rootwalk.graph.commands import agent, run


@pytest.mark.parametrize("command", ["agent", "run -- true"])
@pytest.mark.parametrize("rate", ["-1", "100", "1000000"])
def test_what_is_no_rate_is_refused(
    command: str, rate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command.split()
    assert main([words[0], "--profile-hz", rate, *words[1:]]) == 2
    assert f"cannot take stacks {rate} times a second: needs 0 to 99" in capsys.readouterr().err


@pytest.mark.parametrize(("hz", "words"), [(0, []), (49, ["--profile-hz", "49"])])
def test_run_hands_the_rate_to_its_agent(
    hz: int, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(run, "start_helper", lambda _name, command, *_: seen.append(command))
    plan = run.RunPlan(("true",), "j", None, None, (), 1, 0.25, (), None, hz)
    run.start_agent(plan, "http://127.0.0.1:1", tmp_path)
    found = seen[0]
    rest = found[found.index("--profile-hz") :][:2] if "--profile-hz" in found else []
    assert rest == words


def test_the_commands_know_the_programs_limit() -> None:
    assert agent.MAX_PROFILE_HZ == MAX_HZ
