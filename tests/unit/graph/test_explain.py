"""`rootwalk explain`, and suggestions for what was mistyped."""

from __future__ import annotations

import json

import pytest

from rootwalk.graph.cli import main
from rootwalk.graph.reasons.contract import CONTRACT
from rootwalk.graph.render.reason import facts_of, render_reason


@pytest.mark.parametrize("code", sorted(CONTRACT))
def test_every_code_is_explained_in_80_columns(code: str) -> None:
    text = render_reason(facts_of(code))
    lines = text.splitlines()
    assert lines[0] == code
    assert all(len(line) <= 80 for line in lines)
    labels = {line[:12].strip() for line in lines[2:]}
    assert {"means", "layer", "owner", "evidence", "looks like", "action"} <= labels


def test_a_code_is_found_as_people_type_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "cpu-contention"]) == 0
    assert capsys.readouterr().out.startswith("CPU_CONTENTION\n")


def test_json_has_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NOT_JOINED", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["code"], said["layer"], said["owner"]) == ("NOT_JOINED", *CONTRACT["NOT_JOINED"])


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(CONTRACT)


def test_an_unknown_code_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "CPU_CONTENTON"]) == 2
    said = capsys.readouterr().err
    assert 'cannot explain "CPU_CONTENTON": no such reason code' in said
    assert "hint: did you mean CPU_CONTENTION" in said


@pytest.mark.parametrize(
    ("word", "meant"), [("diagnos", "diagnose"), ("servee", "serve"), ("reporrt", "report")]
)
def test_an_unknown_verb_gets_a_suggestion(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) == 2
    said = capsys.readouterr().err
    assert f'cannot run "{word}": no such command' in said
    assert f"hint: did you mean rootwalk {meant}?" in said


def test_a_verb_like_none_gets_the_list_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zzz"]) == 2
    said = capsys.readouterr().err
    assert "diagnose" in said
    assert "did you mean" not in said
