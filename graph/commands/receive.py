"""`rootwalk receive`: the OTLP server, in the foreground until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import ipaddress
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rootwalk.graph.own_process import follow_parent, name_process
from rootwalk.instrumentation.errors import ConfigError

if TYPE_CHECKING:
    from rootwalk.otel_receiver.receiver import Listening

__all__ = ["EXAMPLES", "HELP", "add_arguments", "run"]

HELP: Final = "receive OTLP telemetry into a store"
EXAMPLES: Final = """examples:
  rootwalk receive --store job.duckdb
  rootwalk receive --grpc 127.0.0.1:0 --http 127.0.0.1:0 --ready-file ready.json
  rootwalk receive --store /data/jobs.duckdb --grpc 10.0.0.5:4317 --http 10.0.0.5:4318"""

_SECONDS_BY_UNIT: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--store",
        type=Path,
        default=Path("rootwalk.duckdb"),
        metavar="PATH",
        help="DuckDB file to write (default: rootwalk.duckdb)",
    )
    parser.add_argument(
        "--grpc",
        default="127.0.0.1:4317",
        metavar="HOST:PORT",
        help="address for OTLP/gRPC; port 0 takes a free one (default: 127.0.0.1:4317)",
    )
    parser.add_argument(
        "--http",
        default="127.0.0.1:4318",
        metavar="HOST:PORT",
        help="address for OTLP/HTTP; port 0 takes a free one (default: 127.0.0.1:4318)",
    )
    parser.add_argument(
        "--flush-interval",
        default="2s",
        metavar="TIME",
        help="longest time from acknowledged to readable by SQL, such as 500ms or 2s (default: 2s)",
    )
    parser.add_argument(
        "--ready-file",
        type=Path,
        metavar="PATH",
        help="write the real addresses there as JSON once listening",
    )
    parser.add_argument(
        "--exit-with-parent",
        action="store_true",
        help="stop cleanly when the process that started this one ends",
    )


def run(arguments: argparse.Namespace) -> int:
    """Receive until told to stop; returns 0 when everything acknowledged is stored."""
    name_process("rootwalk-recv")
    if arguments.exit_with_parent and not follow_parent():
        return 0
    import asyncio

    from rootwalk.otel_receiver.receiver import ReceiverConfig, run_receiver
    from rootwalk.otel_receiver.server import parse_address

    config = ReceiverConfig(
        store=arguments.store,
        grpc=parse_address(arguments.grpc, "--grpc"),
        http=parse_address(arguments.http, "--http"),
        flush_interval_s=parse_seconds(arguments.flush_interval, "--flush-interval"),
    )

    def announce(listening: Listening) -> None:
        if not arguments.quiet:
            print(
                f"listening for OTLP on {listening.grpc} (gRPC) and {listening.http} (HTTP), "
                f"storing in {arguments.store}; stop with Ctrl-C",
                file=sys.stderr,
                flush=True,
            )
        open_to = sorted(
            {a.host for a in (listening.grpc, listening.http) if not _is_loopback(a.host)}
        )
        if open_to:
            print(
                f"warning: anyone who reaches {', '.join(open_to)} can write to the store; there is no authentication",
                file=sys.stderr,
                flush=True,
            )
        if arguments.ready_file is not None:
            _write_ready(arguments.ready_file, listening)

    asyncio.run(run_receiver(config, announce))
    return 0


def parse_seconds(text: str, option: str) -> float:
    """Return a time such as 500ms, 2s, 1m or 2 in seconds.

    Raises:
        ConfigError: If it is not of that form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|)", text.strip())
    if match is None:
        raise ConfigError(
            f'cannot use "{text}" for {option}: saw no number with a unit; needs a time such as 500ms, 2s or 1m'
        )
    return float(match[1]) * _SECONDS_BY_UNIT[match[2]]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _write_ready(path: Path, listening: Listening) -> None:
    text = json.dumps({"grpc": str(listening.grpc), "http": str(listening.http)})
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(text + "\n", encoding="utf-8")
        new.rename(path)
    except OSError as error:
        raise ConfigError(
            f'cannot write the ready file "{path}": {(error.strerror or str(error)).lower()}; '
            "needs a folder that this user can write to"
        ) from error
