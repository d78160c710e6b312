"""The installed command: its help agrees with docs/commands.md, and wrong use gets a sentence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
ROOTWALK = Path(sys.executable).parent / "rootwalk"
COMMANDS = (
    "run",
    "agent",
    "receive",
    "diagnose",
    "explain",
    "report",
    "serve",
    "check",
    "level",
    "sql",
    "import",
    "export",
    "demo",
)
# The same everywhere; the page says so once.
COMMON = {"--help", "--version", "--verbose", "--quiet", "--force"}


def rootwalk(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOTWALK), *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def read_options(text: str) -> set[str]:
    """The long options that a help text defines, or a row of the page names."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - COMMON


def page_row(command: str) -> str:
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| `rootwalk {command}")]
    assert len(rows) == 1, f"the page's table of commands has {len(rows)} rows for {command}"
    return rows[0]


def test_help_lists_every_command_and_no_other() -> None:
    done = rootwalk("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^\s+{command}\s", done.stdout, re.MULTILINE), command
    named = set(re.findall(r"^\| `rootwalk (\w+)", PAGE, re.MULTILINE))
    assert named == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_names_every_option(command: str) -> None:
    done = rootwalk(command, "--help")
    assert done.returncode == 0
    # The examples at the end may use options of other programs.
    defined = done.stdout.lower().partition("examples:")[0]
    assert read_options(defined) == read_options(page_row(command))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_three_examples(command: str) -> None:
    _, separator, examples = rootwalk(command, "--help").stdout.partition("xamples:")
    assert separator
    assert len(re.findall(r"^\s+(?:sudo |\w+=\S+ )*rootwalk ", examples, re.MULTILINE)) >= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal(command: str) -> None:
    # An example is for pasting and stays on one line.
    text = rootwalk(command, "--help").stdout.partition("xamples:")[0]
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_version_is_the_installed_one() -> None:
    done = rootwalk("--version")
    assert (done.returncode, done.stdout.split()) == (0, ["rootwalk", version("rootwalk")])


def test_no_command_at_all_gets_the_help() -> None:
    done = rootwalk()
    assert done.returncode == 2
    assert done.stdout == ""
    assert all(f"\n    {command} " in done.stderr for command in COMMANDS)


def test_unknown_command_is_a_usage_error_that_lists_the_commands() -> None:
    done = rootwalk("frobnicate")
    assert (done.returncode, done.stdout) == (2, "")
    assert "frobnicate" in done.stderr
    assert "diagnose" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("diagnose", "no-such-store.duckdb"),
        ("sql", "no-such-store.duckdb", "SELECT 1"),
        ("receive", "--store", "no-such-folder/a.duckdb", "--grpc", "127.0.0.1:0"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_missing_store_gets_a_sentence_and_a_hint(arguments: tuple[str, ...]) -> None:
    done = rootwalk(*arguments)
    assert done.returncode in {1, 2}
    assert done.stdout == ""
    assert "cannot " in done.stderr
    assert "Traceback" not in done.stderr


def test_check_says_which_sensors_there_are_as_one_json_object() -> None:
    done = rootwalk("check", "--json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert answer["schema"] == "rootwalk.check/1"
    for sensor in answer["sensors"]:
        assert sensor["status"] in {"available", "degraded", "unavailable"}
        # What cannot be read says why and what to do.
        if sensor["status"] != "available":
            assert sensor["reason"]
            assert sensor["hint"]
