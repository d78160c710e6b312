"""The job of requests whose senders named none; pure."""

from __future__ import annotations

from typing import Final

from rootwalk.instrumentation import semconv
from rootwalk.otel_receiver.request_checks import parse_request
from rootwalk.otel_receiver.signals import Signal

__all__ = ["name_job"]

_LISTS: Final = {
    Signal.TRACES: "resource_spans",
    Signal.METRICS: "resource_metrics",
    Signal.LOGS: "resource_logs",
    Signal.PROFILES: "resource_profiles",
}


def name_job(signal: Signal, body: bytes, job: str) -> bytes:
    """Return a request in which every resource has a job: its own, else this one.

    Raises:
        DecodeError: If `body` is not an export request of `signal`.
    """
    request = parse_request(signal, body)
    is_changed = False
    for entry in getattr(request, _LISTS[signal]):
        attributes = entry.resource.attributes
        if all(attribute.key != semconv.TRAINING_JOB_ID for attribute in attributes):
            attributes.add(key=semconv.TRAINING_JOB_ID).value.string_value = job
            is_changed = True
    return request.SerializeToString() if is_changed else body
