"""Where accepted telemetry is sent on to: a URL and OpenTelemetry's environment variables, checked and typed.

A key in the environment is for the endpoint that the environment names: another target never sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from rootwalk.instrumentation.errors import ConfigError

__all__ = ["ENDPOINT_VARIABLE", "ForwardProtocol", "ForwardTarget", "read_target"]

_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
ENDPOINT_VARIABLE: Final = f"{_PREFIX}ENDPOINT"
# Registered for OTLP/gRPC: SDKs that speak gRPC by default are given http://HOST:4317 and nothing more.
GRPC_PORT: Final = 4317
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "grpc": GRPC_PORT, "grpcs": GRPC_PORT}


class ForwardProtocol(StrEnum):
    """How requests are sent on; the value is OpenTelemetry's word for it."""

    GRPC = "grpc"
    HTTP = "http/protobuf"


@dataclass(frozen=True, slots=True)
class ForwardTarget:
    """Another receiver of OTLP.

    Attributes:
        url: As it was given, without a slash at its end; for messages, for HTTP, and to know the target again.
        protocol: gRPC, or protobuf over HTTP.
        host: Name or address.
        port: TCP port.
        is_secure: Whether TLS is spoken.
        headers: Sent with each request; they may hold a key, so they are never printed.
        use_gzip: Whether bodies are compressed.
        certificate: File with the authorities to trust, or None for the system's.
        client_certificate: File with the certificate to show, or None.
        client_key: File with its key, or None.
    """

    url: str
    protocol: ForwardProtocol
    host: str
    port: int
    is_secure: bool
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    use_gzip: bool = False
    certificate: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None


def read_target(url: str, environment: Mapping[str, str]) -> ForwardTarget:
    """Return the target that a URL names, with what the environment says about it.

    Args:
        url: http://, https://, grpc:// or grpcs:// (gRPC with TLS), host and port.
        environment: Protocol, headers, compression and certificates are taken from OpenTelemetry's variables, unless
            they are for another endpoint.

    Raises:
        ConfigError: If it is no such URL or a variable says what cannot be.
    """
    parts, port = _split_url(url)
    if _is_for_another(parts, environment):
        environment = {}
    protocol = _choose_protocol(parts, environment)
    certificate = _read_path(environment, "CERTIFICATE")
    client_certificate = _read_path(environment, "CLIENT_CERTIFICATE")
    return ForwardTarget(
        url=url.rstrip("/"),
        protocol=protocol,
        host=parts.hostname or "",
        port=port,
        is_secure=parts.scheme in ("https", "grpcs"),
        headers=_read_headers(environment),
        use_gzip=environment.get(f"{_PREFIX}COMPRESSION") == "gzip",
        certificate=certificate,
        client_certificate=client_certificate,
        client_key=_read_path(environment, "CLIENT_KEY"),
    )


def _split_url(url: str) -> tuple[SplitResult, int]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port == 0 or parts.query:
        raise ConfigError(
            f'cannot forward to "{_without_password(url)}": saw no such OTLP URL; needs http://HOST:4318, '
            "https://HOST or grpc://HOST:4317",
            hint="the address of the other receiver's OTLP/HTTP or OTLP/gRPC port",
        )
    if parts.username is not None:
        raise ConfigError(
            f'cannot forward to "{_without_password(url)}": saw a user name in the URL; '
            f"needs a key in the environment",
            hint=f"{_PREFIX}HEADERS=authorization=…",
        )
    return parts, port or _DEFAULT_PORTS[parts.scheme]


def _without_password(url: str) -> str:
    scheme, separator, rest = url.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]


def _is_for_another(parts: SplitResult, environment: Mapping[str, str]) -> bool:
    named = environment.get(ENDPOINT_VARIABLE)
    return bool(named) and urlsplit(str(named)).netloc != parts.netloc


def _choose_protocol(parts: SplitResult, environment: Mapping[str, str]) -> ForwardProtocol:
    if parts.scheme in ("grpc", "grpcs"):
        return ForwardProtocol.GRPC
    named = environment.get(f"{_PREFIX}PROTOCOL", "").strip()
    if not named:
        return ForwardProtocol.GRPC if parts.port == GRPC_PORT else ForwardProtocol.HTTP
    if named == "http/json":  # every receiver that takes JSON takes protobuf by the same path
        return ForwardProtocol.HTTP
    try:
        return ForwardProtocol(named)
    except ValueError:
        raise ConfigError(
            f'cannot forward to "{parts.geturl()}": saw {_PREFIX}PROTOCOL="{named}"; '
            f"needs grpc, http/protobuf or http/json"
        ) from None


def _read_headers(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    pairs = (pair.partition("=") for pair in environment.get(f"{_PREFIX}HEADERS", "").split(","))
    return tuple(
        (unquote(key.strip()).lower(), unquote(value.strip()))
        for key, separator, value in pairs
        if separator and key.strip()
    )


def _read_path(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(_PREFIX + name)
    if not text:
        return None
    path = Path(text)
    if not path.is_file():
        raise ConfigError(
            f'cannot read "{path}" of {_PREFIX}{name}: no such file; needs a PEM file'
        )
    return path
