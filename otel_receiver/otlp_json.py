"""OTLP/JSON to protobuf messages and back, driven by tables that are built from the message descriptors; pure.

A request is converted once, before it is journalled, so everything behind the servers sees protobuf only. Each message
type has a table from lowerCamelCase name to (field name, reader); readers turn JSON values into what the protobuf
constructor takes, which builds the whole message in C. protobuf's own json_format is not used: it reads hex ids as
base64 and silently makes 24-byte trace ids of them.

Source:
    OTLP 1.11, JSON protobuf encoding: ids as hex in any case, 64-bit integers as strings or numbers, enums as integers
    only, lowerCamelCase names only, unknown fields ignored; otherwise the ProtoJSON mapping: null is absent, bytes are
    base64 in either alphabet, NaN and the infinities are words, at most one member of a oneof.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from typing import Any, Final

import orjson
from google.protobuf.descriptor import (  # type: ignore[import-untyped]
    Descriptor,
    FieldDescriptor,
)

from rootwalk.instrumentation.errors import DecodeError

__all__ = ["build_json_message", "load_json", "read_json_message", "render_json_message"]

_HEX_FIELDS: Final = frozenset(("trace_id", "span_id", "parent_span_id"))
# The specification's base64 holds for profile ids; the Collector writes hex, which no base64 of 16 bytes can look like.
_PROFILE_ID: Final = "profile_id"
_PROFILE_ID_HEX_DIGITS: Final = 32
_INTEGER_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_INT64_TYPES: Final = frozenset((FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64))
# Twenty digits hold every 64-bit integer.
_INTEGER_TEXT: Final = re.compile(r"-?[0-9]{1,20}")
_DOUBLE_TEXT: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][-+]?[0-9]{1,4})?")
_DOUBLE_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
# So much of a wrong value is shown to its sender.
_MAX_SHOWN_CHARACTERS: Final = 40

_Reader = Callable[[Any], Any]
_readers_by_message: Final[dict[str, _Reader]] = {}


class _WrongValueError(Exception):
    """A value that its field cannot hold; `path` grows from the inside out."""

    def __init__(self, needs: str, value: object) -> None:
        super().__init__(needs)
        self.needs = needs
        self.saw = _shown(value)
        self.path: list[str] = []


def read_json_message(message_type: Any, body: bytes | bytearray) -> Any:
    """Return the protobuf message that OTLP/JSON text stands for; empty text is an empty message.

    Raises:
        DecodeError: If it is not JSON, or a field cannot hold its value; the text says where.
    """
    return build_json_message(message_type, load_json(body)) if body.strip() else message_type()


def load_json(body: bytes | bytearray) -> Any:
    """Return the value of JSON text.

    Raises:
        DecodeError: If it is not JSON.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise DecodeError(
            f"cannot read the request: saw {len(body)} bytes that are not JSON ({error}); needs OTLP/JSON"
        ) from error


def build_json_message(message_type: Any, value: Any) -> Any:
    """Return the protobuf message that a value of OTLP/JSON stands for; members that it does not know are left out.

    Raises:
        DecodeError: If a field cannot hold its value; the text says where.
    """
    try:
        return message_type(**_message_reader(message_type.DESCRIPTOR)(value))
    except _WrongValueError as error:
        path = "".join(reversed(error.path)).removeprefix(".") or "the top"
        raise DecodeError(
            f"cannot read the request: saw {error.saw} at {path}; needs {error.needs}",
            hint="OTLP/JSON writes ids in hex, enums as integers and field names in lowerCamelCase",
        ) from error
    except RecursionError as error:
        raise DecodeError(
            "cannot read the request: saw values nested too deeply; needs at most 100 messages in each other"
        ) from error


def render_json_message(message: Any) -> dict[str, Any]:
    """Return a protobuf message as OTLP/JSON's objects, without the fields that have their default value."""
    return {field.json_name: _render_field(field, value) for field, value in message.ListFields()}


