"""The tables of a request of profiles, without the entries that nothing in it refers to.

A store keeps a sender's dictionary whole. When some of its profiles are chosen, what only the others had is left out:
the format asks for no orphans, and whoever exports one rank does not hand on the names of another's functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["drop_orphans"]

# Fields that are numbers of entries, by message: of which table.
_REFERENCES: Final = {
    "Profile": {"attribute_indices": "attribute_table"},
    "Sample": {
        "stack_index": "stack_table",
        "link_index": "link_table",
        "attribute_indices": "attribute_table",
    },
    "ValueType": {"type_strindex": "string_table", "unit_strindex": "string_table"},
    "Stack": {"location_indices": "location_table"},
    "Location": {"mapping_index": "mapping_table", "attribute_indices": "attribute_table"},
    "Line": {"function_index": "function_table"},
    "Mapping": {"filename_strindex": "string_table", "attribute_indices": "attribute_table"},
    "Function": {
        "name_strindex": "string_table",
        "system_name_strindex": "string_table",
        "filename_strindex": "string_table",
    },
    "KeyValueAndUnit": {"key_strindex": "string_table", "unit_strindex": "string_table"},
    "KeyValue": {"key_strindex": "string_table"},
    "AnyValue": {"string_value_strindex": "string_table"},
}
# Each before those that it refers to.
_TABLES: Final = (
    *("stack_table", "location_table", "function_table", "mapping_table", "link_table"),
    *("attribute_table", "string_table"),
)


def drop_orphans(request: Any) -> None:
    """Leave out of a request's tables what nothing refers to, and number the rest anew; entry 0 stays."""
    tables = request.dictionary
    used: dict[str, set[int]] = {name: {0} for name in _TABLES}
    _note(request.resource_profiles, used)
    for name in _TABLES:
        entries = getattr(tables, name)
        if name != "string_table":
            _note([entries[number] for number in used[name] if number < len(entries)], used)
    numbers = {name: {old: new for new, old in enumerate(sorted(used[name]))} for name in _TABLES}
    for name in _TABLES:
        entries = getattr(tables, name)
        kept = [entry for number, entry in enumerate(entries) if number in used[name]]
        del entries[:]
        entries.extend(kept)
    for message in _messages(request):
        for field, table in _fields(message):
            found = getattr(message, field)
            if not isinstance(found, int):
                found[:] = [numbers[table].get(number, 0) for number in found]
            elif (
                found
            ):  # none stays none, and a value that is no number of an entry stays what it is
                setattr(message, field, numbers[table].get(found, 0))


def _note(entries: Any, used: dict[str, set[int]]) -> None:
    """Add the numbers that some messages refer to."""
    for entry in entries:
        for message in _messages(entry):
            for field, table in _fields(message):
                found = getattr(message, field)
                numbers = (found,) if isinstance(found, int) else found
                used[table].update(number for number in numbers if number > 0)


def _fields(message: Any) -> Iterator[tuple[str, str]]:
    yield from _REFERENCES.get(message.DESCRIPTOR.name, {}).items()


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message and all in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in [value] if hasattr(value, "DESCRIPTOR") else value:
                yield from _messages(one)
