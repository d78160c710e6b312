"""What has happened on the host, as OTLP log events: POST /v1/logs, a Resource for each rank and one for the host.

Events that the endpoint has not acknowledged wait here, the oldest 1,024 of them; what finds no room is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rootwalk.ebpf.reader import Occurrence
from rootwalk.instrumentation.clock import read_host_clock
from rootwalk.instrumentation.export import OtlpSender
from rootwalk.instrumentation.log_events import (
    LogEvent,
    Severity,
    build_log_request,
    build_resource_logs,
)

__all__ = ["AgentEvents", "EventOwner"]

SCOPE = "rootwalk.ebpf"
# A host that is in trouble tells a few a second. About 0.5 MB of memory, one request.
MAX_WAITING = 1024


@dataclass(frozen=True, slots=True)
class EventOwner:
    """Whose events they are.

    Attributes:
        resource: Attributes of the Resource.
        context: Returns trace and span id of the step that a moment (CLOCK_MONOTONIC, ns) falls in; None where that is
            not known.
    """

    resource: Mapping[str, str | int]
    context: Callable[[int], tuple[bytes, bytes] | None] = lambda _: None


class AgentEvents:
    """Owns the events that are to be sent.

    Args:
        endpoint: OTLP/HTTP base URL.
        host: The owner of events that belong to no rank.
    """

    def __init__(self, endpoint: str, host: EventOwner) -> None:
        self._sender = OtlpSender(endpoint, "logs")
        self._host = host
        self._clock = read_host_clock()
        self._waiting: list[tuple[EventOwner, Occurrence]] = []
        self.dropped = 0

    @property
    def refused(self) -> int:
        """Events that the endpoint has refused for good."""
        return self._sender.refused_records

    def add(
        self, occurrences: Iterable[Occurrence], find_owner: Callable[[int], EventOwner | None]
    ) -> None:
        """Take what has happened.

        Args:
            occurrences: What the readers told.
            find_owner: Returns whose a rank slot is; None when it is not this agent's to tell.
        """
        for one in occurrences:
            owner = self._host if one.slot is None else find_owner(one.slot)
            if owner is not None:
                self.add_of(owner, [one])

    def add_of(self, owner: EventOwner, occurrences: Iterable[Occurrence]) -> None:
        """Take what has happened to one owner."""
        for one in occurrences:
            if len(self._waiting) >= MAX_WAITING:
                self.dropped += 1
            else:
                self._waiting.append((owner, one))

    def send(self) -> bool:
        """Send what waits, with what is known by now of the steps; return whether nothing is left."""
        if not self._waiting:
            return True
        if self._sender.is_backing_off:
            return False
        groups: dict[frozenset[tuple[str, str | int]], list[LogEvent]] = {}
        for owner, one in self._waiting:
            groups.setdefault(frozenset(owner.resource.items()), []).append(self._event(one, owner))
        request = build_log_request(
            build_resource_logs(dict(resource), SCOPE, events)
            for resource, events in groups.items()
        )
        if not self._sender.post(request.SerializeToString(), len(self._waiting)):
            return False
        self._waiting = []
        return True

    def close(self) -> None:
        """Close the connection; what still waits is lost."""
        self._sender.close()

    def _event(self, one: Occurrence, owner: EventOwner) -> LogEvent:
        return LogEvent(
            one.event,
            self._clock.unix_ns(one.mono_ns),
            self._clock.unix_ns(time.monotonic_ns()),
            Severity.WARN if one.is_bad else Severity.INFO,
            one.text,
            one.attributes,
            owner.context(one.mono_ns),
        )