def _message_reader(descriptor: Descriptor) -> _Reader:
    known = _readers_by_message.get(descriptor.full_name)
    if known is not None:
        return known
    fields: dict[str, tuple[str, _Reader]] = {}
    oneofs = [
        frozenset(f.name for f in oneof.fields)
        for oneof in descriptor.oneofs
        if len(oneof.fields) > 1
    ]

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _WrongValueError("an object", value)
        message: dict[str, Any] = {}
        for key, inner in value.items():
            field = fields.get(key)
            if field is None or inner is None:
                continue
            try:
                message[field[0]] = field[1](inner)
            except _WrongValueError as error:
                error.path.append(f".{key}")
                raise
        if oneofs and len(message) > 1:
            for members in oneofs:
                both = members & message.keys()
                if len(both) > 1:
                    raise _WrongValueError("one of them", " and ".join(sorted(both)))
        return message

    # Known before its fields are read: an AnyValue holds AnyValues.
    _readers_by_message[descriptor.full_name] = read
    for field in descriptor.fields:
        fields[field.json_name] = (field.name, _field_reader(field))
    return read


def _field_reader(field: FieldDescriptor) -> _Reader:
    read = _value_reader(field)
    if not _is_repeated(field):
        return read

    def read_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _WrongValueError("an array", value)
        items: list[Any] = []
        try:
            for item in value:
                items.append(read(item))  # noqa: PERF401 -- its length is the index of a wrong item
        except _WrongValueError as error:
            error.path.append(f"[{len(items)}]")
            raise
        return items

    return read_list


def _value_reader(field: FieldDescriptor) -> _Reader:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return _message_reader(field.message_type)
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            if field.name == _PROFILE_ID:
                return _read_profile_id
            return _read_hex if field.name in _HEX_FIELDS else _read_base64
        case FieldDescriptor.CPPTYPE_STRING:
            return _read_string
        case FieldDescriptor.CPPTYPE_BOOL:
            return _read_bool
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return _read_double
        case FieldDescriptor.CPPTYPE_ENUM:
            return _integer_reader(field, needs="an enum as an integer", takes_text=False)
        case _:
            return _integer_reader(field, needs="an integer", takes_text=True)


def _integer_reader(field: FieldDescriptor, *, needs: str, takes_text: bool) -> _Reader:
    low, high = _INTEGER_RANGES[field.cpp_type]
    needs = f"{needs} from {low} to {high}"

    def read(value: Any) -> int:
        is_text = type(value) is str and takes_text and _INTEGER_TEXT.fullmatch(value)
        is_whole = type(value) is float and value.is_integer()
        number = int(value) if is_text or is_whole else value
        if type(number) is int and low <= number <= high:
            return number
        raise _WrongValueError(needs, value)

    return read


def _read_double(value: Any) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    if type(value) is str:
        if value in _DOUBLE_WORDS:
            return _DOUBLE_WORDS[value]
        if _DOUBLE_TEXT.fullmatch(value):
            return float(value)
    raise _WrongValueError('a number, "NaN", "Infinity" or "-Infinity"', value)


def _read_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _WrongValueError("true or false", value)
    return value


def _read_string(value: Any) -> str:
    if type(value) is not str:
        raise _WrongValueError("a string", value)
    return value


def _read_hex(value: Any) -> bytes:
    try:
        # Not bytes.fromhex, which skips blanks.
        return binascii.unhexlify(value)
    except (ValueError, TypeError) as error:
        raise _WrongValueError("hex digits", value) from error


def _read_base64(value: Any) -> bytes:
    if type(value) is not str:
        raise _WrongValueError("base64", value)
    try:
        text = value.encode("ascii").translate(_URL_SAFE).rstrip(b"=")
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except ValueError as error:
        raise _WrongValueError("base64", value) from error


def _read_profile_id(value: Any) -> bytes:
    if type(value) is str and len(value) == _PROFILE_ID_HEX_DIGITS:
        return _read_hex(value)
    return _read_base64(value)


def _render_field(field: FieldDescriptor, value: Any) -> Any:
    if _is_repeated(field):
        return [_render_value(field, item) for item in value]
    return _render_value(field, value)


def _render_value(field: FieldDescriptor, value: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return render_json_message(value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value.hex() if field.name in _HEX_FIELDS else base64.b64encode(value).decode()
    if field.cpp_type in _INT64_TYPES:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _is_repeated(field: FieldDescriptor) -> bool:
    # Older versions of protobuf have `label` instead; the default of a repeated field is an empty list in all.
    return bool(field.default_value == [])


def _shown(value: object) -> str:
    text = orjson.dumps(value, default=str).decode()
    if len(text) > _MAX_SHOWN_CHARACTERS:
        text = text[:_MAX_SHOWN_CHARACTERS] + "…"
    return text
