from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.otel_receiver.header_blocks import (
    HeaderBlockError,
    HeaderDecoder,
    MalformedRequestError,
    encode_fields,
    read_content_length,
    read_request_fields,
)
from rootwalk.otel_receiver.http2_frames import ErrorCode, Http2ConnectionError, Http2StreamError
from rootwalk.otel_receiver.huffman import decode_huffman
from rootwalk.otel_receiver.request_heads import HeadReader
from support.examples import examples

REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x")]
FIELDS = st.lists(
    st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=300)), max_size=20
)


def _decode(block: bytes) -> list[tuple[bytes, bytes]]:
    return HeaderDecoder(16 * 1024).decode(block)[0]


# RFC 7541, appendix C.3 and C.4: three requests on one connection, without and with Huffman text.
@pytest.mark.parametrize(
    "blocks",
    [
        (
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ),
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ),
    ],
    ids=["plain", "huffman"],
)
def test_the_examples_of_the_specification(blocks: tuple[str, ...]) -> None:
    decoder = HeaderDecoder(16 * 1024)
    first = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")]
    authority = (b":authority", b"www.example.com")

    read = [decoder.decode(bytes.fromhex(block))[0] for block in blocks]

    assert read[0] == [*first, authority]
    assert read[1] == [*first, authority, (b"cache-control", b"no-cache")]
    assert read[2] == [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        authority,
        (b"custom-key", b"custom-value"),
    ]


@given(blocks=st.lists(FIELDS, min_size=1, max_size=6), is_huffman=st.booleans())
def test_what_another_library_writes_is_read(
    blocks: list[list[tuple[bytes, bytes]]], is_huffman: bool
) -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder(1 << 20)
    for number, fields in enumerate(blocks):
        if number == 2:
            encoder.header_table_size = 200
        block = encoder.encode(fields, huffman=is_huffman)
        assert decoder.decode(block) == (fields, True)


@given(fields=FIELDS)
def test_what_we_write_is_read_by_another_library(fields: list[tuple[bytes, bytes]]) -> None:
    read = hpack.Decoder(max_header_list_size=1 << 20).decode(encode_fields(fields), raw=True)

    assert [tuple(field) for field in read] == fields


@examples(5)
@given(blocks=st.lists(st.binary(max_size=60), max_size=5))
def test_whatever_is_no_block_is_refused(blocks: list[bytes]) -> None:
    decoder = HeaderDecoder(1000)
    for block in blocks:
        try:
            fields, _ = decoder.decode(block)
        except HeaderBlockError:
            return
        assert sum(len(name) + len(value) + 32 for name, value in fields) <= 1000


@pytest.mark.parametrize(
    ("block", "saw"),
    [
        ("80", "field 0"),
        ("be", "beyond the 0 kept fields"),
        ("823f00", "in mid-field|table size"),
        ("8220", "table size after a field"),
        ("3fe21f", "table size of 4097"),
        ("00", "mid-field"),
        ("000561", "mid-string"),
        ("ffffffffffffff", "more than 32 bits"),
        ("00016182ffff", "Huffman"),
        ("00016181a0", "padded with ones"),
        ("00016184ffffffff", "end of text"),
    ],
)
def test_blocks_that_cannot_be(block: str, saw: str) -> None:
    with pytest.raises(HeaderBlockError, match=saw):
        _decode(bytes.fromhex(block))


def test_fields_that_are_too_many_are_left_out_and_the_table_stays_right() -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder(200)
    many = [(b"name-%d" % n, b"x" * 50) for n in range(10)]

    fields, is_whole = decoder.decode(encoder.encode(many))
    again, _ = decoder.decode(encoder.encode(many[9:]))

    assert (len(fields), is_whole) == (2, False)
    assert again == many[9:]


def test_text_of_every_byte() -> None:
    text = bytes(range(256))
    # Huffman text of the same by the other library.
    block = hpack.Encoder().encode([(b"x", text)], huffman=True)

    assert _decode(block) == [(b"x", text)]
    assert decode_huffman(b"") == b""


@pytest.mark.parametrize(
    "fields",
    [
        [],
        REQUEST[:2],
        [*REQUEST, (b":path", b"/y")],
        [*REQUEST, (b":status", b"200")],
        [(b"a", b"b"), *REQUEST],
        [*REQUEST, (b"Upper", b"x")],
        [*REQUEST, (b"connection", b"close")],
        [*REQUEST, (b"te", b"gzip")],
        [*REQUEST, (b"", b"x")],
        [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"")],
    ],
)
def test_fields_that_are_no_request(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(MalformedRequestError):
        read_request_fields(fields)


def test_of_repeated_fields_the_first_counts() -> None:
    by_name = read_request_fields([*REQUEST, (b"te", b"trailers"), (b"a", b"1"), (b"a", b"2")])

    assert by_name[b"a"] == b"1"
    assert read_content_length(by_name) is None
    assert read_content_length({b"content-length": b"12"}) == 12
    with pytest.raises(MalformedRequestError):
        read_content_length({b"content-length": b"-1"})


class Meanings:
    """Reads heads and counts how often it has to."""

    def __init__(self) -> None:
        self.read = 0
        self.heads = HeadReader(self.read_head)
        self.encoder = hpack.Encoder()

    def read_head(self, fields: object) -> object:
        self.read += 1
        return fields

    def send(self, *more: tuple[bytes, bytes]) -> tuple[object, int | None]:
        return self.heads.read(1, self.encoder.encode([*REQUEST, *more]))


def test_a_block_that_only_refers_is_understood_once() -> None:
    meanings = Meanings()

    first = meanings.send((b"a", b"1"))  # kept in the table by both
    heads = [meanings.send((b"a", b"1")) for _ in range(10)]

    assert all(head == first for head in heads)
    assert meanings.read == 2


def test_what_a_block_means_is_forgotten_when_the_table_changes() -> None:
    """The same byte, a reference to the newest kept field, means another field after each new one."""
    meanings = Meanings()
    kept = [bytes.fromhex("40") + b"\x01a\x01" + value for value in (b"1", b"2")]
    start = hpack.Encoder().encode(REQUEST[:2]) + b"\x04\x02/x"  # a path that is not kept
    refers = start + b"\xbe"

    meanings.heads.decode(kept[0])
    before = [meanings.heads.read(1, refers)[0] for _ in range(2)]
    meanings.heads.decode(kept[1])
    after = meanings.heads.read(1, refers)[0]

    assert [dict(head)[b"a"] for head in (*before, after)] == [b"1", b"1", b"2"]  # type: ignore[call-overload]
    assert meanings.read == 2


def test_heads_that_cannot_be_read() -> None:
    meanings = Meanings()

    with pytest.raises(Http2StreamError) as malformed:
        meanings.heads.read(7, encode_fields([(b"a", b"b")]))
    with pytest.raises(Http2ConnectionError) as unreadable:
        meanings.heads.read(9, b"\x80")

    assert (malformed.value.stream_id, malformed.value.code) == (7, ErrorCode.PROTOCOL_ERROR)
    assert unreadable.value.code is ErrorCode.COMPRESSION_ERROR
    assert meanings.heads.read(1, encode_fields([(b"x", b"y" * 17_000)])) == (None, None)
