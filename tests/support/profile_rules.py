"""Every rule that a request of profiles keeps, each with where it is from; `find_violations` names the broken ones.

Our own restatement, so that it needs no Go. Sources:

    proto      opentelemetry-proto 1.11, profiles/v1development/profiles.proto, the comments of its messages
    common     the same, common/v1/common.proto
    profcheck  sig-profiling, profcheck/check.go
    pyroscope  Pyroscope 2.2, its conversion of OTLP to pprof: what else it refuses

Where the environment variable PROFCHECK names a binary of profcheck, it judges every request beside ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Link

from support.profcheck import find_complaints

Check = Callable[[Any], Iterator[str]]
TABLES = (
    *("mapping_table", "location_table", "function_table", "link_table", "string_table"),
    *("attribute_table", "stack_table"),
)


def find_violations(body: bytes | Any) -> list[str]:
    """Return `rule: where` for all that is wrong with an export request, in bytes or as a message."""
    data = body if isinstance(body, bytes) else body.SerializeToString()
    return find_own_violations(data) + [f"profcheck: {text}" for text in find_complaints(data)]


def find_own_violations(data: bytes) -> list[str]:
    """Return what our own rules say."""
    request = ExportProfilesServiceRequest()
    request.ParseFromString(data)
    return [f"{rule}: {where}" for rule, check in RULES.items() for where in check(request)]


def list_profiles(request: Any) -> Iterator[tuple[str, Any]]:
    for r, sender in enumerate(request.resource_profiles):
        for s, scope in enumerate(sender.scope_profiles):
            for p, profile in enumerate(scope.profiles):
                yield f"profile {r}.{s}.{p}", profile


def list_samples(request: Any) -> Iterator[tuple[str, Any, Any]]:
    for where, profile in list_profiles(request):
        for n, sample in enumerate(profile.samples):
            yield f"{where} sample {n}", profile, sample


def list_attribute_indices(request: Any) -> Iterator[tuple[str, Sequence[int]]]:
    """Everything that refers to attributes of the dictionary."""
    for where, profile in list_profiles(request):
        yield where, profile.attribute_indices
    for where, _, sample in list_samples(request):
        yield where, sample.attribute_indices
    for name in ("mapping_table", "location_table"):
        for n, entry in enumerate(getattr(request.dictionary, name)):
            yield f"{name}[{n}]", entry.attribute_indices


def list_values(request: Any) -> Iterator[tuple[str, Any]]:
    """Every `AnyValue` that is not inside another one."""
    for n, entry in enumerate(request.dictionary.attribute_table):
        yield f"attribute_table[{n}]", entry.value
    for where, pair in list_pairs(request):
        yield where, pair.value


def list_pairs(request: Any) -> Iterator[tuple[str, Any]]:
    """Attributes that are not in the dictionary: of resources and scopes."""
    for r, sender in enumerate(request.resource_profiles):
        for pair in sender.resource.attributes:
            yield f"resource {r}", pair
        for s, scope in enumerate(sender.scope_profiles):
            for pair in scope.scope.attributes:
                yield f"scope {r}.{s}", pair


def list_references(request: Any) -> Iterator[tuple[str, str, int]]:
    """Every number of an entry: where it is, of which table, which."""
    tables = request.dictionary
    for where, indices in list_attribute_indices(request):
        yield from ((where, "attribute_table", number) for number in indices)
    for where, profile in list_profiles(request):
        for kind in (profile.sample_type, profile.period_type):
            yield where, "string_table", kind.type_strindex
            yield where, "string_table", kind.unit_strindex
    for where, _, sample in list_samples(request):
        yield where, "stack_table", sample.stack_index
        yield where, "link_table", sample.link_index
    for n, stack in enumerate(tables.stack_table):
        yield from ((f"stack {n}", "location_table", number) for number in stack.location_indices)
    for n, location in enumerate(tables.location_table):
        yield f"location {n}", "mapping_table", location.mapping_index
        for line in location.lines:
            yield f"location {n}", "function_table", line.function_index
    for n, function in enumerate(tables.function_table):
        yield f"function {n}", "string_table", function.name_strindex
        yield f"function {n}", "string_table", function.system_name_strindex
        yield f"function {n}", "string_table", function.filename_strindex
    for n, mapping in enumerate(tables.mapping_table):
        yield f"mapping {n}", "string_table", mapping.filename_strindex
    for n, attribute in enumerate(tables.attribute_table):
        yield f"attribute {n}", "string_table", attribute.key_strindex
        yield f"attribute {n}", "string_table", attribute.unit_strindex
    for where, pair in list_pairs(request):
        yield where, "string_table", pair.key_strindex
    for where, value in list_values(request):
        yield where, "string_table", value.string_value_strindex


def _has_resources(request: Any) -> Iterator[str]:
    if not request.resource_profiles:
        yield "no resource"


def _has_scopes(request: Any) -> Iterator[str]:
    for r, sender in enumerate(request.resource_profiles):
        if not sender.scope_profiles:
            yield f"resource {r} has no scope"


def _has_profiles(request: Any) -> Iterator[str]:
    for r, sender in enumerate(request.resource_profiles):
        for s, scope in enumerate(sender.scope_profiles):
            if not scope.profiles:
                yield f"scope {r}.{s} has no profile"


def _begins_with_none(request: Any) -> Iterator[str]:
    for name in TABLES:
        table = getattr(request.dictionary, name)
        if not table:
            yield f"{name} is empty"
        elif table[0] != (type(table[0])() if name != "string_table" else ""):
            yield f"{name} begins with {str(table[0]).strip()!r}"


def _is_in_range(request: Any) -> Iterator[str]:
    for where, name, number in list_references(request):
        count = len(getattr(request.dictionary, name))
        if not 0 <= number < count:
            yield f"{where} refers to {name}[{number}] of {count}"


def _refers_to_something(request: Any) -> Iterator[str]:
    for where, indices in list_attribute_indices(request):
        if 0 in indices:
            yield f"{where} has attribute 0"
    for n, stack in enumerate(request.dictionary.stack_table):
        if 0 in stack.location_indices:
            yield f"stack {n} has location 0"


def _has_unique_keys(request: Any) -> Iterator[str]:
    tables = request.dictionary
    for where, indices in list_attribute_indices(request):
        known = [number for number in indices if 0 <= number < len(tables.attribute_table)]
        keys = [tables.attribute_table[number].key_strindex for number in known]
        if len(set(keys)) < len(keys):
            yield where
    for r, sender in enumerate(request.resource_profiles):
        names = [pair.key for pair in sender.resource.attributes]
        if len(set(names)) < len(names):
            yield f"resource {r}"


def _has_unique_entries(request: Any) -> Iterator[str]:
    tables = request.dictionary
    for name in TABLES:
        table = getattr(tables, name)
        entries = (
            list(table)
            if name == "string_table"
            else [entry.SerializeToString(deterministic=True) for entry in table]
        )
        for n, entry in enumerate(entries):
            if entry in entries[:n]:
                yield f"{name}[{n}] is there before"


def _has_no_orphans(request: Any) -> Iterator[str]:
    used = {(name, number) for _, name, number in list_references(request)}
    for name in TABLES:
        for number in range(1, len(getattr(request.dictionary, name))):
            if (name, number) not in used:
                yield f"{name}[{number}]"


def _has_mapping_ranges(request: Any) -> Iterator[str]:
    for n, mapping in enumerate(request.dictionary.mapping_table):
        begin, end = mapping.memory_start, mapping.memory_limit
        if (begin or end) and begin >= end:
            yield f"mapping {n}: {begin:#x} to {end:#x}"


def _has_addresses_in_mappings(request: Any) -> Iterator[str]:
    mappings = request.dictionary.mapping_table
    for n, location in enumerate(request.dictionary.location_table):
        if not 0 < location.mapping_index < len(mappings) or not location.address:
            continue
        mapping = mappings[location.mapping_index]
        begin, end = mapping.memory_start, mapping.memory_limit
        if end and not begin <= location.address <= end:
            yield f"location {n}"


def _has_no_negative_lines(request: Any) -> Iterator[str]:
    for n, location in enumerate(request.dictionary.location_table):
        if any(line.line < 0 or line.column < 0 for line in location.lines):
            yield f"location {n}"
    for n, function in enumerate(request.dictionary.function_table):
        if function.start_line < 0:
            yield f"function {n}"


def _has_link_ids(request: Any) -> Iterator[str]:
    for n, link in enumerate(request.dictionary.link_table[1:], start=1):
        if (len(link.trace_id), len(link.span_id)) != (16, 8):
            yield f"link {n} has ids of {len(link.trace_id)} and {len(link.span_id)} bytes"
        elif not (any(link.trace_id) and any(link.span_id)) and link != Link():
            yield f"link {n} has an id of zeros"


def _has_something(request: Any) -> Iterator[str]:
    for where, _, sample in list_samples(request):
        if not sample.values and not sample.timestamps_unix_nano:
            yield where


def _has_a_value_a_time(request: Any) -> Iterator[str]:
    for where, _, sample in list_samples(request):
        values, times = len(sample.values), len(sample.timestamps_unix_nano)
        if values and times and values != times:
            yield f"{where}: {values} values, {times} times"


def _has_one_value_without_times(request: Any) -> Iterator[str]:
    for where, _, sample in list_samples(request):
        if len(sample.values) > 1 and not sample.timestamps_unix_nano:
            yield f"{where}: {len(sample.values)} values"


def _has_one_shape(request: Any) -> Iterator[str]:
    for where, profile in list_profiles(request):
        shapes = {(bool(s.values), bool(s.timestamps_unix_nano)) for s in profile.samples}
        if len(shapes) > 1:
            yield where


def _has_times_inside(request: Any) -> Iterator[str]:
    for where, profile, sample in list_samples(request):
        end = profile.time_unix_nano + profile.duration_nano
        if any(not profile.time_unix_nano <= time < end for time in sample.timestamps_unix_nano):
            yield where


def _has_joined_samples(request: Any) -> Iterator[str]:
    for where, profile in list_profiles(request):
        keys = [
            (s.stack_index, frozenset(s.attribute_indices), s.link_index) for s in profile.samples
        ]
        if len(set(keys)) < len(keys):
            yield where


def _has_a_profile_id(request: Any) -> Iterator[str]:
    for where, profile in list_profiles(request):
        if profile.profile_id and (len(profile.profile_id) != 16 or not any(profile.profile_id)):
            yield where


def _has_a_payload_format(request: Any) -> Iterator[str]:
    for where, profile in list_profiles(request):
        if bool(profile.original_payload) != bool(profile.original_payload_format):
            yield where


def _has_one_form_of_key(request: Any) -> Iterator[str]:
    for where, pair in list_pairs(request):
        if bool(pair.key) == bool(pair.key_strindex):
            yield f"{where}: {pair.key!r} and {pair.key_strindex}"


def _has_resource_keys_in_full(request: Any) -> Iterator[str]:
    for where, pair in list_pairs(request):
        if pair.key_strindex:
            yield where


def _has_one_value_a_period(request: Any) -> Iterator[str]:
    for where, profile, sample in list_samples(request):
        if profile.period and len(sample.values) != 1:
            yield f"{where}: {len(sample.values)} values"


def _has_sample_types(request: Any) -> Iterator[str]:
    for where, profile in list_profiles(request):
        if not (profile.sample_type.type_strindex and profile.sample_type.unit_strindex):
            yield where


def _has_times(request: Any) -> Iterator[str]:
    for where, profile in list_profiles(request):
        if not profile.time_unix_nano:
            yield where


RULES: dict[str, Check] = {
    # profcheck: "resource profiles are empty", "has no scope profiles", "has no profiles".
    "resources": _has_resources,
    "scopes": _has_scopes,
    "profiles": _has_profiles,
    # proto, ProfilesDictionary: the element at index 0 MUST be the zero value and present; profcheck, checkZeroVal.
    "none first": _begins_with_none,
    # proto, Profile: for every index there MUST be a unique element; profcheck, checkIndex.
    "indices": _is_in_range,
    # proto, ProfilesDictionary: 0 is null, so in a list of numbers it names nothing.
    "null in a list": _refers_to_something,
    # proto, attribute_table: referencing fields MUST maintain key uniqueness; common: keys MUST be unique;
    # profcheck, checkAttributeIndices.
    "unique keys": _has_unique_keys,
    # proto, ProfilesDictionary: there SHOULD NOT be duplicate items; profcheck -check-dupes.
    "unique entries": _has_unique_entries,
    # proto, ProfilesDictionary: there SHOULD NOT be orphaned items; profcheck -check-orphans.
    "orphans": _has_no_orphans,
    # profcheck, checkMappingTable: both zero or start < limit.
    "mapping ranges": _has_mapping_ranges,
    # proto, Location.address: SHOULD be within the mapping.
    "addresses": _has_addresses_in_mappings,
    # profcheck, checkNonNegative.
    "lines": _has_no_negative_lines,
    # proto, Link: 16-byte and 8-byte arrays; profcheck, checkLinkTable. trace.proto, Span: all zeros are no id.
    "link ids": _has_link_ids,
    # proto, Sample: MUST have at least one entry in values or timestamps; profcheck, checkSample.
    "something measured": _has_something,
    # proto, Sample: both MUST contain the same number of elements; profcheck, checkSample.
    "as many times": _has_a_value_a_time,
    # profcheck, checkSample: without times a sample is one sum.
    "one value without times": _has_one_value_without_times,
    # proto, Sample: all samples of a profile SHOULD have the same shape; profcheck -check-sample-shapes.
    "one shape": _has_one_shape,
    # proto, Sample.timestamps_unix_nano: SHOULD fall within the profile's time; profcheck, checkSample.
    "times inside": _has_times_inside,
    # proto, Sample: samples of one identity SHOULD be combined.
    "joined samples": _has_joined_samples,
    # proto, Profile.profile_id: 16 bytes, all zeros are invalid.
    "profile id": _has_a_profile_id,
    # proto, Profile.original_payload: set together with its format or both unset.
    "payload": _has_a_payload_format,
    # common, KeyValue: key_strindex MUST NOT be set if key is used, and the reverse.
    "one form of key": _has_one_form_of_key,
    # pyroscope: resource attributes have their key inline.
    "resource keys": _has_resource_keys_in_full,
    # pyroscope: with a period set, a sample has one value.
    "one value a period": _has_one_value_a_period,
    # proto, Profile.sample_type: the type and unit of all values; pyroscope names the profile by it.
    "sample type": _has_sample_types,
    # proto, Profile.time_unix_nano: time of collection, which our store orders by.
    "time": _has_times,
}
