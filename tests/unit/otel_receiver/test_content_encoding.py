from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.otel_receiver.content_encoding import (
    ENCODINGS,
    MAX_MEMBERS,
    MAX_SNAPPY_CHUNKS,
    SNAPPY_STREAM_ID,
    decompress,
)
from support.compressions import COMPRESSIONS as SENT
from support.compressions import snappy, snappy_framed


def _raw_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


def _zstd_stream(body: bytes) -> bytes:
    """Without the size in the frame's header, as senders that stream write it."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(body) + stream.flush()


def _lz4_checked(body: bytes) -> bytes:
    """In small blocks with every checksum and the size in front, none of which senders must write."""
    return bytes(
        lz4.frame.compress(
            body,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            block_checksum=True,
            content_checksum=True,
        )
    )


def _lz4_stream(body: bytes) -> bytes:
    stream = lz4.frame.LZ4FrameCompressor()
    return bytes(stream.begin() + stream.compress(body) + stream.flush())


COMPRESSIONS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "identity": ("identity", bytes),
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw-deflate": ("deflate", _raw_deflate),
    "zlib": ("zlib", zlib.compress),
    "zstd": ("zstd", zstandard.compress),
    "zstd-stream": ("zstd", _zstd_stream),
    "snappy": ("snappy", snappy),
    "framed-snappy": ("snappy", snappy_framed),
    "x-snappy-framed": ("x-snappy-framed", snappy_framed),
    "lz4": ("lz4", lz4.frame.compress),
    "lz4-checked": ("lz4", _lz4_checked),
    "lz4-stream": ("lz4", _lz4_stream),
}


def _parametrize(*names: str) -> pytest.MarkDecorator:
    cases = [pytest.param(*COMPRESSIONS[name], id=name) for name in names]
    return pytest.mark.parametrize(("encoding", "compress"), cases)


compressions = _parametrize(*COMPRESSIONS)
compressed = _parametrize(*(name for name in COMPRESSIONS if name != "identity"))


def test_every_encoding_is_tried() -> None:
    assert {encoding for encoding, _ in COMPRESSIONS.values()} == set(ENCODINGS) == set(SENT)


@compressions
@given(body=st.binary(max_size=300))
def test_every_encoding_gives_the_body(
    encoding: str, compress: Callable[[bytes], bytes], body: bytes
) -> None:
    assert decompress(compress(body), encoding, 300) == body


@given(body=st.binary(max_size=300), encoding=st.sampled_from(ENCODINGS))
def test_any_bytes_give_a_body_or_are_refused(body: bytes, encoding: str) -> None:
    for raw in (body, SENT[encoding](body)[:10] + body):
        with contextlib.suppress(OverflowError, ValueError):
            assert len(decompress(raw, encoding, 1000)) <= 1000


@_parametrize("gzip", "zstd", "zstd-stream", "x-snappy-framed", "lz4", "lz4-stream")
def test_several_members_are_one_body(encoding: str, compress: Callable[[bytes], bytes]) -> None:
    assert decompress(compress(b"ab") + compress(b"") + compress(b"c"), encoding, 3) == b"abc"
    with pytest.raises(OverflowError):
        decompress(compress(b"ab") + compress(b"cd"), encoding, 3)


@compressed
def test_the_limit_holds_after_decompression(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    for limit_bytes in (1000, 300_000):
        body = compress(bytes(limit_bytes))
        assert len(decompress(body, encoding, limit_bytes)) == limit_bytes
        with pytest.raises(OverflowError):
            decompress(compress(bytes(limit_bytes + 1)), encoding, limit_bytes)


@compressed
def test_a_body_cut_short_is_refused_wherever_it_ends(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    whole = compress(b"a body long enough to be cut in many places" * 3)
    for end in range(1, len(whole)):
        if whole[:end] == SNAPPY_STREAM_ID:
            continue  # a whole stream, of nothing
        with pytest.raises(ValueError, match="cannot decompress the body"):
            decompress(whole[:end], encoding, 1000)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_bytes_are_an_empty_body(encoding: str) -> None:
    assert decompress(b"", encoding, 10) == b""


@compressed
def test_bytes_after_the_end_are_refused(encoding: str, compress: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ValueError, match="cannot decompress the body"):
        decompress(compress(b"hello") + b"more", encoding, 100)


@_parametrize("gzip", "zstd-stream", "lz4")
def test_a_member_costs_a_copy_so_their_number_is_limited(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    member = compress(b"")
    assert decompress(member * MAX_MEMBERS, encoding, 10) == b""
    with pytest.raises(ValueError, match="saw more than 1024 members"):
        decompress(member * (MAX_MEMBERS + 1), encoding, 10)


def test_a_zstd_window_larger_than_the_standard_lets_senders_use() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=24, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = stream.compress(bytes(100)) + stream.flush()
    with pytest.raises(ValueError, match="cannot decompress the body"):
        decompress(body, "zstd", 1000)


def test_a_framed_snappy_stream_is_what_its_chunks_say() -> None:
    framed = snappy_framed(b"ab")
    padding = b"\xfe\x03\x00\x00???"
    assert decompress(framed + padding + framed, "x-snappy-framed", 4) == b"abab"
    assert decompress(SNAPPY_STREAM_ID, "x-snappy-framed", 4) == b""


def test_the_chunks_of_framed_snappy_are_limited() -> None:
    empty = b"\x80\x00\x00\x00"
    chunks = SNAPPY_STREAM_ID + empty * (MAX_SNAPPY_CHUNKS - 1)
    assert decompress(chunks, "x-snappy-framed", 10) == b""
    with pytest.raises(ValueError, match="saw more than 65536 chunks"):
        decompress(chunks + empty, "x-snappy-framed", 10)


@pytest.mark.parametrize("encoding", ["zlib", "snappy", "x-snappy-framed", "lz4"])
def test_a_body_read_in_many_parts(encoding: str) -> None:
    body = b"".join(n.to_bytes(4, "big") for n in range(100_000))
    raw = SENT[encoding](body)
    assert decompress(raw, encoding, len(body)) == body
    assert decompress(bytearray(raw), encoding, len(body)) == body


@pytest.mark.parametrize(
    ("raw", "encoding", "saw"),
    [
        (b"plain", "gzip", "cannot decompress the body"),
        (b"plain", "deflate", "cannot decompress the body"),
        (_raw_deflate(b"plain"), "zlib", "cannot decompress the body"),
        (b"plain", "zstd", "cannot decompress the body"),
        (b"plain", "snappy", "saw 5 bytes that announce 112; needs whole snappy"),
        (b"\xff\xff\xff\xff\xff\xff", "snappy", "invalid header"),
        (b"\x05plain", "snappy", "corrupt input"),
        (snappy(b"plain"), "x-snappy-framed", "cannot decompress the body"),
        (b"plain plain", "x-snappy-framed", "saw the end in mid-stream"),
        (b"\x80\x00\x00\x00", "x-snappy-framed", "expected stream header"),
        (SNAPPY_STREAM_ID + b"\x02\x00\x00\x00", "snappy", "unsupported chunk type"),
        (SNAPPY_STREAM_ID + b"\x01\x01\x00\x00?", "snappy", "unsupported chunk length"),
        (SNAPPY_STREAM_ID + b"\x01\x05\x00\x00????a", "snappy", "bad checksum"),
        (b"plain", "lz4", "cannot decompress the body"),
        (_lz4_checked(b"plain")[:-1] + b"?", "lz4", "contentChecksum_invalid"),
        (b"plain", "br", 'cannot read content encoding "br"'),
    ],
)
def test_a_body_that_is_not_what_its_header_says(raw: bytes, encoding: str, saw: str) -> None:
    with pytest.raises(ValueError, match=saw):
        decompress(raw, encoding, 100)
