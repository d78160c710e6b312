"""The only place that configures OpenTelemetry's exporter, and the sender of spans that were encoded by hand.

Spans of training steps are too many for the SDK (70 to 90 us each); they are built as OTLP bytes and posted as one
request. Metrics go through the SDK's exporter. Both honour OpenTelemetry's environment variables.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from urllib.parse import unquote, urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.instrumentation.utils import suppress_instrumentation

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.otlp_wire import EncodedSpans, encode_resource_spans

__all__ = [
    "EncodedSpans",
    "OtlpSender",
    "SpanSender",
    "build_metric_exporter",
    "build_resource_spans",
    "metric_interval_s",
    "product_version",
    "suppress_instrumentation",
]

# Ours and not OTEL_EXPORTER_OTLP_TIMEOUT: senders here wait in a training process or while kernel events pile up.
DEFAULT_TIMEOUT_S = 2.0
# Statuses after which the same request may be sent again (OTLP specification, "Failures").
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
PREFIX = "OTEL_EXPORTER_OTLP_"
FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 5.0
FAST_GZIP_LEVEL = 1
# 10 % smaller than the fastest; levels above it take longer and win nothing.
PROFILES_GZIP_LEVEL = 6


@functools.cache
def product_version() -> str:
    """Return the installed version of Rootwalk, or "0" when it runs from a bare source tree."""
    try:
        return metadata.version("rootwalk")
    except metadata.PackageNotFoundError:
        return "0"


def build_resource_spans(
    resource: Mapping[str, str | int], spans_by_scope: Mapping[str, Sequence[bytes]]
) -> EncodedSpans:
    """Return spans of one Resource, grouped by instrumentation scope name."""
    return encode_resource_spans(resource, spans_by_scope, product_version(), semconv.SCHEMA_URL)


def _is_for_others(signal: str, endpoint: str) -> bool:
    """Return whether the headers in the environment are for another server than this one.

    They often hold a key. Where the environment names an endpoint, they are for that one: beside `rootwalk run` the
    user's own telemetry goes there, and ours to our receiver.

    Args:
        signal: TRACES, METRICS or LOGS.
        endpoint: Where ours goes, base URL.
    """
    named = os.environ.get(f"{PREFIX}{signal}_ENDPOINT") or os.environ.get(f"{PREFIX}ENDPOINT")
    return bool(named) and urlsplit(str(named))[:2] != urlsplit(endpoint)[:2]


def _headers_from_environment(signal: str, endpoint: str) -> dict[str, str]:
    if _is_for_others(signal, endpoint):
        return {}
    text = os.environ.get(f"{PREFIX}{signal}_HEADERS") or os.environ.get(f"{PREFIX}HEADERS", "")
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs}


@contextlib.contextmanager
def _own_headers_only(endpoint: str) -> Iterator[None]:
    """Hide headers for another server from the SDK's exporter, which takes them whatever it is told."""
    names = (f"{PREFIX}METRICS_HEADERS", f"{PREFIX}HEADERS")
    hidden = {name: os.environ[name] for name in names if name in os.environ}
    if not _is_for_others("METRICS", endpoint):
        hidden = {}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def _gzip_level(signal: str) -> int:
    """Return how hard requests of a signal are compressed, 0 for not at all.

    Profiles are unless the environment says otherwise: a third is left of them, and few are sent. The rest is sent
    often, and mostly to this machine.

    Args:
        signal: TRACES, METRICS, LOGS or PROFILES.
    """
    named = os.environ.get(f"{PREFIX}{signal}_COMPRESSION") or os.environ.get(
        f"{PREFIX}COMPRESSION"
    )
    if signal == "PROFILES":
        return 0 if named == "none" else PROFILES_GZIP_LEVEL
    return FAST_GZIP_LEVEL if named == "gzip" else 0


