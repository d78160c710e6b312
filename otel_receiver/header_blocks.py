"""Header blocks of HTTP/2 (HPACK): read with a table that the peer fills, written without one; pure.

A block that only refers to the tables means the same until they change. Clients repeat such blocks request after
request, so callers may keep what they made of one while `generation` stays as it is. Blocks that are new each time,
because they name a deadline, take a third of what the hpack library takes for them; tests compare the two.

Source:
    RFC 7541: 2.3 (tables), 5 (numbers and strings), 6 (fields), appendices A and B. RFC 9113: 8.2 and 8.3 (what a
    request's fields must be).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Final

from rootwalk.otel_receiver.huffman import decode_huffman

__all__ = [
    "Field",
    "HeaderBlockError",
    "HeaderDecoder",
    "MalformedRequestError",
    "encode_fields",
    "read_content_length",
    "read_request_fields",
]

Field = tuple[bytes, bytes]

# RFC 7541 section 4.1: what a field counts beyond its name and value.
FIELD_OVERHEAD_BYTES: Final = 32
# The default of SETTINGS_HEADER_TABLE_SIZE, which is not changed.
TABLE_BYTES: Final = 4096
# No number of a sound block is larger, and none takes more bytes.
_MAX_NUMBER_SHIFT: Final = 28
_MAX_LENGTH_DIGITS: Final = 19
# Values that clients repeat, such as their own name, are decoded once.
_REMEMBERED_STRINGS: Final = 256
_REMEMBERED_BYTES: Final = 256

_STATIC: Final[tuple[Field, ...]] = (
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    *((b":status", status) for status in (b"200", b"204", b"206", b"304", b"400", b"404", b"500")),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    *(
        (name, b"")
        for name in (
            b"accept-language accept-ranges accept access-control-allow-origin age allow authorization cache-control "
            b"content-disposition content-encoding content-language content-length content-location content-range "
            b"content-type cookie date etag expect expires from host if-match if-modified-since if-none-match "
            b"if-range if-unmodified-since last-modified link location max-forwards proxy-authenticate "
            b"proxy-authorization range referer refresh retry-after server set-cookie strict-transport-security "
            b"transfer-encoding user-agent vary via www-authenticate"
        ).split()
    ),
)
_PSEUDO_FIELDS: Final = frozenset({b":method", b":scheme", b":authority", b":path"})
# RFC 9113 section 8.2.2: they are about one connection of HTTP/1.
_CONNECTION_FIELDS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)


class HeaderBlockError(Exception):
    """A block cannot be read, and none that follows it."""


class MalformedRequestError(Exception):
    """A block can be read, and its fields are no request."""


class HeaderDecoder:
    """Reads the header blocks of one connection, in their order.

    Args:
        max_list_bytes: What the fields of one block may take together; the rest is read and left out.
    """

    def __init__(self, max_list_bytes: int) -> None:
        self._max_list_bytes = max_list_bytes
        self._table: list[Field] = []  # the newest is last
        self._table_bytes = 0
        self._max_table_bytes = TABLE_BYTES
        self.generation = 0

    def decode(self, block: bytes) -> tuple[list[Field], bool]:
        """Return the fields of a block, and whether all of them fitted.

        Raises:
            HeaderBlockError: If it cannot be read; the connection has to end.
        """
        try:
            return self._decode(block)
        except IndexError:
            raise HeaderBlockError("saw the end of a header block in mid-field") from None

    def _decode(self, block: bytes) -> tuple[list[Field], bool]:
        fields: list[Field] = []
        size_bytes = at = 0
        may_resize = True
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _read_number(block, at, 0x7F)
                field = self._entry(index)
            elif first & 0xE0 == 0x20:
                if not may_resize:
                    raise HeaderBlockError("saw a table size after a field")
                limit_bytes, at = _read_number(block, at, 0x1F)
                self._resize(limit_bytes)
                continue
            else:
                is_kept = bool(first & 0x40)
                index, at = _read_number(block, at, 0x3F if is_kept else 0x0F)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _read_string(block, at)
                value, at = _read_string(block, at)
                field = name, value
                if is_kept:
                    self._keep(field)
            may_resize = False
            size_bytes += len(field[0]) + len(field[1]) + FIELD_OVERHEAD_BYTES
            if size_bytes <= self._max_list_bytes:
                fields.append(field)
        return fields, size_bytes <= self._max_list_bytes

    def _entry(self, index: int) -> Field:
        if index == 0:
            raise HeaderBlockError("saw a reference to field 0")
        if index <= len(_STATIC):
            return _STATIC[index - 1]
        index -= len(_STATIC)
        if index > len(self._table):
            raise HeaderBlockError(f"saw a reference beyond the {len(self._table)} kept fields")
        return self._table[-index]

    def _keep(self, field: Field) -> None:
        self.generation += 1
        size_bytes = len(field[0]) + len(field[1]) + FIELD_OVERHEAD_BYTES
        self._make_room(self._max_table_bytes - size_bytes)
        if size_bytes <= self._max_table_bytes:
            self._table.append(field)
            self._table_bytes += size_bytes

    def _resize(self, limit_bytes: int) -> None:
        if limit_bytes > TABLE_BYTES:
            raise HeaderBlockError(f"saw a table size of {limit_bytes} bytes")
        self.generation += 1
        self._max_table_bytes = limit_bytes
        self._make_room(limit_bytes)

    def _make_room(self, limit_bytes: int) -> None:
        gone = 0
        while gone < len(self._table) and self._table_bytes > limit_bytes:
            name, value = self._table[gone]
            self._table_bytes -= len(name) + len(value) + FIELD_OVERHEAD_BYTES
            gone += 1
        del self._table[:gone]


def read_request_fields(fields: Iterable[Field]) -> Mapping[bytes, bytes]:
    """Return the fields of a request by name; of repeated ones the first.

    Raises:
        MalformedRequestError: If they are not those of a request.
    """
    by_name: dict[bytes, bytes] = {}
    has_plain = False
    for name, value in fields:
        if name.startswith(b":"):
            if name not in _PSEUDO_FIELDS or name in by_name or has_plain:
                raise MalformedRequestError(f"saw {name!r} where it cannot be")
        else:
            has_plain = True
            is_hop = name in _CONNECTION_FIELDS or (name == b"te" and value != b"trailers")
            if not name or is_hop or name != name.lower():
                raise MalformedRequestError(f"saw {name!r}")
        by_name.setdefault(name, value)
    if not (by_name.get(b":method") and by_name.get(b":scheme") and by_name.get(b":path")):
        raise MalformedRequestError("saw no method, scheme and path")
    return by_name


def read_content_length(by_name: Mapping[bytes, bytes]) -> int | None:
    """Return the size that a request announces; None where it announces none.

    Raises:
        MalformedRequestError: If it is no size.
    """
    text = by_name.get(b"content-length")
    if text is None:
        return None
    if not text.isdigit() or len(text) > _MAX_LENGTH_DIGITS:
        raise MalformedRequestError(f"saw a content-length of {text[:40]!r}")
    return int(text)


def encode_fields(fields: Iterable[Field]) -> bytes:
    """Return a header block that leaves the peer's table as it is."""
    block = bytearray()
    for field in fields:
        if field in _STATIC:
            block.append(0x80 | _STATIC.index(field) + 1)
            continue
        block.append(0)
        for text in field:
            block += _number(len(text), 0x7F) + text
    return bytes(block)


def _number(value: int, limit: int) -> bytes:
    if value < limit:
        return bytes((value,))
    parts = [limit]
    value -= limit
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def _read_number(block: bytes, at: int, limit: int) -> tuple[int, int]:
    """Return the number whose first bits are those of `limit`, and where it ends."""
    value = block[at] & limit
    at += 1
    if value < limit:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _MAX_NUMBER_SHIFT:
            raise HeaderBlockError("saw a number of more than 32 bits")


def _read_string(block: bytes, at: int) -> tuple[bytes, int]:
    is_huffman = block[at] & 0x80
    length, at = _read_number(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise HeaderBlockError("saw the end of a header block in mid-string")
    text = block[at:end]
    if not is_huffman:
        return text, end
    try:
        return (_remember if length <= _REMEMBERED_BYTES else decode_huffman)(text), end
    except ValueError as error:
        raise HeaderBlockError(str(error)) from error


_remember: Final = functools.lru_cache(_REMEMBERED_STRINGS)(decode_huffman)
