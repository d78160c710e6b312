"""One OTLP request to another receiver, and what its answer means: sent, try again, or refused for good.

Source:
    OTLP 1.11, "Failures" of both transports: which codes may be retried, RetryInfo, Retry-After (seconds or date).
"""

from __future__ import annotations

import datetime as dt
import email.utils
import gzip
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import grpc
import requests
from google.protobuf.message import DecodeError as ProtobufDecodeError  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from rootwalk.instrumentation.export import suppress_instrumentation
from rootwalk.otel_receiver.forward_target import ForwardProtocol, ForwardTarget
from rootwalk.otel_receiver.signals import Signal

__all__ = ["Answer", "ForwardClient", "Verdict", "connect_target"]

# OpenTelemetry's default of OTEL_EXPORTER_OTLP_TIMEOUT.
DEFAULT_TIMEOUT_S: Final = 10.0
# gRPC waits up to two minutes by itself between attempts to connect; our own waiting is enough.
MAX_RECONNECT_MILLISECONDS: Final = 5000
_PATHS: Final = {
    "traces": ("v1/traces", "trace.v1.TraceService"),
    "metrics": ("v1/metrics", "metrics.v1.MetricsService"),
    "logs": ("v1/logs", "logs.v1.LogsService"),
    "profiles": ("v1development/profiles", "profiles.v1development.ProfilesService"),
}
_RETRYABLE_STATUSES: Final = frozenset({429, 502, 503, 504})
_RETRYABLE_CODES: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
# Refusals that are about one request's content: a smaller or another one may be taken.
_CONTENT_REASONS: Final = frozenset(
    {"http_400", "http_413", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
)


class Verdict(StrEnum):
    """What an answer means for the request."""

    SENT = "sent"
    RETRY = "retry"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answer:
    """The other end's answer, or why there is none.

    Attributes:
        verdict: What to do with the request.
        reason: Code in a word, such as http_503 or UNAVAILABLE; empty when it was sent.
        message: What the other end said.
        retry_after_s: What it asks to wait, s; None when it does not say.
        rejected: Items that it took out of a request that it accepted.
    """

    verdict: Verdict
    reason: str = ""
    message: str = ""
    retry_after_s: float | None = None
    rejected: int = 0

    @property
    def is_about_content(self) -> bool:
        """Whether part of the request may be acceptable."""
        return self.verdict is Verdict.REFUSED and self.reason in _CONTENT_REASONS


class ForwardClient(Protocol):
    """Sends requests to one target; used by one thread."""

    def export(self, signal: Signal, body: bytes) -> Answer:
        """Send one request and return what became of it; never raises for what the other end does."""

    def close(self) -> None:
        """Close the connection."""


def connect_target(target: ForwardTarget, timeout_s: float = DEFAULT_TIMEOUT_S) -> ForwardClient:
    """Return a client that connects when it has something to send.

    Args:
        target: Where to.
        timeout_s: What one request may take, s.
    """
    if target.protocol is ForwardProtocol.GRPC:
        return _GrpcClient(target, timeout_s)
    return _HttpClient(target, timeout_s)


class _HttpClient:
    def __init__(self, target: ForwardTarget, timeout_s: float) -> None:
        self._url = target.url
        self._use_gzip = target.use_gzip
        self._timeout_s = timeout_s
        self._session = requests.Session()
        self._session.trust_env = not _is_loopback(target.host)  # proxies lead to the outside
        self._session.headers.update(target.headers)
        self._session.headers["Content-Type"] = "application/x-protobuf"
        self._session.headers["User-Agent"] = "rootwalk-forward"
        if target.use_gzip:
            self._session.headers["Content-Encoding"] = "gzip"
        if target.certificate is not None:
            self._session.verify = str(target.certificate)
        if target.client_certificate is not None and target.client_key is not None:
            self._session.cert = (str(target.client_certificate), str(target.client_key))

    def export(self, signal: Signal, body: bytes) -> Answer:
        data = gzip.compress(body, compresslevel=1) if self._use_gzip else body
        try:
            with suppress_instrumentation():
                response = self._session.post(
                    f"{self._url}/{_PATHS[signal][0]}",
                    data=data,
                    timeout=self._timeout_s,
                    allow_redirects=False,
                )
        except requests.Timeout:
            return Answer(Verdict.RETRY, "timeout", f"no answer within {self._timeout_s:g} s")
        except requests.RequestException as error:
            return Answer(Verdict.RETRY, "no_connection", _innermost(error))
        if response.ok and response.status_code < 300:
            return _read_acceptance(response.content)
        reason = f"http_{response.status_code}"
        message = _read_status_message(response.content) or response.reason or reason
        if response.status_code in _RETRYABLE_STATUSES:
            wait_s = read_retry_after(response.headers.get("Retry-After"))
            return Answer(Verdict.RETRY, reason, message, wait_s)
        return Answer(Verdict.REFUSED, reason, message)

    def close(self) -> None:
        self._session.close()


class _GrpcClient:
    def __init__(self, target: ForwardTarget, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._metadata = target.headers
        self._compression = grpc.Compression.Gzip if target.use_gzip else None
        self._methods: dict[str, Callable[..., bytes]] = {}
        host = f"[{target.host}]" if ":" in target.host else target.host
        options = [
            ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MILLISECONDS),
            ("grpc.enable_http_proxy", 0 if _is_loopback(target.host) else 1),
            ("grpc.primary_user_agent", "rootwalk-forward"),
        ]
        address = f"{host}:{target.port}"
        self._channel: Any = (
            grpc.secure_channel(address, _read_credentials(target), options)
            if target.is_secure
            else grpc.insecure_channel(address, options)
        )

    def export(self, signal: Signal, body: bytes) -> Answer:
        method = self._methods.get(signal)
        if method is None:
            service = f"/opentelemetry.proto.collector.{_PATHS[signal][1]}/Export"
            method = self._methods[signal] = self._channel.unary_unary(service)
        try:
            with suppress_instrumentation():
                answer = method(
                    body,
                    timeout=self._timeout_s,
                    metadata=self._metadata,
                    compression=self._compression,
                )
        except grpc.RpcError as error:
            return _read_rpc_error(error)
        return _read_acceptance(answer)

    def close(self) -> None:
        self._channel.close()


def _read_credentials(target: ForwardTarget) -> Any:
    def read(path: Any) -> bytes | None:
        return None if path is None else bytes(path.read_bytes())

    return grpc.ssl_channel_credentials(
        read(target.certificate), read(target.client_key), read(target.client_certificate)
    )


def _read_rpc_error(error: Any) -> Answer:
    reason, message = error.code().name, error.details() or ""
    wait_s = _read_retry_info(error)
    is_retryable = reason in _RETRYABLE_CODES
    if reason == "RESOURCE_EXHAUSTED" and wait_s is not None:
        is_retryable = True
    return Answer(Verdict.RETRY if is_retryable else Verdict.REFUSED, reason, message, wait_s)


def _read_retry_info(error: Any) -> float | None:
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        try:
            details = Status.FromString(value).details
        except ProtobufDecodeError:
            return None
        for detail in details:
            retry = RetryInfo()
            if detail.Unpack(retry):
                return float(retry.retry_delay.ToNanoseconds()) / 1e9
    return None


def _read_acceptance(body: bytes) -> Answer:
    # The response has the same field numbers for every signal: partial_success 1, rejected 1, error_message 2.
    try:
        partial = ExportTraceServiceResponse.FromString(body).partial_success
    except ProtobufDecodeError:
        return Answer(Verdict.SENT)
    return Answer(
        Verdict.SENT, message=partial.error_message, rejected=max(0, partial.rejected_spans)
    )


def _read_status_message(body: bytes) -> str:
    try:
        return str(Status.FromString(body).message)
    except ProtobufDecodeError:
        return ""


def read_retry_after(text: str | None, now: dt.datetime | None = None) -> float | None:
    """Return what a Retry-After header asks to wait, s; None when it says nothing that can be read.

    Args:
        text: Seconds, or an HTTP date.
        now: The time to count a date from; now when None.
    """
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    now = now or dt.datetime.now(dt.UTC)
    wait_s: float = (date.replace(tzinfo=date.tzinfo or dt.UTC) - now).total_seconds()
    return max(0.0, wait_s)


def _innermost(error: BaseException) -> str:
    """Return what the operating system said, below the layers of the HTTP library."""
    seen: BaseException = error
    while True:
        inner = getattr(seen, "reason", None) or seen.__cause__ or seen.__context__
        if not isinstance(inner, BaseException) or inner is seen:
            break
        seen = inner
    if isinstance(seen, OSError) and seen.strerror:
        return seen.strerror.lower()
    return str(seen) or type(seen).__name__


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
