"""Spans by the compiled decoder: flat arrays from `wire_spans` as Arrow columns of the table span_records.

Equal to `SpanColumns`, value by value; what the compiled decoder leaves to protobuf (nested values, links, events,
requests in odd forms) goes through the same functions as there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.otel_receiver.columns import ColumnBatch, ColumnType, Scalar
from rootwalk.otel_receiver.request_checks import parse_request
from rootwalk.otel_receiver.resource_columns import RESOURCE_ATTRIBUTES, ResourceColumns
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.span_columns import (
    FIXED_TYPES,
    KINDS,
    PROMOTED_ATTRIBUTES,
    SPAN_KEY_BYTES,
    SPAN_KEY_FACTOR,
    STATUS_CODES,
    enum_name,
    render_rare,
)

__all__ = ["decode_spans_fast"]

# Bytes decoded at once: their arrays fit the processor's cache.
CHUNK_BYTES: Final = 2 * 1024 * 1024
_TABLE_SLOTS: Final = 512
# Bytes of JSON that a byte of a request becomes at most: a control character in a string.
_TEXT_EXPANSION: Final = 6


def decode_spans_fast(kernels: ModuleType, requests: list[tuple[int, bytes]]) -> ColumnBatch:
    """Return the spans of requests that protobuf has accepted; a column of which nothing is known has no type.

    Args:
        kernels: From `load_kernels`.
        requests: For each request when it was received (Unix ns) and its bytes.

    Raises:
        DecodeError: If bytes are not a trace request.
    """
    keys = _Keys(kernels)
    chunks = [_decode_chunk(kernels, keys, chunk) for chunk in _chunks(requests)]
    return chunks[0] if len(chunks) == 1 else _join(chunks)


def _chunks(requests: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield consecutive requests of `CHUNK_BYTES` and more; at least once."""
    chunk: list[tuple[int, bytes]] = []
    size_bytes = 0
    for request in requests:
        if size_bytes >= CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(request)
        size_bytes += len(request[1])
    yield chunk


def _decode_chunk(
    kernels: ModuleType, keys: _Keys, requests: list[tuple[int, bytes]]
) -> ColumnBatch:
    bodies = [body for _, body in requests]
    arrays = _Arrays(kernels, keys, bodies)
    if arrays.odd.any():
        plain = [_in_plain_form(b) if odd else b for b, odd in zip(bodies, arrays.odd, strict=True)]
        arrays = _Arrays(kernels, keys, plain)
    received = np.array([received_unix_ns for received_unix_ns, _ in requests], np.int64)
    return arrays.batch(np.repeat(received, np.diff(arrays.rows)))


def _join(chunks: list[ColumnBatch]) -> ColumnBatch:
    """Return the rows of all chunks."""
    plain = {}
    for name in chunks[0].plain:
        arrays = [chunk.plain[name] for chunk in chunks]
        types = {array.type for array in arrays if array.type != pa.null()}
        if len(types) > 1:  # an enum, in one chunk as a dictionary and in another as text
            types = {pa.string()}
        kind = types.pop() if types else pa.null()
        plain[name] = pa.chunked_array([array.cast(kind) for array in arrays], kind)
    groups = []
    grouped: dict[str, list[Scalar]] = {name: [] for name in chunks[0].grouped}
    for chunk in chunks:
        groups.append(np.asarray(chunk.groups) + len(grouped["resource"]))
        for name, column in grouped.items():
            column.extend(chunk.grouped[name])
    row_count = sum(chunk.row_count for chunk in chunks)
    return ColumnBatch(row_count, chunks[0].types, plain, np.concatenate(groups), dict(grouped))


def _in_plain_form(body: bytes) -> bytes:
    """Return a request as protobuf writes it: nothing twice that may be there once, nothing unknown."""
    request = parse_request(Signal.TRACES, body)
    request.DiscardUnknownFields()
    return bytes(request.SerializeToString())


class _Keys:
    """The names of the known attributes as the compiled decoder looks them up."""

    def __init__(self, kernels: ModuleType) -> None:
        names = [key.encode() for key in PROMOTED_ATTRIBUTES]
        self.offsets = np.cumsum([0, *(len(name) for name in names)]).astype(np.int64)
        self.names = kernels.bytes_array(*names)
        self.table = np.full(_TABLE_SLOTS, -1, np.int16)
        for number in range(len(names)):
            slot = kernels.key_hash(self.names, self.offsets[number], self.offsets[number + 1])
            while self.table[slot] >= 0:
                slot = (slot + 1) % _TABLE_SLOTS
            self.table[slot] = number
        self.columns = np.array(
            [
                kernels.COLUMNS["seconds" if name.endswith("_ns") else column_type]
                for name, column_type in PROMOTED_ATTRIBUTES.values()
            ],
            np.int64,
        )


