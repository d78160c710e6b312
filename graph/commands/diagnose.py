"""`rootwalk diagnose`: the verdict for one window of a store, of one that a receiver writes at a low priority."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from rootwalk.graph.commands.diagnosed_store import opened_store
from rootwalk.graph.commands.step_window import add_window_arguments, find_steps
from rootwalk.graph.commands.units import parse_price, parse_ranks
from rootwalk.graph.commands.urgency import yield_to_receiver
from rootwalk.instrumentation.errors import ConfigError

__all__ = ["EXAMPLES", "HELP", "add_arguments", "run"]

HELP: Final = "say why the job in a store is slow: which rank, why, how many seconds"
EXAMPLES: Final = """examples:
  rootwalk diagnose rootwalk-j1.duckdb
  rootwalk diagnose rootwalk-j1.duckdb --steps 4210:4225 --json
  rootwalk diagnose rootwalk-j1.duckdb --since 10:40 --until 10:55
  rootwalk diagnose shared.duckdb --job llama-7b --exit-code --priors shared_network
  rootwalk diagnose rootwalk-j1.duckdb --watch
  rootwalk diagnose rootwalk-j1.duckdb --price-per-device-hour 2.50
  rootwalk diagnose profiles/
  rootwalk diagnose dumps.tar.gz stderr.log --store hang.duckdb"""

# Exit codes of `--exit-code` (contract section 1).
_EXIT_CODES: Final = {"healthy": 0, "insufficient_evidence": 3, "finding": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="STORE|PATH",
        help="DuckDB file that rootwalk has written; or files, folders and archives to import first,"
        " of any format that `rootwalk import` knows",
    )
    parser.add_argument(
        "--store",
        type=Path,
        metavar="STORE",
        help="where to keep what is imported (default: nowhere, it is removed afterwards)",
    )
    parser.add_argument(
        "--rank",
        type=parse_ranks,
        default=(),
        metavar="N,N,…",
        help="ranks of the files to import, in their order, where neither they nor their names say them",
    )
    parser.add_argument("--job", metavar="ID", help="which job (default: the store's only one)")
    add_window_arguments(parser, "the last slow episode, else the last 50 steps")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, schema rootwalk.verdict/1"
    )
    parser.add_argument(
        "--each-step",
        action="store_true",
        help="print one JSON object a step, each the verdict for that step alone; half a second a step",
    )
    parser.add_argument(
        "--format",
        choices=["text", "markdown"],
        default="text",
        help="form of the answer: text, or markdown to paste into a chat or a ticket (default: text)",
    )
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="exit 0 when nothing was found, 3 when there is not enough evidence, 4 on a finding",
    )
    parser.add_argument(
        "--priors",
        metavar="SETTING",
        help="how likely each cause is beforehand: default, dedicated_cluster, shared_network,"
        " new_infiniband_hosts, or a TOML file (default: $ROOTWALK_PRIORS, else default)",
    )
    parser.add_argument(
        "--price-per-device-hour",
        type=parse_price,
        metavar="PRICE",
        help="say what the lost time costs, at this price for one device (in any currency)",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="go on until Ctrl-C: step rate, the finding that is open and its age; goes with --job only",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the verdict; return 0, or what `--exit-code` asks for."""
    with opened_store(arguments.paths, arguments.store, arguments.job, arguments.rank) as store:
        return _diagnose(store, arguments)


def _diagnose(store: Path, arguments: argparse.Namespace) -> int:
    # Before the imports, which cost more than the diagnosis of a small job.
    yield_to_receiver(store)
    if arguments.watch:
        return _watch(store, arguments)

    if arguments.each_step:
        return _each_step(store, arguments)

    from rootwalk.graph.diagnosis import diagnose
    from rootwalk.graph.pricing import with_costs
    from rootwalk.graph.render.markdown import render_markdown
    from rootwalk.graph.render.text import render_next, render_text
    from rootwalk.graph.verdict import to_json

    steps = find_steps(store, arguments)
    verdict = diagnose(store, job=arguments.job, steps=steps, priors=arguments.priors)
    verdict = with_costs(verdict, arguments.price_per_device_hour)
    render = render_markdown if arguments.format == "markdown" else render_text
    answer = to_json(verdict) if arguments.json else render(verdict)
    sys.stdout.write(answer.rstrip("\n") + "\n")
    if not arguments.json and arguments.format == "text":
        is_kept = store in (arguments.store, *arguments.paths)
        sys.stdout.write(render_next(verdict, str(store) if is_kept else None))
    return _EXIT_CODES[verdict.outcome] if arguments.exit_code else 0


def _each_step(store: Path, arguments: argparse.Namespace) -> int:
    """Print a verdict for each step of a window; returns what `--exit-code` asks for about the whole of it.

    Raises:
        ConfigError: If another form is asked for, or the job has no steps.
    """
    import json

    from rootwalk.graph.diagnosis import diagnose
    from rootwalk.graph.pricing import with_costs
    from rootwalk.graph.verdict import to_object

    if arguments.format != "text":
        raise ConfigError(
            f"cannot print each step as {arguments.format}: saw --each-step beside --format; needs JSON lines"
        )
    job, priors = arguments.job, arguments.priors
    steps = find_steps(store, arguments)
    whole = diagnose(store, job=job, steps=steps, priors=priors)
    first, last = whole.window.first_step, whole.window.last_step
    if first is None or last is None:
        raise ConfigError("cannot explain each step: saw none in this job; needs some")
    for step in range(first, last + 1):
        verdict = diagnose(store, job=job, steps=(step, step), priors=priors)
        priced = with_costs(verdict, arguments.price_per_device_hour)
        sys.stdout.write(json.dumps(to_object(priced), ensure_ascii=False) + "\n")
        sys.stdout.flush()
    # Graph and findings that the store keeps are those of the window, and not of its last step.
    diagnose(store, job=job, steps=steps, priors=priors)
    return _EXIT_CODES[whole.outcome] if arguments.exit_code else 0


def _watch(store: Path, arguments: argparse.Namespace) -> int:
    """Say how the job does, until Ctrl-C; returns 0.

    Raises:
        ConfigError: If an option asks for one answer.
    """
    import shutil
    import time

    from rootwalk.graph.serve.watching import LOOK_S, Watch

    names = ("steps", "since", "until", "json", "exit_code", "priors", "each_step")
    asked = [getattr(arguments, name) for name in (*names, "price_per_device_hour")]
    if any(asked) or arguments.format != "text":
        raise ConfigError(
            "cannot watch: saw --watch with --steps, --since, --until, --json, --format, --priors, --exit-code,"
            " --each-step or --price-per-device-hour; needs one or the other",
            hint="leave out --watch for one answer",
        )
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    watch = Watch(store, arguments.job, sys.stdout, width)
    try:
        while True:
            watch.look(time.time_ns())
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        if width is not None:
            sys.stdout.write("\n")
        return 0
