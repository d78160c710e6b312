"""Every import contract holds, and breaks when somebody plants what it forbids."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.variant
def test_every_contract_breaks_on_a_planted_violation() -> None:
    done = subprocess.run(
        [sys.executable, ".ci/check_contracts.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "DID NOT BREAK" not in done.stdout
    assert done.stdout.count("broke: ") >= 10
