"""The job of requests whose senders named none; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

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
    # Profiles may name attributes by their place in a table.
    texts = request.dictionary.string_table if signal is Signal.PROFILES else ()
    is_changed = False
    for entry in getattr(request, _LISTS[signal]):
        attributes = entry.resource.attributes
        names = {_name_of(attribute, texts) for attribute in attributes}
        if semconv.TRAINING_JOB_ID not in names:
            attributes.add(key=semconv.TRAINING_JOB_ID).value.string_value = job
            is_changed = True
    return request.SerializeToString() if is_changed else body


def _name_of(attribute: Any, texts: Sequence[str]) -> str:
    index = getattr(attribute, "key_strindex", 0)
    return texts[index] if 0 < index < len(texts) else attribute.key
