"""Trace requests in every form that protobuf accepts, and many that it refuses: a Hypothesis strategy over wire bytes.

Encoders write one of many forms. Here fields come in any order and number, submessages are split into several that
protobuf merges, numbers are longer than they need be, and unknown fields and groups stand in between.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from hypothesis import strategies as st

from rootwalk.otel_receiver.span_columns import PROMOTED_ATTRIBUTES

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MAX_DEPTH: Final = 3

_names = st.one_of(
    st.sampled_from(sorted(PROMOTED_ATTRIBUTES)),
    st.sampled_from(
        ["training.aggressor.pids", "training.aggressor.names", "training.aggressor.times", "a", ""]
    ),
    st.text(max_size=8),
)
_numbers = st.one_of(
    st.integers(0, 300),
    st.sampled_from([2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 9223372036]),
    st.integers(0, 2**64 - 1),
)
_doubles = st.one_of(
    st.floats(width=64),
    st.integers(0, 10**10).map(lambda ns: ns / 1e9),
    st.sampled_from([0.0, -0.0, 1e15, 1e16, 1e-4, 1e-5, 5e-324, 9.3e9]),
)


@st.composite
def _varint(draw: st.DrawFn, value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    if len(out) < 9 and draw(st.integers(0, 19)) == 0:  # longer than it need be
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


@st.composite
def _field(draw: st.DrawFn, number: int, wire_type: int, content: bytes) -> bytes:
    tag = draw(_varint(number << 3 | wire_type))
    if wire_type == _BYTES:
        return tag + draw(_varint(len(content))) + content
    return tag + content


@st.composite
def _noise(draw: st.DrawFn) -> bytes:
    """Return a field that OTLP does not know, a known number with another wire type, or a group."""
    number = draw(st.sampled_from([1, 2, 5, 9, 15, 16, 40, 63, 64, 500, 2**29 - 1]))
    match draw(st.integers(0, 5)):
        case 0:
            return draw(_field(number, _VARINT, draw(_varint(draw(_numbers)))))
        case 1:
            return draw(_field(number, _FIXED_64, b"12345678"))
        case 2:
            return draw(_field(number + 2**20 if number < 64 else number, _BYTES, b"\xffxyz"))
        case 3:
            return draw(_field(number, _FIXED_32, b"1234"))
        case 4:
            inner = draw(_field(3, _VARINT, b"\x05"))
            return draw(_field(number, 3, b"")) + inner + draw(_field(number, 4, b""))
        case _:
            return b""


@st.composite
def _message(draw: st.DrawFn, fields: list[st.SearchStrategy[bytes]]) -> bytes:
    """Return fields in a drawn order, now and then one of them missing or twice, with noise in between."""
    parts: list[bytes] = []
    for field in draw(st.permutations(fields)) if draw(st.booleans()) else fields:
        times = draw(st.sampled_from([1, 1, 1, 1, 1, 1, 1, 0, 2]))
        parts.extend(draw(field) for _ in range(times))
        if draw(st.integers(0, 24)) == 0:
            parts.append(draw(_noise()))
    return b"".join(parts)


def _text(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    return strategy.map(lambda text: text.encode("utf-8", "surrogatepass"))


@st.composite
def _sub(draw: st.DrawFn, number: int, content: st.SearchStrategy[bytes]) -> bytes:
    return draw(_field(number, _BYTES, draw(content)))


@st.composite
def _number(draw: st.DrawFn, field: int, numbers: st.SearchStrategy[int]) -> bytes:
    return draw(_field(field, _VARINT, draw(_varint(draw(numbers)))))


@st.composite
def _fixed(draw: st.DrawFn, field: int) -> bytes:
    return draw(_field(field, _FIXED_64, struct.pack("<Q", draw(_numbers))))


@st.composite
def any_values(draw: st.DrawFn, depth: int = 0) -> bytes:
    """Return an AnyValue of any kind, nested or not, sometimes with two values in its oneof."""
    kinds: list[st.SearchStrategy[bytes]] = [
        _sub(1, _text(st.text(max_size=12))),
        _number(2, st.sampled_from([0, 1, 2, 2**64 - 1])),
        _number(3, _numbers),
        _doubles.flatmap(lambda number: _field(4, _FIXED_64, struct.pack("<d", number))),
        _sub(1, _text(st.text(max_size=12))),
        _number(3, _numbers),
        _sub(7, st.binary(max_size=6)),
    ]
    if depth < _MAX_DEPTH:
        items = st.lists(_sub(1, any_values(depth + 1)), max_size=3).map(b"".join)
        pairs = st.lists(_sub(1, key_values(depth + 1)), max_size=3).map(b"".join)
        kinds += [_sub(5, items), _sub(6, pairs)]
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=0, max_size=1))
    if draw(st.integers(0, 24)) == 0:
        chosen.append(draw(st.sampled_from(kinds)))
    return b"".join(draw(kind) for kind in chosen)


@st.composite
def key_values(draw: st.DrawFn, depth: int = 0) -> bytes:
    """Return a KeyValue."""
    return draw(_message([_sub(1, _text(_names)), _sub(2, any_values(depth))]))


@st.composite
def _aggressors(draw: st.DrawFn) -> bytes:
    """Return the three lists that belong together, sometimes of unequal length."""
    out = b""
    for key, field in (("pids", 3), ("names", 1), ("times", 4)):
        values = []
        for _ in range(draw(st.integers(0, 2))):
            content: Any = {
                3: _number(3, st.integers(0, 9)),
                1: _sub(1, st.just(b"x")),
                4: st.just(b"\x21" + struct.pack("<d", 0.25)),
            }[field]
            values.append(draw(_sub(1, content)))
        value = draw(_sub(5, st.just(b"".join(values))))
        name = draw(_sub(1, st.just(f"training.aggressor.{key}".encode())))
        out += draw(_sub(9, st.just(name + draw(_sub(2, st.just(value))))))
    return out


@st.composite
def spans(draw: st.DrawFn) -> bytes:
    """Return a Span with ids that are mostly right."""
    trace_id = st.one_of(st.binary(min_size=16, max_size=16), st.binary(max_size=17))
    span_id = st.one_of(st.binary(min_size=8, max_size=8), st.binary(max_size=9))
    fields: list[st.SearchStrategy[bytes]] = [
        _sub(1, trace_id),
        _sub(2, span_id),
        _sub(4, st.one_of(st.just(b""), st.binary(min_size=8, max_size=8), st.binary(max_size=9))),
        _sub(5, _text(st.text(max_size=10))),
        _number(6, st.one_of(st.integers(0, 6), _numbers)),
        _fixed(7),
        _fixed(8),
    ]
    fields += [_sub(9, key_values()) for _ in range(draw(st.integers(0, 4)))]
    if draw(st.booleans()):
        status = _message([_sub(2, _text(st.text(max_size=5))), _number(3, st.integers(0, 4))])
        fields += [_sub(15, status), _sub(3, _text(st.text(max_size=5)))]
    if draw(st.integers(0, 5)) == 0:
        event = _message([_fixed(1), _sub(2, st.just(b"e")), _sub(3, key_values())])
        link = _message(
            [_sub(1, st.binary(max_size=16)), _sub(2, st.binary(max_size=8)), _sub(4, key_values())]
        )
        fields += [_sub(11, event), _sub(13, link), _aggressors()]
    return draw(_message(fields))


@st.composite
def trace_requests(draw: st.DrawFn) -> bytes:
    """Return an ExportTraceServiceRequest."""
    resource = _message([_sub(1, key_values()) for _ in range(draw(st.integers(0, 2)))])
    scope = _message([_sub(1, _text(st.text(max_size=5)))])
    scope_spans = _message(
        [_sub(1, scope), *(_sub(2, spans()) for _ in range(draw(st.integers(0, 3))))]
    )
    resource_spans = _message([_sub(1, resource), _sub(2, scope_spans)])
    return draw(_message([_sub(1, resource_spans) for _ in range(draw(st.integers(0, 2)))]))


@st.composite
def broken(draw: st.DrawFn, request: bytes) -> bytes:
    """Return a request with a byte changed, cut off or put in."""
    if not request:
        return b"\x0a"
    place = draw(st.integers(0, len(request) - 1))
    match draw(st.integers(0, 2)):
        case 0:
            return request[:place] + bytes([draw(st.integers(0, 255))]) + request[place + 1 :]
        case 1:
            return request[:place]
        case _:
            return request[:place] + bytes([draw(st.integers(0, 255))]) + request[place:]
