"""What the back ends answer through their own query APIs."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import requests

TIMEOUT_S = 60.0
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class FoundSpan:
    """A span as Jaeger has it.

    Attributes:
        rank: Of its resource.
        message: Of its status.
        links: Trace and span ids, hex.
    """

    span_id: str
    parent_id: str
    name: str
    rank: int | None
    attributes: dict[str, Any]
    message: str
    links: tuple[tuple[str, str], ...]


def ask(url: str, **parameters: str) -> Any:
    """Return the JSON that a server answers; None for "not found"."""
    answer = requests.get(url, params=parameters, timeout=TIMEOUT_S, proxies={"http": ""})
    if answer.status_code == requests.codes.not_found:
        return None
    answer.raise_for_status()
    return answer.json()


def find_trace(traces: str, trace_id: str) -> list[FoundSpan]:
    """Return the spans of a trace from Jaeger or Tempo, every time that it has each.

    Args:
        traces: What the id is put behind to ask for it.
        trace_id: The id, hex.
    """
    answer = ask(f"{traces}{trace_id}")
    if answer is None:
        return []
    found = answer["result"] if "result" in answer else answer["trace"]
    return [
        FoundSpan(
            _hex(span["spanId"]),
            _hex(span.get("parentSpanId", "")),
            span["name"],
            read_attributes(group["resource"]).get("training.rank"),
            read_attributes(span),
            span.get("status", {}).get("message", ""),
            tuple((_hex(one["traceId"]), _hex(one["spanId"])) for one in span.get("links", ())),
        )
        for group in found.get("resourceSpans", ())
        for scope in group.get("scopeSpans", ())
        for span in scope.get("spans", ())
    ]


def _hex(span_id: str) -> str:
    """Return an id as Jaeger writes it; Tempo writes base64, as protobuf's JSON has bytes."""
    return base64.b64decode(span_id).hex() if span_id.endswith("=") else span_id


def read_attributes(holder: Any) -> dict[str, Any]:
    """Return the attributes of a span, resource or record in OTLP/JSON; lists and maps as they are written."""
    return {entry["key"]: _value(entry["value"]) for entry in holder.get("attributes", ())}


def _value(value: Any) -> Any:
    ((kind, inner),) = value.items()
    return int(inner) if kind == "intValue" else inner


def find_samples(api: str, query: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and the value of each series that answers a query of Prometheus now."""
    answer = ask(f"{api}/api/v1/query", query=query)
    return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]


def wait_for(look: Callable[[], Any], wanted: Any, deadline_s: float = TIMEOUT_S) -> Any:
    """Look until what is seen is what is wanted, or the time is over; return what was seen last."""
    end_s = time.monotonic() + deadline_s
    while (seen := look()) != wanted and time.monotonic() < end_s:
        time.sleep(POLL_S)
    return seen
