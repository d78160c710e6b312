"""All targets of one receiver: their cursors before anything is removed, their threads, and no way back to itself."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rootwalk.instrumentation.errors import ConfigError, StoreError
from rootwalk.otel_receiver.forward import Forwarder, ForwardSnapshot, RetryPolicy
from rootwalk.otel_receiver.forward_client import connect_target
from rootwalk.otel_receiver.forward_cursor import (
    cursor_path,
    list_cursors,
    read_cursor,
    save_cursor,
)
from rootwalk.otel_receiver.forward_queue import ForwardQueue
from rootwalk.otel_receiver.forward_target import ForwardTarget
from rootwalk.otel_receiver.group_commit import MAX_SEGMENT_BYTES, JournalPosition

__all__ = ["DEFAULT_QUEUE_BYTES", "MIN_QUEUE_BYTES", "Forwarding", "check_targets"]

logger = logging.getLogger(__name__)

# An hour of a busy agent, and little beside a training job's checkpoints.
DEFAULT_QUEUE_BYTES: Final = 1024 * 1024 * 1024
# The segment that is being written cannot be given up, and neither can the one being sent.
MIN_QUEUE_BYTES: Final = 2 * MAX_SEGMENT_BYTES


def check_targets(targets: Sequence[ForwardTarget], queue_bytes: int) -> None:
    """Check what can be checked before anything starts.

    Raises:
        ConfigError: If a target is named twice or the queue is too small.
    """
    urls = [target.url for target in targets]
    twice = sorted({url for url in urls if urls.count(url) > 1})
    if twice:
        raise ConfigError(f"cannot forward to {twice[0]} twice; needs each target once")
    if queue_bytes < MIN_QUEUE_BYTES:
        raise ConfigError(
            f"cannot forward with a queue of {queue_bytes} bytes; needs at least {MIN_QUEUE_BYTES}",
            hint="leave --forward-queue-bytes at its default of 1GiB",
        )


class Forwarding:
    """The forwarders of one receiver; `hold` before anything is removed, `open`, `start`, `extend`, `stop`.

    Args:
        directory: The journal, whose lock the caller holds.
        targets: Where to send what is accepted.
        queue_bytes: What may wait for one target; above it the oldest is given up.
        policy: When to try again.
    """

    def __init__(
        self,
        directory: Path,
        targets: Sequence[ForwardTarget],
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._directory = directory
        self._targets = targets
        self._queue_bytes = queue_bytes
        self._policy = policy or RetryPolicy()
        self._forwarders: list[Forwarder] = []

    def hold(self, next_segment: int) -> None:
        """Keep the segments that the targets still need, and from `next_segment` on for a new target.

        Raises:
            StoreError: If the cursors cannot be written.
        """
        cursors = {cursor_path(self._directory, target.url): target for target in self._targets}
        try:
            for path in list_cursors(self._directory):
                if path not in cursors:
                    path.unlink()
                    logger.warning("what an earlier receiver had still to forward is not sent on")
            for path, target in cursors.items():
                if not path.exists():
                    save_cursor(path, target.url, (next_segment, 0), is_durable=True)
        except OSError as error:
            raise StoreError(
                f'cannot write the journal "{self._directory}": '
                f"{(error.strerror or str(error)).lower()}; needs free disk space",
                hint="choose another place with --store PATH",
            ) from error

    def open(self, on_segment: Callable[[], None]) -> None:
        """Look at what waits in the journal; before anything is added to it.

        Args:
            on_segment: Called when a target has passed a segment.
        """
        for target in self._targets:
            path = cursor_path(self._directory, target.url)
            position = JournalPosition(*read_cursor(path))
            queue = ForwardQueue(self._directory, position, self._queue_bytes)
            client = connect_target(target)
            self._forwarders.append(
                Forwarder(target, client, queue, path, on_segment, self._policy)
            )

    def start(self, own_ports: Sequence[tuple[str, int]]) -> None:
        """Start sending.

        Args:
            own_ports: (host, port) that this receiver listens on.

        Raises:
            ConfigError: If a target is this receiver itself.
        """
        for target in self._targets:
            if any(_is_same_place(target, host, port) for host, port in own_ports):
                raise ConfigError(
                    f"cannot forward to {target.url}: this receiver listens there; needs another receiver",
                    hint="every request would come back and be sent on again",
                )
        for forwarder in self._forwarders:
            forwarder.start()

    def extend(self, end: JournalPosition) -> None:
        """Say that the journal is durable up to `end`."""
        for forwarder in self._forwarders:
            forwarder.extend(end)

    def stop(self) -> None:
        """Send what can be sent at once, and end; safe without start and twice."""
        for forwarder in self._forwarders:
            forwarder.stop()

    def snapshots(self) -> list[ForwardSnapshot]:
        """Return the counts of every target."""
        return [forwarder.snapshot() for forwarder in self._forwarders]


def _is_same_place(target: ForwardTarget, host: str, port: int) -> bool:
    if target.port != port:
        return False
    theirs, ours = _resolve(target.host), _resolve(host)
    if any(address.is_unspecified for address in theirs):
        return True
    if any(address.is_unspecified for address in ours):
        return any(_is_of_this_machine(address) for address in theirs)
    return bool(theirs & ours)


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _resolve(host: str) -> set[_Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()  # a name that is not known yet may be later; it is not ours now
    return {ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found}


def _is_of_this_machine(address: _Address) -> bool:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
