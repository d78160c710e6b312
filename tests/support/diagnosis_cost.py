"""What a diagnosis of a store takes, as a user meets it: a process of its own."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Seconds and bytes for a window of 16 steps with 50 operations of a rank in a step.
LIMITS_S = {64: 2.0, 1024: 10.0, 10240: 60.0}
LIMIT_BYTES = 8_000_000_000


def diagnose(path: Path) -> dict[str, Any]:
    """Return what one diagnosis took, and its verdict."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    command = [sys.executable, "-m", "rootwalk.graph", "diagnose", str(path), "--json"]
    # As installed: modules that were compiled once are not compiled again.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=kept)
    took_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": took_s, "cpu_s": cpu_s, "verdict": json.loads(done.stdout)}
