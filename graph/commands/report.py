"""`rootwalk report`: one self-contained page about a job, to read, to print, or to send to somebody."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from rootwalk.graph.commands.step_window import add_window_arguments, find_steps
from rootwalk.graph.commands.units import parse_price
from rootwalk.graph.commands.urgency import yield_to_receiver
from rootwalk.instrumentation.errors import ConfigError

__all__ = ["EXAMPLES", "HELP", "add_arguments", "run"]

HELP: Final = "write one HTML page: the answer, its pictures and its evidence"
EXAMPLES: Final = """examples:
  rootwalk report rootwalk-j1.duckdb
  rootwalk report shared.duckdb --job llama-7b --output llama-7b.html
  rootwalk report rootwalk-j1.duckdb --steps 4210:4225 --output slow.html --force"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "store", type=Path, metavar="STORE", help="DuckDB file that rootwalk has written"
    )
    parser.add_argument("--job", metavar="ID", help="which job (default: the store's only one)")
    add_window_arguments(parser, "as diagnose")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="the page (default: the store's name with .html, in this folder)",
    )
    parser.add_argument(
        "--price-per-device-hour",
        type=parse_price,
        metavar="PRICE",
        help="say what the lost time costs, at this price for one device (in any currency)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite a page that is there")


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print where it is; returns 0."""
    output: Path = arguments.output or Path(arguments.store.with_suffix(".html").name)
    if output.exists() and not arguments.force:
        raise ConfigError(
            f'cannot write "{output}": saw a file of that name; needs another, or leave to overwrite it',
            hint="choose another place with --output PATH, or add --force",
        )
    yield_to_receiver(arguments.store)

    from rootwalk.graph.diagnosis import diagnose
    from rootwalk.graph.pricing import with_costs
    from rootwalk.graph.report.page import render_page
    from rootwalk.graph.report.reading import read_report
    from rootwalk.otel_receiver.store import reading

    steps = find_steps(arguments.store, arguments)
    verdict = diagnose(arguments.store, job=arguments.job, steps=steps)
    verdict = with_costs(verdict, arguments.price_per_device_hour)
    with reading(arguments.store) as connection:
        report = read_report(connection, verdict, arguments.store.name)
    _write(output, render_page(report))
    print(output)
    return 0


def _write(path: Path, page: str) -> None:
    """Write a file that appears complete or not at all.

    Raises:
        ConfigError: If the folder does not exist or cannot be written.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        new.write_text(page, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise ConfigError(
            f'cannot write "{path}": saw {error.strerror}; needs a folder that exists and is writable',
            hint="choose another place with --output PATH",
        ) from error
