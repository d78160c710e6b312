"""sig-profiling's `profcheck`, where the environment variable PROFCHECK names its binary."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

PROFCHECK = os.environ.get("PROFCHECK")
TIMEOUT_S = 30.0


def find_complaints(data: bytes) -> list[str]:
    """Return the lines in which it refuses a request, all its optional checks on; none where it is not at hand."""
    if PROFCHECK is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profiles")
        # An export request and `ProfilesData` have the same fields.
        path.write_bytes(data)
        options = ["-check-dupes", "-check-orphans", "-check-sample-shapes"]
        done = subprocess.run(
            [PROFCHECK, *options, str(path)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    told = (done.stdout + done.stderr).replace(f"{path}: ", "").strip().splitlines()
    if done.returncode == 0:
        return []
    return told or [f"exit status {done.returncode}"]
