"""What watching may cost, as `agent` and `run` are told it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.commands import run
from rootwalk.graph.supervisor import Helper


@pytest.mark.parametrize("words", [["agent"], ["run", "--", "true"]], ids=["agent", "run"])
@pytest.mark.parametrize("ratio", ["0", "-0.1", "nan"])
def test_no_budget_is_refused(
    words: list[str], ratio: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], "--budget-ratio", ratio, *words[1:]]) == 2
    assert f"cannot keep a budget of {ratio}: needs a ratio above 0" in capsys.readouterr().err


def test_run_tells_its_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[list[str]] = []

    def start_helper(_name: str, command: list[str], *_: object) -> Helper | None:
        commands.append(command)
        return None

    monkeypatch.setattr(run, "start_helper", start_helper)
    plan = run.RunPlan(("true",), "j", None, None, (), 1, 0.25, (), None)
    run.start_agent(plan, "http://127.0.0.1:4318", tmp_path)
    (command,) = commands
    assert command[command.index("--budget-ratio") + 1] == "0.25"
