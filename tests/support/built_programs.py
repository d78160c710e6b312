"""Programs of others, built from sources beside the tests into .setup; kept while the sources are the same."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

SETUP = Path(__file__).resolve().parents[2] / ".setup"


def run_build(*command: str, cwd: Path) -> None:
    """Run one step of a build; its output is shown when it fails.

    GOFLAGS is the caller's where it is set: on a machine that does other things, `-p=1` leaves it a core.
    """
    environment = {"GOFLAGS": "-buildvcs=false -p=2"} | os.environ
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"cannot build in {cwd}: {' '.join(command)}\n{done.stdout}{done.stderr}")


def build_once(source: Path, folder: Path, build: Callable[[Path], None]) -> Path:
    """Return a folder that holds the sources of today, built."""
    digest = hashlib.sha256()
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(path.relative_to(source).as_posix().encode() + b"\0" + path.read_bytes())
    stamp = folder / "stamp"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    build(folder)
    stamp.write_text(digest.hexdigest())
    return folder
