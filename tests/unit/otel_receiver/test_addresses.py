from __future__ import annotations

import pytest

from rootwalk.instrumentation.errors import ConfigError
from rootwalk.otel_receiver.addresses import ListenAddress, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4317", ListenAddress("127.0.0.1", 4317)),
        ("localhost:0", ListenAddress("localhost", 0)),
        ("[::1]:4317", ListenAddress("::1", 4317)),
    ],
)
def test_addresses(text: str, address: ListenAddress) -> None:
    assert parse_address(text, "--grpc") == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "4317", "host:", ":4317", "host:99999", "host:x", "host:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="needs HOST:PORT") as caught:
        parse_address(text, "--grpc")
    assert "--grpc 127.0.0.1:0" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("gpu-1", False)],  # noqa: S104
)
def test_who_reaches_an_address(host: str, is_loopback: bool) -> None:
    assert ListenAddress(host, 1).is_loopback is is_loopback
