"""Profiles of a store as OTLP requests again: one for each dictionary, whose numbers the samples are written with.

The dictionary is the message that came, unchanged, so that a store that reads it back knows it by the same hash; where
some of its profiles are chosen, it is without what only the others had.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from rootwalk.graph.exporters.otlp_values import fill_attributes
from rootwalk.graph.exporters.profile_tables import drop_orphans
from rootwalk.graph.exporters.stored_profiles import read_dictionary
from rootwalk.otel_receiver.profile_columns import ProfileDictionary

__all__ = ["read_requests"]

_PROFILES: Final = (
    "SELECT p.received_unix_ns, p.dictionary_id, p.profile_index, p.resource, p.scope_name, p.profile_id,"
    " p.unix_ns, p.duration_ns, p.sample_type, p.unit, p.period_type, p.period_unit, p.period,"
    " p.dropped_attributes, p.payload_format, p.payload, p.attributes FROM profile_records p"
)
_SAMPLES: Final = (
    "SELECT stack_index, sample_values, times_unix_ns, trace_id, span_id, attributes FROM profile_sample_records"
    " WHERE received_unix_ns = ? AND dictionary_id = ? AND profile_index = ?"
)


def read_requests(
    connection: Any, where: str, values: list[Any], *, is_all: bool
) -> Iterator[tuple[Any, int]]:
    """Yield requests, each with its number of samples.

    Args:
        connection: To the store.
        where: Which profiles, as a condition on `p`, without values of its own.
        values: Those that it needs.
        is_all: Whether that is every profile of the store.
    """
    rows = connection.execute(
        f"{_PROFILES} WHERE {where} ORDER BY p.dictionary_id, p.received_unix_ns, p.profile_index",
        values,
    ).fetchall()
    start = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place][1] != rows[start][1]:
            request, count = _request(connection, rows[start:place])
            if not is_all:
                drop_orphans(request)
            yield request, count
            start = place


def _request(connection: Any, rows: list[tuple[Any, ...]]) -> tuple[Any, int]:
    message = read_dictionary(connection, rows[0][1])
    request = ExportProfilesServiceRequest()
    request.dictionary.CopyFrom(message)
    numbers = _Numbers(ProfileDictionary(message))
    scope_profiles: Any = None
    sender, count = None, 0
    for row in rows:
        resource, scope_name = row[3:5]
        if sender != (resource, scope_name):
            sender = resource, scope_name
            group = request.resource_profiles.add()
            fill_attributes(group.resource.attributes, resource)
            scope_profiles = group.scope_profiles.add()
            scope_profiles.scope.name = scope_name or ""
        profile = scope_profiles.profiles.add()
        _fill_profile(profile, numbers, row[5:])
        for sample in connection.execute(_SAMPLES, list(row[:3])).fetchall():
            stack, sample_values, times, trace_id, span_id, attributes = sample
            profile.samples.add(
                stack_index=stack,
                values=sample_values,
                timestamps_unix_nano=times,
                link_index=numbers.link(trace_id, span_id),
                attribute_indices=numbers.attributes(attributes),
            )
            count += 1
    return request, count


def _fill_profile(profile: Any, numbers: _Numbers, row: tuple[Any, ...]) -> None:
    identity, time, duration, kind, unit, period_kind, period_unit, period, dropped, *rest = row
    profile.profile_id = bytes.fromhex(identity or "")
    profile.time_unix_nano = time or 0
    profile.duration_nano = duration or 0
    profile.sample_type.type_strindex = numbers.string(kind)
    profile.sample_type.unit_strindex = numbers.string(unit)
    profile.period_type.type_strindex = numbers.string(period_kind)
    profile.period_type.unit_strindex = numbers.string(period_unit)
    profile.period = period or 0
    profile.dropped_attributes_count = dropped or 0
    payload_format, payload, attributes = rest
    profile.original_payload_format = payload_format or ""
    profile.original_payload = payload or b""
    profile.attribute_indices.extend(numbers.attributes(attributes))


class _Numbers:
    """The numbers under which a dictionary has things."""

    def __init__(self, dictionary: ProfileDictionary) -> None:
        self._strings: dict[str, int] = {}
        for number, string in enumerate(dictionary.strings):
            self._strings.setdefault(string, number)
        self._links: dict[tuple[str | None, str | None], int] = {(None, None): 0}
        for number, link in enumerate(dictionary.link_ids):
            self._links.setdefault(link, number)
        self._texts = dict[str, int]()
        for number, text in enumerate(dictionary.attribute_texts):
            if number:
                self._texts.setdefault(text, number)
        self._known: dict[str, list[int]] = {"{}": []}

    def string(self, text: str | None) -> int:
        """Return the number of a string; 0 for none."""
        return self._strings.get(text or "", 0)

    def link(self, trace_id: str | None, span_id: str | None) -> int:
        """Return the number of a link; 0 for none."""
        return self._links.get((trace_id, span_id), 0)

    def attributes(self, text: str) -> list[int]:
        """Return the numbers of the attributes whose JSON object this is."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._split(text, 1) or []
        return found

    def _split(self, text: str, start: int) -> list[int] | None:
        """Return the numbers of the texts from `start` on, None where they are not the dictionary's."""
        for entry, number in self._texts.items():
            if not text.startswith(entry, start):
                continue
            end = start + len(entry)
            if text[end:] == "}":
                return [number]
            rest = self._split(text, end + 1) if text[end : end + 1] == "," else None
            if rest is not None:
                return [number, *rest]
        return None
