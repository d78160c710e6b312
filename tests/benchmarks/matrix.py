"""Every launcher with every end: is there a verdict, is every finished step stored, is nothing left behind?

    python tests/benchmarks/matrix.py --output tests/benchmarks/results/matrix.json
    python tests/benchmarks/matrix.py --only torchrun/oom --only /sleep/

Prints a line a cell and a table at the end; exits with 1 when a cell is wrong. The cells are those of `make test`'s
diagonal, and what they must hold is in `tests/support/cells.py`. With --only, the other cells of the output stay.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from support.cells import run_cell  # noqa: E402  (after the path)
from support.ends import ENDS  # noqa: E402
from support.launchers import LAUNCHERS  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD", help="cells with this in their name"
    )
    return parser.parse_args()


def try_cell(launcher: str, end: str) -> dict[str, Any]:
    """Run one cell; return its outcome, and what was wrong, or None."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        try:
            outcome = run_cell(launcher, end, Path(folder))
        except Exception as error:  # noqa: BLE001  (one cell's trouble is a result, not the end of the table)
            wall_s = round(time.monotonic() - started, 1)
            return {"wrong": f"{type(error).__name__}: {error}"[-4000:], "wall_s": wall_s}
    return {"wrong": None, **asdict(outcome), "wall_s": round(outcome.wall_s, 1)}


def read_cells(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    cells: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def save(path: Path, cells: dict[str, Any]) -> None:
    import torch

    document = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}, "
        f"PyTorch {torch.__version__}",
        "command": "make test-matrix",
        "right": sum(cell["wrong"] is None for cell in cells.values()),
        "cells": {name: cells[name] for name in sorted(cells)},
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def render(cells: dict[str, Any]) -> str:
    """Return a table of launchers by ends: the exit code of a cell that is right, else WRONG."""
    width = max(map(len, ENDS)) + 2
    lines = [" " * width + "".join(name[:12].rjust(14) for name in LAUNCHERS)]
    for end in ENDS:
        row = end.ljust(width)
        for launcher in LAUNCHERS:
            cell = cells.get(f"{launcher}/{end}")
            word = "" if cell is None else "WRONG" if cell["wrong"] else f"ok {cell['exit_code']}"
            row += word.rjust(14)
        lines.append(row)
    return "\n".join(lines)


def main() -> int:
    """Run the cells; return 1 when one is wrong."""
    arguments = parse_arguments()
    cells = read_cells(arguments.output) if arguments.only else {}
    failed = 0
    for end in ENDS:
        for launcher in LAUNCHERS:
            name = f"{launcher}/{end}"
            if arguments.only and not any(word in f"/{name}/" for word in arguments.only):
                continue
            cell = cells[name] = try_cell(launcher, end)
            failed += cell["wrong"] is not None
            said = cell["wrong"] or f"exit {cell['exit_code']}, {cell['verdict']}"
            print(f"{name:32} {cell['wall_s']:6.1f} s  {said}", flush=True)
            if arguments.output is not None:
                save(arguments.output, cells)
    print(render(cells))
    print(f"{sum(cell['wrong'] is None for cell in cells.values())} of {len(cells)} right")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
