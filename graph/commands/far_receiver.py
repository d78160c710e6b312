"""`rootwalk run --endpoint`: the receiver, and with it the verdict, is on another host."""

from __future__ import annotations

import logging
import shlex
import socket
import sys
from urllib.parse import urlsplit

from rootwalk.instrumentation.errors import ConfigError

__all__ = ["check_endpoint", "tell_when_away", "tell_where_verdict_is"]

logger = logging.getLogger(__name__)

DEFAULT_PORTS = {"http": 80, "https": 443}
# One round trip between hosts takes milliseconds; this is what the start of a job may cost when nobody answers.
CONNECT_TIMEOUT_S = 2.0


def check_endpoint(url: str) -> None:
    """Check an OTLP/HTTP base URL.

    Raises:
        ConfigError: If it is none.
    """
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(
            f'cannot send to "{url}": saw no such OTLP/HTTP URL; needs http://HOST:PORT',
            hint="the address that `rootwalk receive --http HOST:PORT` listens on",
        )


def tell_when_away(url: str) -> None:
    """Warn when nobody listens there yet; the job starts all the same."""
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme])
    try:
        socket.create_connection(address, CONNECT_TIMEOUT_S).close()
    except OSError as error:
        logger.warning(
            "nobody answers at %s (%s): starting the job all the same; its telemetry waits in memory",
            url,
            (error.strerror or str(error)).lower(),
        )


def tell_where_verdict_is(url: str, job: str) -> None:
    """Say where this job's verdict can be had."""
    print(f"no verdict here: the telemetry went to {url}; where its receiver is,", file=sys.stderr)
    print(f"hint: rootwalk diagnose STORE --job {shlex.quote(job)}", file=sys.stderr)
