"""Attributes of a store's JSON text as OTLP messages again: `otel_receiver.any_value`, backwards.

A natural value is itself, an integer without a point and a double with one; an object is an AnyValue in OTLP/JSON's
form. Keys stay in their order, repeated ones too.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

__all__ = ["fill_attributes", "fill_value", "read_text"]


class _Pairs(list[Any]):
    """An object of JSON: its keys and values in order."""

    def find(self, key: str) -> Any:
        """Return the value of a key."""
        return dict(self)[key]


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_Pairs)


def read_text(text: str) -> Any:
    """Return JSON text with its objects as lists of pairs."""
    return _DECODER.decode(text)


def fill_attributes(attributes: Any, text: str) -> None:
    """Add the attributes of a JSON object to a field of KeyValue messages."""
    if text == "{}":
        return
    for key, value in read_text(text):
        fill_value(attributes.add(key=key).value, value)


def fill_value(message: Any, value: Any) -> None:
    """Write a decoded value into an AnyValue message."""
    if isinstance(value, _Pairs):
        _fill_any(message, value)
    elif isinstance(value, str):
        message.string_value = value
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int):
        message.int_value = value
    else:
        message.double_value = value


def _fill_any(message: Any, pairs: _Pairs) -> None:
    for kind, inner in pairs:
        match kind:
            case "stringValue":
                message.string_value = inner
            case "boolValue":
                message.bool_value = inner
            case "intValue":
                message.int_value = int(inner)
            case "doubleValue":
                message.double_value = float(inner)
            case "bytesValue":
                message.bytes_value = base64.b64decode(inner)
            case "arrayValue":
                message.array_value.SetInParent()
                for item in inner.find("values"):
                    _fill_any(message.array_value.values.add(), item)
            case "kvlistValue":
                message.kvlist_value.SetInParent()
                for item in inner.find("values"):
                    entry = message.kvlist_value.values.add(key=item.find("key"))
                    _fill_any(entry.value, item.find("value"))
            case _:
                message.string_value_strindex = int(inner)
