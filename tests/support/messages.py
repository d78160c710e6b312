"""Generated protobuf messages of any type, from their descriptors."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.descriptor import (  # type: ignore[import-untyped]
    FieldDescriptor,
)
from hypothesis import strategies as st

# Deep enough for every kind of value in every place of a request; a value in a value in a value stops here.
MAX_DEPTH = 9
_ID_BYTES = {"trace_id": 16, "span_id": 8, "parent_span_id": 8, "profile_id": 16}


def messages_of(message_type: Any, depth: int = MAX_DEPTH) -> st.SearchStrategy[Any]:
    """Return messages of a type with some of their fields set, ids of the right length or empty."""
    return _fields_of(message_type.DESCRIPTOR, depth).map(lambda fields: message_type(**fields))


def _fields_of(descriptor: Any, depth: int) -> st.SearchStrategy[dict[str, Any]]:
    fields = list(descriptor.fields)
    if depth == 0:
        fields = [f for f in fields if f.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE]
    optional = {field.name: _field_values(field, depth) for field in fields}
    return st.fixed_dictionaries({}, optional=optional).map(
        lambda drawn: _one_of_each(drawn, descriptor)
    )


def _one_of_each(drawn: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    for oneof in descriptor.oneofs:
        names = [field.name for field in oneof.fields if field.name in drawn]
        for name in names[1:]:
            del drawn[name]
    return drawn


def _field_values(field: Any, depth: int) -> st.SearchStrategy[Any]:
    values = _values(field, depth)
    return st.lists(values, max_size=2) if field.default_value == [] else values


def _values(field: Any, depth: int) -> st.SearchStrategy[Any]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return st.deferred(lambda: _fields_of(field.message_type, depth - 1))
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            size = _ID_BYTES.get(field.name)
            return (
                st.binary(max_size=4) if size is None else st.binary(min_size=size, max_size=size)
            )
        case FieldDescriptor.CPPTYPE_STRING:
            return st.text(max_size=4)
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            # JSON's word for it tells one NaN only.
            return st.floats(width=64).map(lambda x: math.nan if math.isnan(x) else x)
        case FieldDescriptor.CPPTYPE_INT64:
            return st.integers(-(2**63), 2**63 - 1)
        case FieldDescriptor.CPPTYPE_UINT64:
            return st.integers(0, 2**64 - 1)
        case FieldDescriptor.CPPTYPE_UINT32:
            return st.integers(0, 2**32 - 1)
        case _:
            return st.integers(-(2**31), 2**31 - 1)
