"""The fields of a Flight Recorder dump, pickle or JSON: one that is missing or of another type is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from rootwalk.graph.importers.plain_pickle import load_plain
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["Fields", "load_dump"]

# Values of a JSON dump, as of a pickle.
_MAX_JSON_VALUES: Final = 8_000_000


class Fields:
    """A dictionary of a dump: a field that is missing or of another type is an error that says where."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, Mapping):
            raise DecodeError(f"cannot read dump: saw {_kind(value)} at {place}; needs fields")
        self._value = value
        self._place = place

    def get(self, name: str) -> Any:
        """Return a field as it is; None where it is missing."""
        return self._value.get(name)

    def text_or_none(self, name: str) -> str | None:
        """Return a text; None where there is none."""
        value = self.get(name)
        return value if isinstance(value, str) else None

    def text(self, name: str) -> str:
        """Return a text.

        Raises:
            DecodeError: If it is none.
        """
        value = self.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, value, "text")
        return value

    def integer(self, name: str) -> int:
        """Return a whole number of 63 bits.

        Raises:
            DecodeError: If it is none.
        """
        value = self.get(name)
        if not isinstance(value, int) or not 0 <= value < 1 << 63:
            raise self._wrong(name, value, "a whole number of 63 bits")
        return value

    def mapping(self, name: str) -> Mapping[Any, Any]:
        """Return fields by name.

        Raises:
            DecodeError: If it is nothing like that.
        """
        value = self.get(name)
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "fields")
        return value

    def items(self, name: str) -> list[Any]:
        """Return a list, empty where it is missing.

        Raises:
            DecodeError: If it is something else.
        """
        value = self.get(name)
        if value is None:
            return []  # JSON leaves out an empty list of entries
        if not isinstance(value, list | tuple):
            raise self._wrong(name, value, "a list")
        return list(value)

    def _wrong(self, name: str, value: Any, needed: str) -> DecodeError:
        return DecodeError(
            f"cannot read dump: saw {_kind(value)} at {self._place}.{name}; needs {needed}"
        )


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def load_dump(data: bytes) -> Any:
    """Return what a dump holds, without executing anything.

    Args:
        data: The whole file.

    Raises:
        DecodeError: If it is cut off, too large, or neither a pickle nor JSON.
    """
    if data[:1] == b"\x80":
        return load_plain(data)
    if data.lstrip()[:1] not in (b"{", b"["):
        raise DecodeError(
            f"cannot read dump: saw {data[:8]!r} at byte 0; needs a pickle or a JSON object"
        )
    if data.count(b",") + data.count(b"[") + data.count(b"{") > _MAX_JSON_VALUES:
        raise DecodeError(
            f"cannot read dump: saw more than {_MAX_JSON_VALUES} values; needs a dump of one rank"
        )
    try:
        return json.loads(data)
    except UnicodeDecodeError as error:
        raise DecodeError(
            f"cannot read dump: saw no UTF-8 at byte {error.start}; needs JSON"
        ) from error
    except json.JSONDecodeError as error:
        place = len(error.doc[: error.pos].encode("utf-8", "surrogatepass"))
        raise DecodeError(
            f"cannot read dump: saw no JSON at byte {place} ({error.msg.lower()}); needs a whole file"
        ) from error
    except (RecursionError, ValueError) as error:
        raise DecodeError(f"cannot read dump: saw {error}; needs a dump") from error
