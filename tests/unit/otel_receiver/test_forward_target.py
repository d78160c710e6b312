"""Which URL means which target, and which of the environment's words are for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.instrumentation.errors import ConfigError
from rootwalk.otel_receiver.forward_target import read_target

GRPC, HTTP = "grpc", "http/protobuf"


@pytest.mark.parametrize(
    ("url", "protocol", "expected"),
    [
        ("http://c:4318", "", (HTTP, "c", 4318, False)),
        ("http://c:4318/", "grpc", (GRPC, "c", 4318, False)),
        ("http://c:4317", "", (GRPC, "c", 4317, False)),
        ("http://c:4317", "http/protobuf", (HTTP, "c", 4317, False)),
        ("http://c", "http/json", (HTTP, "c", 80, False)),
        ("https://c/otlp", "", (HTTP, "c", 443, True)),
        ("https://c", "grpc", (GRPC, "c", 443, True)),
        ("grpc://c", "http/protobuf", (GRPC, "c", 4317, False)),
        ("grpcs://[::1]:9", "", (GRPC, "::1", 9, True)),
    ],
)
def test_url_and_protocol_name_the_target(
    url: str, protocol: str, expected: tuple[str, str, int, bool]
) -> None:
    target = read_target(url, {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol})

    assert (target.protocol, target.host, target.port, target.is_secure) == expected
    assert target.url == url.rstrip("/")


@pytest.mark.parametrize(
    ("url", "saw"),
    [
        ("c:4318", "saw no such OTLP URL"),
        ("ftp://c", "saw no such OTLP URL"),
        ("http://", "saw no such OTLP URL"),
        ("http://c:0", "saw no such OTLP URL"),
        ("http://c:99999", "saw no such OTLP URL"),
        ("http://c/?key=1", "saw no such OTLP URL"),
        ("http://me:secret@c", "saw a user name in the URL"),
    ],
)
def test_what_is_no_target_is_refused_without_its_password(url: str, saw: str) -> None:
    with pytest.raises(ConfigError, match=saw) as refused:
        read_target(url, {})

    assert "secret" not in str(refused.value)


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match='saw OTEL_EXPORTER_OTLP_PROTOCOL="thrift"'):
        read_target("http://c", {"OTEL_EXPORTER_OTLP_PROTOCOL": "thrift"})


def test_headers_are_read_and_not_shown() -> None:
    environment = {"OTEL_EXPORTER_OTLP_HEADERS": "Api-Key=a%20b, x=1=2,=no,broken"}

    target = read_target("http://c", environment)

    assert target.headers == (("api-key", "a b"), ("x", "1=2"))
    assert "a b" not in repr(target)


def test_what_is_for_another_endpoint_stays_there() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://vendor:4317",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=secret",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }

    theirs = read_target("https://vendor:4317", environment)
    other = read_target("http://mine:4318", environment)

    assert (theirs.headers, theirs.protocol, theirs.use_gzip) == (
        (("api-key", "secret"),),
        "grpc",
        True,
    )
    assert (other.headers, other.protocol, other.use_gzip) == ((), "http/protobuf", False)


def test_certificates_must_exist(tmp_path: Path) -> None:
    pem = tmp_path / "ca.pem"
    pem.write_text("")

    target = read_target("https://c", {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(pem)})

    assert target.certificate == pem
    with pytest.raises(ConfigError, match="no such file; needs a PEM file"):
        read_target("https://c", {"OTEL_EXPORTER_OTLP_CLIENT_KEY": str(tmp_path / "none")})
