"""`rootwalk serve`: a local page over a store, also while a receiver writes it, until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rootwalk.graph.commands.prior_setting import check_priors
from rootwalk.graph.commands.urgency import yield_to_receiver
from rootwalk.instrumentation.errors import ConfigError

if TYPE_CHECKING:
    from rootwalk.graph.serve.server import ServeConfig
    from rootwalk.otel_receiver.addresses import ListenAddress

__all__ = ["EXAMPLES", "HELP", "add_arguments", "run"]

HELP: Final = "show a store as a live page on this machine, with a JSON API"
EXAMPLES: Final = """examples:
  rootwalk serve rootwalk-j1.duckdb
  rootwalk serve shared.duckdb --address 127.0.0.1:0 --ready-file ready.json
  rootwalk serve shared.duckdb --address 10.0.0.5:8787 --token-file token.txt --name head-node"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "store", type=Path, metavar="STORE", help="DuckDB file that rootwalk has written or writes"
    )
    parser.add_argument(
        "--address",
        default="127.0.0.1:8787",
        metavar="HOST:PORT",
        help="where to listen; port 0 takes a free one; beyond this machine only with --token-file "
        "(default: 127.0.0.1:8787)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="PATH",
        help="ask for one of these tokens, one a line; read again when it changes",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which browsers may call this page, beside localhost and numeric addresses; may be repeated",
    )
    parser.add_argument(
        "--ready-file",
        type=Path,
        metavar="PATH",
        help="write the real address there as JSON once listening",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM; returns 0."""
    yield_to_receiver(arguments.store)
    import asyncio

    from rootwalk.otel_receiver.store import reading

    check_priors()
    config = build_config(arguments)
    with reading(config.store):
        pass  # a store that cannot be read is said now, and not to each browser
    asyncio.run(_serve(config, arguments))
    return 0


def build_config(arguments: argparse.Namespace) -> ServeConfig:
    """Return what the options say.

    Raises:
        ConfigError: With the option that cannot be used.
    """
    from rootwalk.graph.serve.server import ServeConfig
    from rootwalk.otel_receiver.addresses import parse_address

    address = parse_address(arguments.address, "--address")
    if not address.is_loopback and arguments.token_file is None:
        raise ConfigError(
            f"cannot serve on {address}: saw an address that other machines reach, and no token; needs both or neither",
            hint="add --token-file PATH, or use ssh -L 8787:127.0.0.1:8787 and the default address",
        )
    return ServeConfig(arguments.store, address, tuple(arguments.name), arguments.token_file)


async def _serve(config: ServeConfig, arguments: argparse.Namespace) -> None:
    import asyncio
    import contextlib
    import signal

    from rootwalk.graph.serve.server import PageServer

    server = PageServer(config)
    listening = await server.start()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        _announce(config, listening, arguments)
        await ended.wait()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await server.stop()


def _announce(config: ServeConfig, listening: ListenAddress, arguments: argparse.Namespace) -> None:
    if not arguments.quiet:
        print(
            f"showing {config.store} at http://{listening}/; stop with Ctrl-C",
            file=sys.stderr,
            flush=True,
        )
    if not listening.is_loopback:
        print(
            "warning: token and telemetry travel in the clear; ssh -L or a proxy with TLS hides them",
            file=sys.stderr,
            flush=True,
        )
    if arguments.ready_file is not None:
        _write_ready(arguments.ready_file, f"http://{listening}/")


def _write_ready(path: Path, url: str) -> None:
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(json.dumps({"url": url}) + "\n", encoding="utf-8")
        new.rename(path)
    except OSError as error:
        raise ConfigError(
            f'cannot write the ready file "{path}": {(error.strerror or str(error)).lower()}; '
            "needs a folder that this user can write to"
        ) from error
