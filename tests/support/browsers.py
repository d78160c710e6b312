"""Headless Chromium with Playwright and axe-core, as `make test-browser` installs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".setup" / "browser"
# A folder to keep pictures in, to look at them.
PICTURES = os.environ.get("ROOTWALK_TEST_PICTURES")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


def find_chromium() -> str:
    """Return the path of a browser, with all that drives it at hand; skip the test where something is missing."""
    if CHROMIUM is None:
        pytest.skip("browser: needs chromium")
    if shutil.which("node") is None:
        pytest.skip("browser: needs node")
    if not (INSTALLED / "node_modules" / "axe-core").exists():
        pytest.skip("browser: needs axe-core and playwright-core (make test-browser)")
    return CHROMIUM


def look(
    chromium: str, tasks: list[dict[str, Any]], script: str = "check.mjs"
) -> list[dict[str, Any]]:
    """Return what a script of tests/browser saw, a dictionary a task."""
    done = start_looking(chromium, tasks, script)
    out, error = done.communicate(timeout=280)
    assert done.returncode == 0, error
    seen: list[dict[str, Any]] = json.loads(out)
    return seen


def start_looking(chromium: str, tasks: list[dict[str, Any]], script: str) -> subprocess.Popen[str]:
    """Start a script of tests/browser; it prints what it saw as JSON."""
    # Node looks for packages beside the file that asks for them.
    copy = shutil.copy(ROOT / "tests" / "browser" / script, INSTALLED)
    return subprocess.Popen(
        ["node", str(copy), chromium, json.dumps(tasks)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
