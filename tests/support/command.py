"""The installed command in a subprocess, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import rootwalk.examples
from support.live_check import note_store

EXAMPLE = Path(next(iter(rootwalk.examples.__path__))) / "train_ddp.py"
# A step of a few milliseconds: these tests are about what is recorded, not about how long it takes.
SMALL = ("--width", "32", "--layers", "1", "--heads", "2", "--window", "32", "--batch", "2")


def run_rootwalk(
    *arguments: str, cwd: Path, timeout_s: float = 240.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; what real jobs have sent to the store that it names is noted."""
    done = subprocess.run(
        [sys.executable, "-m", "rootwalk.graph", *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if arguments[:1] in (("run",), ("demo",)) and "--store" in arguments:
        store = cwd / arguments[arguments.index("--store") + 1]
        if store.is_file() and not Path(f"{store}.journal").exists():
            note_store(store)
    return done


def torchrun(ranks: int, *options: str, script: Path = EXAMPLE) -> list[str]:
    """Return a torchrun command line on a port of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--master-port=0"]
    return [*command, str(script), *options]


def query(store: Path, sql: str, *, cwd: Path) -> list[dict[str, Any]]:
    """Return the rows of a query as the `sql` command prints them."""
    done = run_rootwalk("sql", str(store), sql, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def processes_mentioning(word: str) -> list[str]:
    """Return the command lines of running processes that contain a word, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if word in line:
                found.append(line)
    return found
