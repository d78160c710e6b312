"""Seconds from `pip install` to the first right verdict on one's own script, by the three commands of docs/install.md.

    python tests/benchmarks/first_verdict.py --output tests/benchmarks/results/first_verdict.json

Makes a new environment with PyTorch and nothing else, as people have one who train; that is not timed. The script lies
in a folder of its own and knows nothing of Rootwalk: data-parallel training in which one rank writes its weights into a
slow pipe after some steps. Downloads are timed as they come.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
RANKS, STEPS, BUG_RANK = 2, 120, 1
WANTED = ("BLOCKING_LOG", BUG_RANK)
ONSET_S = 15.0


def make_environment(folder: Path) -> Path:
    """Return the programs' folder of a new environment that has PyTorch in our version."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    programs = folder / "bin"
    torch = "torch==" + version("torch").partition("+")[0]
    subprocess.run([str(programs / "pip"), "install", "-q", torch, "numpy"], check=True)
    return programs


def timed(*command: str, folder: Path, programs: Path) -> float:
    """Run one command as a user would, with the environment's programs on PATH; return its seconds."""
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    began_s = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began_s
    if done.returncode:
        raise SystemExit(f"cannot go on: saw {command} end with {done.returncode}\n{done.stderr}")
    print(f"{seconds:6.1f} s  {' '.join(command)}", flush=True)
    return seconds


def measure(folder: Path, onset_s: float) -> dict[str, Any]:
    """Return the seconds of each command, and what the verdict said."""
    work = folder / "own"
    work.mkdir()
    for name in ("train_ddp.py", "train_with_bug.py"):
        shutil.copy(EXAMPLES / name, work)
    programs = make_environment(folder / "environment")
    bug = work / "on"
    timer = threading.Timer(onset_s, bug.touch)
    install_s = timed("pip", "install", "-q", f"{ROOT}[all]", folder=work, programs=programs)
    script = ["train_with_bug.py", "--bug", "blocking_log", "--bug-rank", str(BUG_RANK)]
    script += ["--bug-file", str(bug), "--steps", str(STEPS)]
    timer.start()
    launcher = ("torchrun", f"--nproc-per-node={RANKS}")
    run = ("rootwalk", "run", "--job", "own", "--json", "verdict.json", "--")
    run_s = timed(*run, *launcher, *script, folder=work, programs=programs)
    report_s = timed("rootwalk", "report", "rootwalk-own.duckdb", folder=work, programs=programs)
    verdict = json.loads((work / "verdict.json").read_text(encoding="utf-8"))
    named = [(one["reason"], one["subject"]["rank"]) for one in verdict["findings"]]
    return {
        "onset_s": onset_s,
        "install_s": round(install_s, 1),
        "run_s": round(run_s, 1),
        "report_s": round(report_s, 1),
        "sum_s": round(install_s + run_s + report_s, 1),
        "named": named,
        "is_right": named[:1] == [WANTED],
    }


def main() -> int:
    """Measure, print, and return 1 where the verdict is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--onset", type=float, default=ONSET_S, help="seconds after the start")
    parser.add_argument("--output", type=Path, help="write the result here as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rootwalk-first-") as name:
        result = measure(Path(name), arguments.onset)
    print(
        f"{result['sum_s']} s together: {result['named']}, {'right' if result['is_right'] else 'WRONG'}"
    )
    if arguments.output:
        machine = {"date": dt.datetime.now(tz=dt.UTC).date().isoformat(), "cores": os.cpu_count()}
        text = json.dumps(machine | result, indent=1)
        arguments.output.write_text(text + "\n", encoding="utf-8")
    return 0 if result["is_right"] else 1


if __name__ == "__main__":
    sys.exit(main())
