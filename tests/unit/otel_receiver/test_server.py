from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.instrumentation.errors import ConfigError
from rootwalk.otel_receiver.server import ListenAddress, decompress, parse_address


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


def _raw_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


@given(st.binary(max_size=300))
def test_every_encoding_gives_the_body(body: bytes) -> None:
    assert decompress(body, "identity", 300) == body
    assert decompress(gzip.compress(body), "gzip", 300) == body
    assert decompress(gzip.compress(body) + gzip.compress(b""), "gzip", 300) == body
    assert decompress(zlib.compress(body), "deflate", 300) == body


def test_deflate_without_the_zlib_header() -> None:
    assert decompress(_raw_deflate(b"hello"), "deflate", 100) == b"hello"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_the_limit_holds_after_decompression(encoding: str) -> None:
    compress = gzip.compress if encoding == "gzip" else zlib.compress

    assert len(decompress(compress(bytes(1000)), encoding, 1000)) == 1000
    with pytest.raises(OverflowError):
        decompress(compress(bytes(1001)), encoding, 1000)


@pytest.mark.parametrize(
    ("raw", "encoding", "saw"),
    [
        (b"plain", "gzip", "cannot decompress the body"),
        (gzip.compress(b"hello")[:-3], "gzip", "saw the end in mid-stream"),
        (b"plain", "br", 'cannot read content encoding "br"'),
    ],
)
def test_a_body_that_is_not_what_its_header_says(raw: bytes, encoding: str, saw: str) -> None:
    with pytest.raises(ValueError, match=saw):
        decompress(raw, encoding, 100)
