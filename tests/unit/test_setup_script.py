"""The scripts of `.ci`: an unlisted skip fails, an old Python gets a sentence, setup is honest."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
JUNIT = (
    '<testsuites><testsuite name="pytest"><testcase classname="tests.unit.ebpf.test_a" name="test_b">'
    '<skipped type="{kind}" message="{reason}">here</skipped></testcase>'
    '<testcase classname="tests.unit.test_c" name="test_d"/></testsuite></testsuites>'
)


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def check_skips(tmp_path: Path, *, kind: str, reason: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "junit.xml"
    path.write_text(JUNIT.format(kind=kind, reason=reason), encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "check_skips.py"), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_skip_on_the_list_passes_and_is_printed(tmp_path: Path) -> None:
    done = check_skips(tmp_path, kind="pytest.skip", reason="needs PyTorch")
    assert done.returncode == 0
    assert "tests.unit.ebpf.test_a::test_b: needs PyTorch" in done.stdout


def test_skip_without_a_rule_fails(tmp_path: Path) -> None:
    done = check_skips(tmp_path, kind="pytest.skip", reason="flaky today")
    assert done.returncode == 1
    assert "UNLISTED tests.unit.ebpf.test_a::test_b: flaky today" in done.stdout


def test_a_name_that_nobody_sends_needs_a_reason() -> None:
    check = load_script("check_sent")
    registry, sent = {"metric a", "metric b", "attribute c"}, {"metric a", "attribute x"}

    allowed = check.read_allowed("# why\n\nattribute c  needs a driver\n")
    assert allowed == {"attribute c": "needs a driver"}
    assert check.find_faults(registry, sent, set(allowed)) == [
        "metric b: in the registry, and no test has seen it sent"
    ]
    (fault,) = check.find_faults(registry, registry, {"metric gone"})
    assert fault.startswith("metric gone: has a reason never to be sent")
    with pytest.raises(ValueError, match="needs a name, two spaces, a reason"):
        check.read_allowed("metric b")


def test_expected_failure_is_not_a_skip(tmp_path: Path) -> None:
    done = check_skips(tmp_path, kind="pytest.xfail", reason="flaky today")
    assert (done.returncode, done.stdout) == (0, "junit.xml: 0 skipped\n")


def test_pin_needs_a_lower_bound() -> None:
    lowest = load_script("lowest")
    assert lowest.pin("duckdb>=1.4") == "duckdb==1.4"
    with pytest.raises(ValueError, match="no plain lower bound"):
        lowest.pin("duckdb")


def test_setup_parses_on_python_3_7() -> None:
    # An old Python must reach the sentence about its version, so nothing newer may be in the file.
    source = (ROOT / ".ci" / "setup.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 7))
    assert source.index("sys.version_info < MIN_PYTHON") < source.index("\ndef ")


def test_setup_is_done_only_for_the_same_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = load_script("setup")
    monkeypatch.setattr(setup, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(setup, "PROGRAMS", tmp_path)
    monkeypatch.setenv("TORCH", "1")
    assert not setup.is_done("abc")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "rootwalk").touch()
    setup.STAMP.write_text('{"fingerprint": "abc", "torch": true, "missing": []}')
    assert setup.is_done("abc")
    assert not setup.is_done("other")
    # Without PyTorch is enough for TORCH=0 only.
    setup.STAMP.write_text('{"fingerprint": "abc", "torch": false, "missing": []}')
    assert not setup.is_done("abc")
    monkeypatch.setenv("TORCH", "0")
    assert setup.is_done("abc")
    setup.STAMP.write_text("torn")
    assert not setup.is_done("abc")


def test_file_check_finds_what_it_should(tmp_path: Path) -> None:
    check = load_script("check_files")
    path = tmp_path / "a.py"
    path.write_text("x = 1 \ny = 2", encoding="utf-8")
    assert check.find_problems(path) == ["line 1: trailing whitespace", "no newline at the end"]
    path.write_text("x = 1\n", encoding="utf-8")
    assert check.find_problems(path) == []
