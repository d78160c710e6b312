"""Profiles of decoded profiles requests as columns of the profile tables.

A request has one dictionary, and everything in it is a number of one of the dictionary's tables. Names, attributes and
links are resolved here, once an entry; stacks stay lists of location numbers, because most are never looked at:
folding all of them costs seventy times what parsing the request costs. The view profile_samples folds those that a
query asks for.

The dictionary is kept whole as compressed bytes too: mappings, system names and columns have no column of their own.

Source:
    opentelemetry-proto 1.10, profiles/v1development: entry 0 of each table means none, a stack lists its leaf first,
    the lines of a location their innermost function first. otel.md section 9 for the three forms of an attribute.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rootwalk.otel_receiver.any_value import json_string, json_value
from rootwalk.otel_receiver.columns import ColumnBatch, ColumnType, Value
from rootwalk.otel_receiver.resource_columns import SENDER_COLUMNS, ResourceColumns
from rootwalk.otel_receiver.span_columns import MAX_BIGINT, unix_ns

__all__ = ["ProfileColumns", "ProfileDictionary"]

_PROFILE_TYPES: Final[dict[str, ColumnType]] = {
    "dictionary_id": ColumnType.TEXT,
    "profile_index": ColumnType.BIGINT,
    "profile_id": ColumnType.TEXT,
    "unix_ns": ColumnType.BIGINT,
    "duration_ns": ColumnType.BIGINT,
    "sample_type": ColumnType.TEXT,
    "unit": ColumnType.TEXT,
    "period_type": ColumnType.TEXT,
    "period_unit": ColumnType.TEXT,
    "period": ColumnType.BIGINT,
    "sample_count": ColumnType.BIGINT,
    "dropped_attributes": ColumnType.BIGINT,
    "payload_format": ColumnType.TEXT,
    "payload": ColumnType.BLOB,
    "attributes": ColumnType.TEXT,
}
_SAMPLE_TYPES: Final[dict[str, ColumnType]] = {
    "received_unix_ns": ColumnType.BIGINT,
    "dictionary_id": ColumnType.TEXT,
    "profile_index": ColumnType.BIGINT,
    "stack_index": ColumnType.BIGINT,
    "sample_values": ColumnType.BIGINTS,
    "times_unix_ns": ColumnType.BIGINTS,
    "trace_id": ColumnType.TEXT,
    "span_id": ColumnType.TEXT,
    "attributes": ColumnType.TEXT,
}
_DICTIONARY_TYPES: Final[dict[str, ColumnType]] = {
    "dictionary_id": ColumnType.TEXT,
    "data": ColumnType.BLOB,
}
_STACK_TYPES: Final[dict[str, ColumnType]] = {
    "dictionary_id": ColumnType.TEXT,
    "stack_index": ColumnType.BIGINT,
    "location_indices": ColumnType.BIGINTS,
}
_LOCATION_TYPES: Final[dict[str, ColumnType]] = {
    "dictionary_id": ColumnType.TEXT,
    "location_index": ColumnType.BIGINT,
    "frames": ColumnType.TEXT,
}
_TABLES: Final = {
    "profile_records": _PROFILE_TYPES,
    "profile_sample_records": _SAMPLE_TYPES,
    "profile_dictionaries": _DICTIONARY_TYPES,
    "profile_stacks": _STACK_TYPES,
    "profile_locations": _LOCATION_TYPES,
}
_DICTIONARY_ID_BYTES: Final = 16


class ProfileDictionary:
    """One request's dictionary; a number that it lacks means none.

    Attributes:
        message: As it was sent, but for values that are numbers of strings, which become text.
        strings: Its strings.
        data: The bytes that it was sent as.
        id: A hash of them.
        attribute_texts: Key and value of each attribute, as they are in a JSON object.
        link_ids: Trace id and span id of each link.
    """

    def __init__(self, message: Any) -> None:
        self.message = message
        self.strings: list[str] = list(message.string_table)
        self.data = message.SerializeToString()
        self.id = hashlib.blake2b(self.data, digest_size=_DICTIONARY_ID_BYTES).hexdigest()
        self.attribute_texts = [self._attribute(entry) for entry in message.attribute_table]
        self._objects: dict[tuple[int, ...], str] = {}
        self.link_ids = [_link_ids(link) for link in message.link_table]

    def string(self, index: int) -> str | None:
        """Return a string; None for number 0 and for one that is not there."""
        return (self.strings[index] or None) if 0 <= index < len(self.strings) else None

    def attributes(self, indices: Iterable[int]) -> str:
        """Return attributes as one JSON object."""
        key = tuple(indices)
        text = self._objects.get(key)
        if text is None:
            known = [self.attribute_texts[i] for i in key if 0 < i < len(self.attribute_texts)]
            text = self._objects[key] = "{" + ",".join(known) + "}"
        return text

    def link(self, index: int) -> tuple[str | None, str | None]:
        """Return the trace id and span id of a link."""
        return self.link_ids[index] if 0 < index < len(self.link_ids) else (None, None)

    def frames(self, location: Any) -> str:
        """Return the functions at a location, outermost first; without any the file and address that it is."""
        names = [self._function(line.function_index) for line in reversed(location.lines)]
        if not names:
            mappings = self.message.mapping_table
            index = location.mapping_index
            mapping = mappings[index] if 0 < index < len(mappings) else None
            file = None if mapping is None else self.string(mapping.filename_strindex)
            names = [f"{(file or '').rpartition('/')[2]}+0x{location.address:x}"]
        return ";".join([name.replace(";", ":") for name in names])

    def fill_in(self, attributes: Iterable[Any]) -> None:
        """Write the text into resource or scope attributes that are numbers of strings."""
        for attribute in attributes:
            if attribute.key_strindex and not attribute.key:
                attribute.key = self.string(attribute.key_strindex) or ""
            self._fill_in_value(attribute.value)

    def _attribute(self, entry: Any) -> str:
        self._fill_in_value(entry.value)
        return f"{json_string(self.string(entry.key_strindex) or '')}:{json_value(entry.value)}"

    def _fill_in_value(self, value: Any) -> None:
        kind = value.WhichOneof("value")
        if kind == "string_value_strindex":
            value.string_value = self.string(value.string_value_strindex) or ""
        elif kind == "array_value":
            for item in value.array_value.values:
                self._fill_in_value(item)
        elif kind == "kvlist_value":
            self.fill_in(value.kvlist_value.values)

    def _function(self, index: int) -> str:
        functions = self.message.function_table
        function = functions[index] if 0 < index < len(functions) else None
        return (function and self.string(function.name_strindex)) or "unknown"


class ProfileColumns:
    """Columns under construction; `append_request` any number of times, then `batches`."""

    __slots__ = ("_columns", "_counts", "_groups", "_known", "_resources")

    def __init__(self) -> None:
        self._resources = ResourceColumns(SENDER_COLUMNS)
        self._groups: list[int] = []
        self._columns: dict[str, dict[str, list[Value]]] = {
            table: {name: [] for name in types} for table, types in _TABLES.items()
        }
        self._known: set[str] = set()
        # Profiles so far of a (time, dictionary): with it they are the key that joins samples to their profile.
        self._counts: Counter[tuple[int, str]] = Counter()

    def append_request(self, request: Any, received_unix_ns: int) -> None:
        """Add every profile of a decoded profiles request that was received at that time."""
        dictionary = ProfileDictionary(request.dictionary)
        if dictionary.id not in self._known:
            self._known.add(dictionary.id)
            self._append_dictionary(dictionary)
        for resource_profiles in request.resource_profiles:
            dictionary.fill_in(resource_profiles.resource.attributes)
            for scope_profiles in resource_profiles.scope_profiles:
                group = self._resources.append(
                    resource_profiles.resource, scope_profiles.scope.name, received_unix_ns
                )
                for profile in scope_profiles.profiles:
                    self._groups.append(group)
                    self._append_profile(dictionary, profile, received_unix_ns)

    def batches(self) -> dict[str, ColumnBatch]:
        """Return what was added, by table."""
        batches = {
            table: ColumnBatch(len(columns["dictionary_id"]), _TABLES[table], dict(columns))
            for table, columns in self._columns.items()
        }
        profiles = batches["profile_records"]
        batches["profile_records"] = ColumnBatch(
            profiles.row_count,
            _PROFILE_TYPES | self._resources.types,
            profiles.plain,
            self._groups,
            dict(self._resources.grouped),
        )
        return batches

    def _append_dictionary(self, dictionary: ProfileDictionary) -> None:
        message = dictionary.message
        self._append("profile_dictionaries", dictionary.id, zlib.compress(dictionary.data, 1))
        for index, stack in enumerate(message.stack_table):
            self._append("profile_stacks", dictionary.id, index, list(stack.location_indices))
        for index, location in enumerate(message.location_table):
            self._append("profile_locations", dictionary.id, index, dictionary.frames(location))

    def _append_profile(
        self, dictionary: ProfileDictionary, profile: Any, received_unix_ns: int
    ) -> None:
        key = (received_unix_ns, dictionary.id)
        index = self._counts[key]
        self._counts[key] += 1
        sample_type, period_type = profile.sample_type, profile.period_type
        self._append(
            "profile_records",
            dictionary.id,
            index,
            profile.profile_id.hex() if any(profile.profile_id) else None,
            unix_ns(profile.time_unix_nano),
            min(profile.duration_nano, MAX_BIGINT),
            dictionary.string(sample_type.type_strindex),
            dictionary.string(sample_type.unit_strindex),
            dictionary.string(period_type.type_strindex),
            dictionary.string(period_type.unit_strindex),
            profile.period,
            len(profile.samples),
            profile.dropped_attributes_count,
            profile.original_payload_format or None,
            profile.original_payload or None,
            dictionary.attributes(profile.attribute_indices),
        )
        for sample in profile.samples:
            self._append(
                "profile_sample_records",
                received_unix_ns,
                dictionary.id,
                index,
                sample.stack_index,
                list(sample.values),
                [time for time in sample.timestamps_unix_nano if time <= MAX_BIGINT],
                *dictionary.link(sample.link_index),
                dictionary.attributes(sample.attribute_indices),
            )

    def _append(self, table: str, *values: Value) -> None:
        for column, value in zip(self._columns[table].values(), values, strict=True):
            column.append(value)


def _link_ids(link: Any) -> tuple[str | None, str | None]:
    ids: Sequence[bytes] = (link.trace_id, link.span_id)
    trace_id, span_id = (value.hex() if any(value) else None for value in ids)
    return trace_id, span_id
