"""A pprof profile as an OTLP request, number for number: for tests that want it back."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from support.otlp_messages import any_value, key_values


def otlp_from_pprof(message: Any, column: int = 0) -> bytes:
    """Return one column of a profile's values as a request; its labels are attributes, its time is 1 s from 1 s."""
    request = ExportProfilesServiceRequest()
    tables = request.dictionary
    tables.string_table.extend(message.string_table)
    for table in ("mapping", "function", "location", "link", "attribute", "stack"):
        getattr(tables, f"{table}_table").add()
    for one in message.mapping:
        tables.mapping_table.add(
            memory_start=one.memory_start,
            memory_limit=one.memory_limit,
            file_offset=one.file_offset,
            filename_strindex=one.filename,
        )
    for one in message.function:
        tables.function_table.add(
            name_strindex=one.name,
            system_name_strindex=one.system_name,
            filename_strindex=one.filename,
            start_line=one.start_line,
        )
    functions = {one.id: number for number, one in enumerate(message.function, start=1)}
    mappings = {one.id: number for number, one in enumerate(message.mapping, start=1)}
    locations = {one.id: number for number, one in enumerate(message.location, start=1)}
    for one in message.location:
        location = tables.location_table.add(
            mapping_index=mappings.get(one.mapping_id, 0), address=one.address
        )
        for line in one.line:
            location.lines.add(function_index=functions[line.function_id], line=line.line)
    sender = request.resource_profiles.add()
    sender.resource.attributes.extend(key_values({"service.name": "pprof", "training.job.id": "j"}))
    profile = sender.scope_profiles.add().profiles.add(
        time_unix_nano=10**9, duration_nano=10**9, period=message.period
    )
    profile.sample_type.type_strindex = message.sample_type[column].type
    profile.sample_type.unit_strindex = message.sample_type[column].unit
    profile.period_type.type_strindex = message.period_type.type
    profile.period_type.unit_strindex = message.period_type.unit
    for sample in message.sample:
        tables.stack_table.add(location_indices=[locations[n] for n in sample.location_id])
        added = profile.samples.add(
            stack_index=len(tables.stack_table) - 1, values=[sample.value[column]]
        )
        for label in sample.label:
            value = message.string_table[label.str] if label.str else label.num
            tables.attribute_table.add(key_strindex=label.key, value=any_value(value))
            added.attribute_indices.append(len(tables.attribute_table) - 1)
    return bytes(request.SerializeToString())
