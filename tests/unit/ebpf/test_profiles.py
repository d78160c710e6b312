"""Profiles as OTLP: every rule of the format fires on a message that breaks it, and what we build breaks none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.profiles.v1development.profiles_pb2 import KeyValueAndUnit, Link

from rootwalk.ebpf.profiles import (
    Binary,
    Frame,
    FrameKind,
    Profile,
    Sample,
    ValueKind,
    build_request,
)
from support.profile_rules import RULES, find_violations

LINK = (bytes(15) + b"\x07", bytes(7) + b"\x05")
LIBX = Binary("libx.so", "c0ffee")
MAIN = Frame(FrameKind.CPYTHON, "main", "train.py", line=3, first_line=1)
STEP = Frame(FrameKind.CPYTHON, "step", "train.py", line=9, first_line=8)
GEMM = Frame(FrameKind.NATIVE, "gemm", binary=LIBX, address=0x20)
BARE = Frame(FrameKind.NATIVE, None, binary=LIBX, address=0x2F)
READ = Frame(FrameKind.KERNEL, "vfs_read")
SAMPLES = (
    Sample((GEMM, STEP, MAIN), 3, {"training.phase": "forward"}, LINK),
    Sample((STEP, MAIN), 4, {"training.phase": "forward"}, LINK),
    Sample((READ, BARE, STEP, MAIN), 5),
)
CPU = ValueKind("cpu", "nanoseconds")


def cpu_profile(*samples: Sample, **changes: Any) -> Profile:
    fields: dict[str, Any] = {
        "resource": {"service.name": "rootwalk", "training.rank": 1},
        "start_unix_ns": 1000,
        "duration_ns": 50,
        "sample_type": ValueKind("samples", "count"),
        "samples": samples or SAMPLES,
        "period_type": CPU,
        "period": 10,
    }
    return Profile(**(fields | changes))


def parse(body: bytes) -> Any:
    request = ExportProfilesServiceRequest()
    request.ParseFromString(body)
    return request


def build(*profiles: Profile) -> Any:
    return parse(build_request(profiles or [cpu_profile()], "rootwalk.profiles", "1"))


def first(request: Any) -> Any:
    return request.resource_profiles[0].scope_profiles[0].profiles[0]


def test_what_is_built_breaks_no_rule() -> None:
    other = cpu_profile(
        Sample((STEP,), 7),
        resource={"service.name": "rootwalk", "training.rank": 2},
        sample_type=ValueKind("off_cpu", "nanoseconds"),
        period_type=None,
        period=0,
    )
    assert find_violations(build(cpu_profile(), other)) == []


def _repeat(request: Any, table: str) -> None:
    entries = getattr(request.dictionary, table)
    entries.append(entries[-1])


def _orphan(request: Any) -> None:
    request.dictionary.string_table.append("nobody's")


def _mapping(request: Any, begin: int, end: int) -> None:
    mapping = request.dictionary.mapping_table[1]
    mapping.memory_start, mapping.memory_limit = begin, end


def _times(request: Any, *times: int) -> None:
    profile = first(request)
    profile.period = 0
    profile.samples[0].timestamps_unix_nano.extend(times)


def _same_key(request: Any) -> None:
    phase = first(request).samples[0].attribute_indices[0]
    again = KeyValueAndUnit()
    again.CopyFrom(request.dictionary.attribute_table[phase])
    again.value.string_value = "backward"
    request.dictionary.attribute_table.append(again)
    first(request).samples[0].attribute_indices.append(phase + 1)
    first(request).samples[0].attribute_indices[1] = len(request.dictionary.attribute_table) - 1


def _key_by_number(request: Any, *, keeps_name: bool) -> None:
    pair = request.resource_profiles[0].resource.attributes[0]
    pair.key_strindex = 1
    if not keeps_name:
        pair.key = ""


def _clear_first(request: Any, field: str) -> None:
    first(request).samples[0].ClearField(field)


BREAKERS: list[tuple[str, Callable[[Any], object]]] = [
    ("resources", lambda r: r.ClearField("resource_profiles")),
    ("scopes", lambda r: r.resource_profiles[0].ClearField("scope_profiles")),
    ("profiles", lambda r: r.resource_profiles[0].scope_profiles[0].ClearField("profiles")),
    *(
        ("none first", lambda r, table=table: r.dictionary.ClearField(table))
        for table in (
            *("mapping_table", "location_table", "function_table", "link_table"),
            *("string_table", "attribute_table", "stack_table"),
        )
    ),
    ("none first", lambda r: r.dictionary.string_table.__setitem__(0, "x")),
    ("none first", lambda r: r.dictionary.link_table[0].CopyFrom(Link(trace_id=bytes(16)))),
    ("none first", lambda r: setattr(r.dictionary.location_table[0], "address", 1)),
    ("indices", lambda r: setattr(first(r).samples[0], "stack_index", 99)),
    ("indices", lambda r: setattr(first(r).samples[0], "stack_index", -1)),
    ("indices", lambda r: setattr(first(r).samples[0], "link_index", 99)),
    ("indices", lambda r: first(r).samples[0].attribute_indices.append(99)),
    ("indices", lambda r: first(r).attribute_indices.append(99)),
    ("indices", lambda r: setattr(first(r).sample_type, "type_strindex", 99)),
    ("indices", lambda r: setattr(first(r).period_type, "unit_strindex", 99)),
    ("indices", lambda r: r.dictionary.stack_table[1].location_indices.append(99)),
    ("indices", lambda r: setattr(r.dictionary.location_table[1], "mapping_index", 99)),
    ("indices", lambda r: r.dictionary.location_table[1].lines.add(function_index=99)),
    ("indices", lambda r: r.dictionary.location_table[1].attribute_indices.append(99)),
    ("indices", lambda r: setattr(r.dictionary.function_table[1], "name_strindex", 99)),
    ("indices", lambda r: setattr(r.dictionary.function_table[1], "system_name_strindex", 99)),
    ("indices", lambda r: setattr(r.dictionary.function_table[1], "filename_strindex", 99)),
    ("indices", lambda r: setattr(r.dictionary.mapping_table[1], "filename_strindex", 99)),
    ("indices", lambda r: r.dictionary.mapping_table[1].attribute_indices.append(99)),
    ("indices", lambda r: setattr(r.dictionary.attribute_table[1], "key_strindex", 99)),
    ("indices", lambda r: setattr(r.dictionary.attribute_table[1], "unit_strindex", 99)),
    (
        "indices",
        lambda r: setattr(r.dictionary.attribute_table[1].value, "string_value_strindex", 99),
    ),
    (
        "indices",
        lambda r: setattr(r.resource_profiles[0].resource.attributes[0], "key_strindex", 99),
    ),
    ("null in a list", lambda r: first(r).samples[0].attribute_indices.append(0)),
    ("null in a list", lambda r: r.dictionary.stack_table[1].location_indices.append(0)),
    ("unique keys", _same_key),
    (
        "unique keys",
        lambda r: r.resource_profiles[0].resource.attributes.add(key="service.name"),
    ),
    *(
        ("unique entries", lambda r, table=table: _repeat(r, table))
        for table in (
            *("mapping_table", "location_table", "function_table", "link_table"),
            *("string_table", "attribute_table", "stack_table"),
        )
    ),
    ("orphans", _orphan),
    ("mapping ranges", lambda r: _mapping(r, 0x100, 0x100)),
    ("addresses", lambda r: _mapping(r, 0x100, 0x200)),
    ("lines", lambda r: setattr(r.dictionary.location_table[1].lines[0], "line", -1)),
    ("lines", lambda r: setattr(r.dictionary.location_table[1].lines[0], "column", -1)),
    ("lines", lambda r: setattr(r.dictionary.function_table[1], "start_line", -1)),
    ("link ids", lambda r: setattr(r.dictionary.link_table[1], "trace_id", b"\x07")),
    ("link ids", lambda r: setattr(r.dictionary.link_table[1], "span_id", bytes(8))),
    ("something measured", lambda r: _clear_first(r, "values")),
    ("as many times", lambda r: _times(r, 1001, 1002)),
    ("one shape", lambda r: _times(r, 1001)),
    ("times inside", lambda r: _times(r, 999)),
    ("times inside", lambda r: _times(r, 1050)),
    ("joined samples", lambda r: first(r).samples.append(first(r).samples[0])),
    ("profile id", lambda r: setattr(first(r), "profile_id", bytes(16))),
    ("profile id", lambda r: setattr(first(r), "profile_id", b"\x01")),
    ("payload", lambda r: setattr(first(r), "original_payload", b"jfr")),
    ("payload", lambda r: setattr(first(r), "original_payload_format", "jfr")),
    ("one form of key", lambda r: _key_by_number(r, keeps_name=True)),
    ("resource keys", lambda r: _key_by_number(r, keeps_name=False)),
    ("one value a period", lambda r: first(r).samples[0].values.append(1)),
    ("sample type", lambda r: first(r).ClearField("sample_type")),
    ("time", lambda r: first(r).ClearField("time_unix_nano")),
]


@pytest.mark.parametrize(("rule", "break_it"), BREAKERS)
def test_each_rule_fires(rule: str, break_it: Callable[[Any], object]) -> None:
    request = build()
    break_it(request)
    assert rule in {text.partition(":")[0] for text in find_violations(request)}


def test_every_rule_is_broken_by_something() -> None:
    assert {rule for rule, _ in BREAKERS} == set(RULES)


def list_numbers(message: Any) -> list[tuple[Any, Any]]:
    """Every field that is the number of an entry, with a message that has it."""
    found = []
    for descriptor in message.DESCRIPTOR.fields:
        if descriptor.name.endswith(("_index", "_indices", "strindex")):
            found.append((message, descriptor.name))
        elif descriptor.message_type is not None:
            inner = getattr(message, descriptor.name)
            for one in inner if isinstance(inner, Sequence) else [inner]:
                found += list_numbers(one)
    return found


def test_every_number_in_the_messages_is_checked() -> None:
    """A field that is the number of an entry and that the rules do not know would pass with any value."""
    request = build()
    numbers = list_numbers(request)
    # The messages of a request have 19 such fields, by protobuf's own description of them.
    assert len({(type(message).__name__, name) for message, name in numbers}) == 19
    for index in range(len(numbers)):
        broken = parse(request.SerializeToString())
        message, name = list_numbers(broken)[index]
        if name.endswith("_indices"):
            getattr(message, name).append(99)
        else:
            setattr(message, name, 99)
        assert any(text.startswith("indices: ") for text in find_violations(broken)), name


def test_samples_of_one_identity_are_one() -> None:
    other_phase = Sample((STEP, MAIN), 2, {"training.phase": "backward"}, LINK)
    elsewhere = Sample((STEP, MAIN), 2, {"training.phase": "forward"})
    profile = first(build(cpu_profile(SAMPLES[1], SAMPLES[1], other_phase, elsewhere)))
    assert [list(sample.values) for sample in profile.samples] == [[8], [2], [2]]


def test_the_order_of_attributes_is_no_difference() -> None:
    one, two = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    profile = first(build(cpu_profile(Sample((STEP,), 1, one), Sample((STEP,), 1, two))))
    assert [list(sample.values) for sample in profile.samples] == [[2]]


def test_true_and_one_are_two_attributes() -> None:
    request = build(cpu_profile(Sample((STEP,), 1, {"a": True}), Sample((STEP,), 1, {"a": 1})))
    assert [list(sample.values) for sample in first(request).samples] == [[1], [1]]
    assert find_violations(request) == []


def test_tables_are_shared_by_the_profiles_of_a_request() -> None:
    second = cpu_profile(resource={"service.name": "rootwalk", "training.rank": 2})
    alone, both = build(cpu_profile()), build(cpu_profile(), second)
    assert both.dictionary == alone.dictionary
    assert len(both.resource_profiles) == 2


def test_profiles_of_one_sender_share_its_resource() -> None:
    off_cpu = cpu_profile(sample_type=ValueKind("off_cpu", "nanoseconds"))
    request = build(cpu_profile(), off_cpu)
    assert len(request.resource_profiles) == 1
    assert len(request.resource_profiles[0].scope_profiles[0].profiles) == 2


def test_a_profile_has_one_id_however_often_it_is_sent() -> None:
    ids = {
        first(build(cpu_profile(start_unix_ns=start))).profile_id for start in (1000, 1000, 2000)
    }
    assert len(ids) == 2


def test_nothing_measured_is_nothing_to_send() -> None:
    assert build_request([], "rootwalk.profiles", "1") == b""
    assert build_request([cpu_profile(Sample((STEP,), 0))], "rootwalk.profiles", "1") == b""


def test_a_stack_without_frames_is_stack_0() -> None:
    request = build(cpu_profile(Sample((), 1)))
    assert first(request).samples[0].stack_index == 0
    assert find_violations(request) == []


def test_a_name_that_utf8_cannot_say() -> None:
    request = build(cpu_profile(Sample((Frame(FrameKind.NATIVE, "a\udce9b"),), 1, {"k": "\udce9"})))
    assert "a?b" in request.dictionary.string_table
    assert find_violations(request) == []


@pytest.mark.parametrize("ids", [(bytes(16), LINK[1]), (LINK[0], bytes(8)), (b"\x01", b"\x02")])
def test_a_link_to_nothing_is_refused(ids: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="cannot link"):
        build_request([cpu_profile(Sample((STEP,), 1, {}, ids))], "rootwalk.profiles", "1")


def test_a_negative_value_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 0 or more"):
        build_request([cpu_profile(Sample((STEP,), -1))], "rootwalk.profiles", "1")
