"""`rootwalk run --forward`: which receivers get what ours gets, by the options and the user's environment."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rootwalk.instrumentation.errors import ConfigError
from rootwalk.otel_receiver.forward_queue import find_waiting_urls
from rootwalk.otel_receiver.forward_target import ENDPOINT_VARIABLE, read_target
from rootwalk.otel_receiver.journal import journal_path

__all__ = ["plan_forward", "tell_unsent"]

logger = logging.getLogger(__name__)


def plan_forward(
    urls: Sequence[str], endpoint: str | None, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return where our receiver sends everything on to.

    Args:
        urls: What the options say.
        endpoint: Another host's receiver, when there is none of our own, or None.
        environment: Where OTEL_EXPORTER_OTLP_ENDPOINT names one more. A variable that was set for other programs does
            not stop this one: when it cannot be used, that is said.

    Raises:
        ConfigError: If an option names no receiver, or ours is on another host.
    """
    if endpoint is not None and urls:
        raise ConfigError(
            "cannot use --forward together with --endpoint: what is received is sent on by the receiver there",
            hint="give --forward to the `rootwalk receive` on that host",
        )
    targets = [read_target(url, environment).url for url in urls]
    named = environment.get(ENDPOINT_VARIABLE, "").strip()
    if named and endpoint is None:
        try:
            targets.append(read_target(named, environment).url)
        except ConfigError as error:
            logger.warning("%s (from %s); going on without", error, ENDPOINT_VARIABLE)
    return tuple(dict.fromkeys(targets))


def tell_unsent(store: Path) -> None:
    """Say which receivers lack a part of what is in the store, and how they get it."""
    directory = journal_path(store)
    urls = find_waiting_urls(directory)
    if not urls:
        return
    print(
        f'not all could be forwarded to {", ".join(urls)}; it waits in "{directory}"',
        file=sys.stderr,
    )
    options = " ".join(f"--forward {shlex.quote(url)}" for url in urls)
    print(
        f"hint: rootwalk receive --store {shlex.quote(str(store))} {options} sends it",
        file=sys.stderr,
    )
