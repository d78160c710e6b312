"""The process that watches a store: how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Stands in for a library that is being imported when the receiver stops: Python code below a callback from C, which
# prints whatever is raised through it.
STOPPED_WHILE_IMPORTED = """
import ctypes, os, signal, time

@ctypes.CFUNCTYPE(None)
def callback():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)

callback()
"""


def test_stopped_during_its_imports_it_ends_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "duckdb.py").write_text(STOPPED_WHILE_IMPORTED)
    done = subprocess.run(
        (
            sys.executable,
            "-m",
            "rootwalk.graph.commands.watcher",
            "s.duckdb",
            "--parent",
            str(os.getpid()),
        ),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
