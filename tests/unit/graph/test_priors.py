"""How likely a reason is beforehand: the shipped settings, a file of one's own, and files that cannot be used."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

from rootwalk.graph.cli import build_parser, main
from rootwalk.graph.operations.rules import OPERATION_RULES
from rootwalk.graph.reasons import RULES
from rootwalk.graph.reasons.priors import (
    PRIORS_VARIABLE,
    choose_priors,
    default_priors,
    read_settings,
)
from rootwalk.instrumentation.errors import ConfigError

ROOT = Path(__file__).parents[3]
TABLES = tomllib.loads((ROOT / "graph" / "reasons" / "priors.toml").read_text(encoding="utf-8"))
CATCH_ALL = {"UNKNOWN_GPU": -1.0, "UNKNOWN_HOST": -1.0, "UNKNOWN_NET": -1.0}


def own_file(folder: Path, text: str) -> str:
    path = folder / "priors.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_by_default_all_are_alike_but_the_catch_all_codes() -> None:
    assert default_priors() == choose_priors(None) == choose_priors("default")
    told = {code: default_priors().of(code) for code in (*RULES, *OPERATION_RULES)}
    assert {code: prior for code, prior in told.items() if prior} == CATCH_ALL
    assert default_priors().rules("2026-11-23") == "2026-11-23"


@pytest.mark.parametrize("name", [name for name in TABLES if name != "default"])
def test_a_setting_follows_from_the_rates_of_its_study(name: str) -> None:
    rates = TABLES[name]["rates"]
    mean = sum(map(math.log, rates.values())) / len(rates)
    for code, rate in rates.items():
        assert read_settings()[name].of(code) == pytest.approx(math.log(rate) - mean, abs=0.006)
    assert read_settings()[name].source
    assert read_settings()[name].of("UNKNOWN_NET") == -1.0  # as the default says


def test_every_code_of_the_file_is_one_that_is_scored() -> None:
    for table in TABLES.values():
        assert set(table["log_prior"]) <= set(RULES) | set(OPERATION_RULES)
        assert "rates" not in table or set(table["rates"]) == set(table["log_prior"])


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["diagnose", "--help"])
    told = "".join(capsys.readouterr().out.split())
    assert all(name in told for name in read_settings())


def test_own_file_goes_over_the_default(tmp_path: Path) -> None:
    priors = choose_priors(own_file(tmp_path, "[log_prior]\nPY_GC = 2\nUNKNOWN_NET = 0.5\n"))
    assert (priors.of("PY_GC"), priors.of("UNKNOWN_NET"), priors.of("UNKNOWN_GPU")) == (2, 0.5, -1)
    assert priors.rules("2026-11-23") == "2026-11-23+own"


def test_environment_chooses_where_no_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRIORS_VARIABLE, "shared_network")
    assert choose_priors(None).name == "shared_network"
    assert choose_priors("dedicated_cluster").name == "dedicated_cluster"


@pytest.mark.parametrize(
    ("text", "saw"),
    [
        ("log_prior = 3\n", "no table [log_prior]"),
        ("[priors]\nPY_GC = 1\n", "no table [log_prior]"),
        ("[log_prior]\nPYTHON_GC = 1\n", '"PYTHON_GC"'),
        ("[log_prior]\nPY_GC = '1'\n", "PY_GC = '1'"),
        ("[log_prior]\nPY_GC = true\n", "PY_GC = True"),
        ("[log_prior]\nPY_GC = 3.5\n", "PY_GC = 3.5"),
        ("[log_prior]\nPY_GC = nan\n", "PY_GC = nan"),
        ("[log_prior]\nPY_GC = -inf\n", "PY_GC = -inf"),
        ("setting = 'mine'\n[log_prior]\nPY_GC = 1\n", 'a key "setting"'),
        ("text = 4\n[log_prior]\nPY_GC = 1\n", '"text" that is no text'),
        ("[log_prior\n", "no TOML"),
    ],
)
def test_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, saw: str) -> None:
    with pytest.raises(ConfigError) as raised:
        choose_priors(own_file(tmp_path, text))
    assert str(raised.value).startswith("cannot read priors from ")
    assert saw in str(raised.value)
    assert "; needs " in str(raised.value)


def test_unknown_setting_and_missing_file_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="needs one of default, dedicated_cluster"):
        choose_priors("cloudy")
    with pytest.raises(ConfigError, match="No such file"):
        choose_priors(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="cannot read priors"):
        choose_priors(str(tmp_path))
    assert main(["diagnose", str(tmp_path / "no.duckdb"), "--priors", "cloudy"]) == 2
    assert 'saw "cloudy"' in capsys.readouterr().err


def test_bad_setting_in_the_environment_is_said_before_a_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PRIORS_VARIABLE, "cloudy")
    marker = tmp_path / "started"
    assert main(["run", "--store", str(tmp_path / "s.duckdb"), "--", "touch", str(marker)]) == 2
    assert 'saw "cloudy"' in capsys.readouterr().err
    assert not marker.exists()
