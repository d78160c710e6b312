"""`rootwalk receive`: the OTLP server, in the foreground until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rootwalk.graph.commands.agent import add_finding_profile_argument, check_profile_rate
from rootwalk.graph.commands.prior_setting import check_priors
from rootwalk.graph.commands.units import parse_bytes, parse_seconds
from rootwalk.graph.own_process import follow_parent, name_process
from rootwalk.instrumentation.errors import ConfigError

if TYPE_CHECKING:
    from rootwalk.otel_receiver.receiver import Listening, ReceiverConfig

__all__ = ["EXAMPLES", "HELP", "add_arguments", "run"]

HELP: Final = "receive OTLP telemetry into a store"
EXAMPLES: Final = """examples:
  rootwalk receive --store job.duckdb --diagnose
  rootwalk receive --grpc 127.0.0.1:0 --http 127.0.0.1:0 --ready-file ready.json
  rootwalk receive --store /data/jobs.duckdb --grpc 10.0.0.5:4317 --http 10.0.0.5:4318
  rootwalk receive --forward https://collector.example:4318 --forward-queue-bytes 4GiB"""


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
        "--max-memory-bytes",
        default="1GiB",
        metavar="SIZE",
        help="memory above the idle process; beyond it senders are told to retry (default: 1GiB)",
    )
    parser.add_argument(
        "--journal-bytes",
        default="2GiB",
        metavar="SIZE",
        help="what may be acknowledged and not stored yet; beyond it senders are told to retry (default: 2GiB)",
    )
    parser.add_argument(
        "--tls-cert", type=Path, metavar="PATH", help="certificate of both servers, PEM"
    )
    parser.add_argument("--tls-key", type=Path, metavar="PATH", help="its private key, PEM")
    parser.add_argument(
        "--client-ca",
        type=Path,
        metavar="PATH",
        help="ask clients for a certificate that one of these signed, PEM",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="PATH",
        help="ask senders for one of these bearer tokens, one a line; read again when it changes",
    )
    parser.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin send from a browser, * for all; may be repeated (default: none)",
    )
    parser.add_argument(
        "--keepalive",
        default="2m",
        metavar="TIME",
        help="idle time after which a connection is probed or closed (default: 2m)",
    )
    parser.add_argument(
        "--read-timeout",
        default="30s",
        metavar="TIME",
        help="longest time that a sender may take over one request (default: 30s)",
    )
    parser.add_argument(
        "--metrics-address",
        metavar="HOST:PORT",
        help="show own metrics there as Prometheus text, at /metrics (default: off)",
    )
    parser.add_argument(
        "--telemetry-interval",
        default="10s",
        metavar="TIME",
        help="store own metrics so often, when they changed; 0 for never (default: 10s)",
    )
    parser.add_argument(
        "--forward",
        action="append",
        default=[],
        metavar="URL",
        help="send every accepted request on to this receiver too: http://HOST:4318, https://HOST or "
        "grpc://HOST:4317; headers and certificates from OTEL_EXPORTER_OTLP_*; may be repeated",
    )
    parser.add_argument(
        "--forward-queue-bytes",
        default="1GiB",
        metavar="SIZE",
        help="what may wait on disk while such a receiver is away, each; then the oldest is not "
        "sent on (default: 1GiB)",
    )
    parser.add_argument(
        "--diagnose",
        action="store_true",
        help="diagnose as data arrives: a line on stderr and a log event for each finding that opens or closes",
    )
    add_finding_profile_argument(parser)
    parser.add_argument(
        "--status-file",
        type=Path,
        metavar="PATH",
        help="with --diagnose: say there how the job does, as JSON, renewed every second or so",
    )
    parser.add_argument(
        "--status-job", metavar="ID", help="which job that is (default: the store's only one)"
    )
    parser.add_argument(
        "--retention-age",
        metavar="TIME",
        help="delete what was received longer ago, such as 12h or 7d (default: keep everything)",
    )
    parser.add_argument(
        "--retention-bytes",
        metavar="SIZE",
        help="delete the oldest before the store reaches this size, such as 20GB (default: let it grow)",
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
    from functools import partial

    from rootwalk.graph.commands.live_detection import run_watcher
    from rootwalk.otel_receiver.receiver import run_receiver

    if arguments.diagnose:
        check_priors()
    check_profile_rate(arguments.profile_on_finding)
    if arguments.profile_on_finding and not arguments.diagnose:
        raise ConfigError(
            "cannot use --profile-on-finding without --diagnose: nothing finds anything then"
        )
    if arguments.status_file is not None and not arguments.diagnose:
        raise ConfigError("cannot use --status-file without --diagnose: nothing watches then")
    config = build_config(arguments)

    def announce(listening: Listening) -> None:
        if not arguments.quiet:
            print(
                f"listening for OTLP on {listening.grpc} (gRPC) and {listening.http} (HTTP), "
                f"storing in {arguments.store}; stop with Ctrl-C",
                file=sys.stderr,
                flush=True,
            )
        warning = warn_of_access(config, listening)
        if warning is not None:
            print(warning, file=sys.stderr, flush=True)
        if arguments.ready_file is not None:
            _write_ready(arguments.ready_file, listening)

    companion = None
    if arguments.diagnose:
        companion = partial(
            run_watcher,
            config.store,
            profile_hz=arguments.profile_on_finding,
            options=_status_options(arguments),
        )
    # DuckDB makes its log beside the store by itself; it holds what the store holds, which is for its owner only.
    before = os.umask(0o077)
    try:
        asyncio.run(run_receiver(config, announce, companion))
    finally:
        os.umask(before)
    return 0


def _status_options(arguments: argparse.Namespace) -> list[str]:
    options = []
    if arguments.status_file is not None:
        options += ["--status-file", str(arguments.status_file)]
    if arguments.status_job is not None:
        options += ["--status-job", arguments.status_job]
    return options


def build_config(arguments: argparse.Namespace) -> ReceiverConfig:
    """Return what the options say.

    Raises:
        ConfigError: With the option that cannot be used.
    """
    from rootwalk.otel_receiver.access import TlsFiles
    from rootwalk.otel_receiver.addresses import parse_address
    from rootwalk.otel_receiver.forward_target import read_target
    from rootwalk.otel_receiver.receiver import ReceiverConfig
    from rootwalk.otel_receiver.retention import Retention

    age, size = arguments.retention_age, arguments.retention_bytes
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise ConfigError(
            "cannot speak TLS: saw one of --tls-cert and --tls-key; needs both",
            hint="--tls-cert PATH --tls-key PATH",
        )
    if arguments.client_ca is not None and arguments.tls_cert is None:
        raise ConfigError(
            "cannot ask clients for certificates: saw --client-ca without TLS; needs a certificate of our own",
            hint="--tls-cert PATH --tls-key PATH",
        )
    tls = None
    if arguments.tls_cert is not None:
        tls = TlsFiles(arguments.tls_cert, arguments.tls_key, arguments.client_ca)
    metrics = arguments.metrics_address
    return ReceiverConfig(
        store=arguments.store,
        grpc=parse_address(arguments.grpc, "--grpc"),
        http=parse_address(arguments.http, "--http"),
        flush_interval_s=parse_seconds(arguments.flush_interval, "--flush-interval"),
        max_memory_bytes=parse_bytes(arguments.max_memory_bytes, "--max-memory-bytes"),
        journal_bytes=parse_bytes(arguments.journal_bytes, "--journal-bytes"),
        tls=tls,
        token_file=arguments.token_file,
        cors_origins=tuple(arguments.cors_origin),
        keepalive_s=parse_seconds(arguments.keepalive, "--keepalive"),
        read_timeout_s=parse_seconds(arguments.read_timeout, "--read-timeout"),
        metrics=None if metrics is None else parse_address(metrics, "--metrics-address"),
        telemetry_interval_s=parse_seconds(arguments.telemetry_interval, "--telemetry-interval"),
        forward=tuple(read_target(url, os.environ) for url in arguments.forward),
        forward_queue_bytes=parse_bytes(arguments.forward_queue_bytes, "--forward-queue-bytes"),
        retention=Retention(
            age_s=None if age is None else parse_seconds(age, "--retention-age"),
            size_bytes=None if size is None else parse_bytes(size, "--retention-bytes"),
        ),
    )


def warn_of_access(config: ReceiverConfig, listening: Listening) -> str | None:
    """Return who can write to the store from other machines; None when nobody can."""
    open_to = ", ".join(
        sorted({a.host for a in (listening.grpc, listening.http) if not a.is_loopback})
    )
    if not open_to:
        return None
    needs: list[str] = []
    if config.tls is not None and config.tls.client_ca is not None:
        needs.append("has a certificate signed for it")
    if config.token_file is not None:
        needs.append("has a token")
    if not needs:
        return f"warning: anyone who reaches {open_to} can write to the store; there is no authentication"
    warning = (
        f"warning: anyone who reaches {open_to} and {' and '.join(needs)} can write to the store"
    )
    if config.tls is None:
        warning += "; tokens and telemetry travel in the clear without --tls-cert"
    return warning


def _write_ready(path: Path, listening: Listening) -> None:
    addresses = {"grpc": str(listening.grpc), "http": str(listening.http)}
    if listening.metrics is not None:
        addresses["metrics"] = str(listening.metrics)
    text = json.dumps(addresses)
    new = path.with_name(path.name + ".new")
    try:
        new.write_text(text + "\n", encoding="utf-8")
        new.rename(path)
    except OSError as error:
        raise ConfigError(
            f'cannot write the ready file "{path}": {(error.strerror or str(error)).lower()}; '
            "needs a folder that this user can write to"
        ) from error
