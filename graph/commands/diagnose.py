"""`rootwalk diagnose`: the verdict for one window of a store, of one that a receiver writes at a low priority."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from rootwalk.graph.commands.urgency import yield_to_receiver

__all__ = ["EXAMPLES", "HELP", "add_arguments", "run"]

HELP: Final = "say why the job in a store is slow: which rank, why, how many seconds"
EXAMPLES: Final = """examples:
  rootwalk diagnose rootwalk-j1.duckdb
  rootwalk diagnose rootwalk-j1.duckdb --steps 4210:4225 --json
  rootwalk diagnose shared.duckdb --job llama-7b --exit-code"""

# Exit codes of `--exit-code` (contract section 1).
_EXIT_CODES: Final = {"healthy": 0, "insufficient_evidence": 3, "finding": 4}


def _steps(text: str) -> tuple[int, int]:
    first, separator, last = text.partition(":")
    if not separator or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not FIRST:LAST, two step numbers like 100:159"
        )
    return int(first), int(last)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "store", type=Path, metavar="STORE", help="DuckDB file that rootwalk has written"
    )
    parser.add_argument("--job", metavar="ID", help="which job (default: the store's only one)")
    parser.add_argument(
        "--steps",
        type=_steps,
        metavar="A:B",
        help="first and last step to explain (default: the last slow episode, else the last 50 steps)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, schema rootwalk.verdict/1"
    )
    parser.add_argument(
        "--format", choices=["text"], default="text", help="form of the answer (default: text)"
    )
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="exit 0 when nothing was found, 3 when there is not enough evidence, 4 on a finding",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the verdict; return 0, or what `--exit-code` asks for."""
    # Before the imports, which cost more than the diagnosis of a small job.
    yield_to_receiver(arguments.store)

    from rootwalk.graph.diagnosis import diagnose
    from rootwalk.graph.render import render_text
    from rootwalk.graph.verdict import to_json

    verdict = diagnose(arguments.store, job=arguments.job, steps=arguments.steps)
    sys.stdout.write(
        (to_json(verdict) if arguments.json else render_text(verdict)).rstrip("\n") + "\n"
    )
    return _EXIT_CODES[verdict.outcome] if arguments.exit_code else 0