class OtlpSender:
    """Posts one signal to an OTLP/HTTP endpoint; one request at a time, no queue of its own.

    The caller keeps what was not acknowledged, so nothing grows here while the other end is away.

    Args:
        endpoint: Base URL, such as ``http://127.0.0.1:4318``; ``/v1/`` and the signal are added, of profiles
            ``/v1development/``.
        signal: Such as ``traces``.
        timeout_s: What one request may take, s.
    """

    def __init__(self, endpoint: str, signal: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        folder = "v1development" if signal == "profiles" else "v1"
        self._url = f"{endpoint.rstrip('/')}/{folder}/{signal}"
        self._session = requests.Session()
        self._session.trust_env = (
            False  # a proxy for the outside world is not for the telemetry path
        )
        self._session.headers.update(_headers_from_environment(signal.upper(), endpoint))
        self._session.headers["Content-Type"] = "application/x-protobuf"
        self._gzip_level = _gzip_level(signal.upper())
        certificate = os.environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE")
        if certificate:
            self._session.verify = certificate
        self._timeout_s = timeout_s
        self._backoff_s = 0.0
        self._not_before = 0.0
        self.sent_records = 0
        self.sent_bytes = 0
        self.refused_records = 0

    @property
    def is_backing_off(self) -> bool:
        """Whether the endpoint was away a moment ago, so that sending now would be refused unsent."""
        return time.monotonic() < self._not_before

    def post(self, body: bytes, records: int) -> bool:
        """Post one request.

        Args:
            body: An export request of the signal.
            records: How many spans or log records it holds.

        Returns:
            True when it need not be sent again: it was acknowledged, or refused for good (and counted).
            False when the endpoint is away or overloaded: send the same again later.
        """
        if self.is_backing_off:
            return False
        headers = {}
        if self._gzip_level:
            body = gzip.compress(body, compresslevel=self._gzip_level)
            headers["Content-Encoding"] = "gzip"
        try:
            # A process whose HTTP requests are traced would trace these, send those spans too, and so on.
            with suppress_instrumentation():
                response = self._session.post(
                    self._url, data=body, headers=headers, timeout=self._timeout_s
                )
        except requests.RequestException:
            return self._retry_later(None)
        if response.ok:
            self._backoff_s = 0.0
            self.sent_records += records
            self.sent_bytes += len(body)
            return True
        if response.status_code in RETRYABLE_STATUSES:
            return self._retry_later(response.headers.get("Retry-After"))
        self.refused_records += records
        return True

    def _retry_later(self, retry_after: str | None) -> bool:
        self._backoff_s = min(max(self._backoff_s * 2, FIRST_BACKOFF_S), MAX_BACKOFF_S)
        wait_s = self._backoff_s * random.uniform(0.5, 1.0)  # noqa: S311  (spreads senders, no secret)
        if retry_after is not None and retry_after.isdigit():
            wait_s = max(wait_s, float(retry_after))
        self._not_before = time.monotonic() + wait_s
        return False

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


class SpanSender:
    """Posts spans; the ring is the queue.

    Args:
        endpoint: As for `OtlpSender`.
        timeout_s: What one request may take, s.
    """

    def __init__(self, endpoint: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._sender = OtlpSender(endpoint, "traces", timeout_s)

    @property
    def is_backing_off(self) -> bool:
        """Whether the endpoint was away a moment ago, so that sending now would be refused unsent."""
        return self._sender.is_backing_off

    @property
    def sent_spans(self) -> int:
        """Spans that were acknowledged."""
        return self._sender.sent_records

    @property
    def sent_bytes(self) -> int:
        """Bytes in which they were sent."""
        return self._sender.sent_bytes

    @property
    def refused_spans(self) -> int:
        """Spans that were refused for good."""
        return self._sender.refused_records

    def send(self, batches: Sequence[EncodedSpans]) -> bool:
        """Post one request.

        Returns:
            True when the spans need not be sent again: they were acknowledged, or refused for good (and counted).
            False when the endpoint is away or overloaded: send the same again later.
        """
        total = sum(batch.span_count for batch in batches)
        if not total:
            return True
        body = b"".join(batch.body for batch in batches if batch.span_count)
        return self._sender.post(body, total)

    def close(self) -> None:
        """Close the connection."""
        self._sender.close()


def build_metric_exporter(endpoint: str) -> OTLPMetricExporter:
    """Return the SDK's exporter by OTLP/HTTP protobuf; its owner calls `shutdown`.

    Args:
        endpoint: Base URL; ``/v1/metrics`` is added.
    """
    with _own_headers_only(endpoint):
        return OTLPMetricExporter(endpoint=endpoint.rstrip("/") + "/v1/metrics")


def metric_interval_s(default_s: float) -> float:
    """Return the time between exports of metrics, s; OTEL_METRIC_EXPORT_INTERVAL (ms) overrides the default."""
    override = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    return float(override) / 1e3 if override.isdigit() else default_s