class _Arrays:
    """What the compiled decoder fills, and the columns made of it."""

    def __init__(self, kernels: ModuleType, keys: _Keys, bodies: list[bytes]) -> None:
        self._kernels = kernels
        self._data = kernels.bytes_array(*bodies)
        requests = np.cumsum([0, *(len(body) for body in bodies)]).astype(np.int64)
        counts = [
            max(kernels.count_spans(self._data, start, end), 0)
            for start, end in itertools.pairwise(requests)
        ]
        self.rows = np.cumsum([0, *counts]).astype(np.int64)
        self.odd = np.zeros(len(bodies), np.uint8)
        size = int(self.rows[-1])
        self._starts = np.zeros((len(kernels.SLICES), size), np.int32)
        self._sizes = np.zeros((len(kernels.SLICES), size), np.int32)
        self._numbers = np.zeros((len(kernels.NUMBERS), size), np.int64)
        # Most names come in no span: memory that nothing writes to costs nothing.
        self._values = np.empty((len(PROMOTED_ATTRIBUTES), size), np.int64)
        self._lengths = np.empty((len(PROMOTED_ATTRIBUTES), size), np.int32)
        self._is_seen = np.zeros(len(PROMOTED_ATTRIBUTES), np.bool_)
        self._groups = np.empty((len(kernels.GROUPS), size), np.int64)
        self._text_offsets = np.zeros(size + 1, np.int32)
        self._text = np.empty(_TEXT_EXPANSION * self._data.size + 64, np.uint8)
        into = (
            (self._starts, self._sizes),
            self._numbers,
            (self._values, self._lengths, self._is_seen),
            self._groups,
            self._text_offsets,
            self._text,
        )
        self._group_count = kernels.decode_spans(
            self._data,
            requests,
            self.rows,
            (keys.table, keys.names, keys.offsets, keys.columns),
            into,
            self.odd,
        )

    def batch(self, received: Any) -> ColumnBatch:
        """Return the columns, with the time at which each span was received."""
        number = dict(zip(self._kernels.NUMBERS, self._numbers, strict=True))
        slices = {name: index for index, name in enumerate(self._kernels.SLICES)}
        columns: dict[str, Any] = {
            "trace_id": self._hex(slices["trace_id"]),
            "span_id": self._hex(slices["span_id"]),
            "span_key": self._span_keys(slices["trace_id"], slices["span_id"]),
            "parent_span_id": self._hex(slices["parent_span_id"]),
            "name": self._text_column(*self._slices(slices["name"])),
            "kind": _enum_column(number["kind"], KINDS),
            "start_unix_ns": _time_column(number["start_unix_ns"]),
            "end_unix_ns": _time_column(number["end_unix_ns"]),
            "status_code": _enum_column(number["status_code"], STATUS_CODES),
            "status_message": self._text_or_null(slices["status_message"]),
            "trace_state": self._text_or_null(slices["trace_state"]),
            "received_unix_ns": pa.array(received),
        }
        columns |= self._promoted_columns() | self._rare_columns(number["flags"])
        resources = self._resources()
        return ColumnBatch(
            len(received),
            FIXED_TYPES
            | dict(PROMOTED_ATTRIBUTES.values())
            | {"aggressors": ColumnType.TEXT}
            | resources.types,
            columns,
            number["group"],
            {n: v for n, v in resources.grouped.items() if n != "received_unix_ns"},
        )

    def _slices(self, index: int) -> tuple[Any, Any]:
        return self._starts[index], self._sizes[index]

    def _text_column(self, starts: Any, sizes: Any) -> Any:
        """Return slices as text; a size of -1 is none."""
        offsets = np.empty(len(starts) + 1, np.int32)
        out = np.empty(int(np.maximum(sizes, 0).sum()) + self._kernels.WORD_BYTES, np.uint8)
        self._kernels.gather(self._data, starts, sizes, offsets, out)
        return _text_array(offsets, out, sizes >= 0)

    def _text_or_null(self, index: int) -> Any:
        starts, sizes = self._slices(index)
        if not sizes.any():
            return pa.nulls(len(starts))
        return self._text_column(starts, np.where(sizes > 0, sizes, -1))

    def _hex(self, index: int) -> Any:
        starts, sizes = self._slices(index)
        offsets = np.empty(len(starts) + 1, np.int32)
        out = np.empty(2 * int(sizes.sum()) + self._kernels.WORD_BYTES, np.uint8)
        self._kernels.gather_hex(self._data, starts, sizes, offsets, out)
        return _text_array(offsets, out, sizes > 0)

    def _span_keys(self, trace_index: int, span_index: int) -> Any:
        starts, sizes = self._slices(span_index)
        keys, traces = (np.empty(len(starts), np.uint64) for _ in range(2))
        self._kernels.gather_numbers(self._data, starts, sizes, keys)
        self._kernels.gather_numbers(self._data, *self._slices(trace_index), traces)
        keys ^= traces * np.uint64(SPAN_KEY_FACTOR)
        return _number_column(keys, (sizes > 0) & (sizes <= SPAN_KEY_BYTES), pa.uint64())

    def _promoted_columns(self) -> dict[str, Any]:
        columns = {}
        for row, (name, column_type) in enumerate(PROMOTED_ATTRIBUTES.values()):
            values, lengths = self._values[row], self._lengths[row]
            if not self._is_seen[row]:
                columns[name] = pa.nulls(len(values))
            elif column_type is ColumnType.TEXT:
                columns[name] = self._text_column(values, lengths)
            elif column_type is ColumnType.BOOLEAN:
                columns[name] = pa.array(values != 0, mask=lengths < 0)
            else:
                columns[name] = _number_column(values, lengths >= 0)
        return columns

    def _rare_columns(self, flags: Any) -> dict[str, Any]:
        """Return the JSON columns, those of flagged spans from protobuf."""
        size = len(flags)
        attributes = _text_array(self._text_offsets, self._text, np.ones(size, np.bool_))
        none = pa.DictionaryArray.from_arrays(pa.array(np.zeros(size, np.int8)), pa.array(["[]"]))
        columns = {
            "attributes": attributes,
            "aggressors": pa.nulls(size),
            "links": none,
            "events": none,
        }
        flagged = np.flatnonzero(flags)
        if not len(flagged):
            return columns
        rendered = render_rare([Span.FromString(self._bytes(0, row)) for row in flagged.tolist()])
        mask = pa.array(flags != 0)
        for name, texts in rendered.items():
            column = columns[name].cast(pa.string())
            columns[name] = pc.replace_with_mask(column, mask, pa.array(texts, pa.string()))
        return columns

    def _bytes(self, index: int, row: int) -> bytes:
        start = self._starts[index, row]
        return bytes(self._data[start : start + self._sizes[index, row]])

    def _resources(self) -> ResourceColumns:
        """Return one group for each scope; those of equal resources are computed once."""
        resources = ResourceColumns(frozenset(c for c, _ in RESOURCE_ATTRIBUTES.values()))
        known: dict[tuple[bytes, bytes], tuple[Any, str]] = {}
        for group in range(self._group_count):
            resource, resource_bytes, scope, scope_bytes = self._groups[:, group]
            key = (
                bytes(self._data[resource : resource + resource_bytes]),
                bytes(self._data[scope : scope + scope_bytes]),
            )
            if key not in known:
                name = InstrumentationScope.FromString(key[1]).name
                known[key] = (Resource.FromString(key[0]), name)
            resources.append(*known[key], 0)
        return resources


def _text_array(offsets: Any, text: Any, is_known: Any) -> Any:
    buffers = [_bitmap(is_known), pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(is_known), buffers)


def _number_column(values: Any, is_known: Any, kind: Any = None) -> Any:
    buffers = [_bitmap(is_known), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind or pa.int64(), len(is_known), buffers)


def _bitmap(is_known: Any) -> Any:
    return None if is_known.all() else pa.py_buffer(np.packbits(is_known, bitorder="little"))


def _time_column(values: Any) -> Any:
    # A time beyond 2**63 is negative here, and as unknown as 0.
    return _number_column(values, values > 0)


def _enum_column(values: Any, names: tuple[str, ...]) -> Any:
    if len(values) and values.min() >= 0 and values.max() < len(names):
        return pa.DictionaryArray.from_arrays(pa.array(values.astype(np.int8)), pa.array(names))
    return pa.array([enum_name(names, int(value)) for value in values], pa.string())
