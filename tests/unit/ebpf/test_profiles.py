"""Profiles as OTLP: every rule of the format fires on a message that breaks it, and what we build breaks none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rootwalk.instrumentation.profiles import (
    Binary,
    Frame,
    FrameKind,
    Sample,
    ValueKind,
    build_request,
)
from support.live_check import note_profiles
from support.profile_breakers import (
    BREAKERS,
    LINK,
    MAIN,
    SAMPLES,
    STEP,
    build,
    cpu_profile,
    first,
    list_numbers,
    parse,
)
from support.profile_rules import RULES, find_violations


def test_what_is_built_breaks_no_rule() -> None:
    other = cpu_profile(
        Sample((STEP,), 7),
        resource={"service.name": "rootwalk", "training.rank": 2},
        sample_type=ValueKind("off_cpu", "nanoseconds"),
        period_type=None,
        period=0,
    )
    assert find_violations(build(cpu_profile(), other)) == []


@pytest.mark.parametrize(("rule", "break_it"), BREAKERS)
def test_each_rule_fires(rule: str, break_it: Callable[[Any], object]) -> None:
    request = build()
    break_it(request)
    assert rule in {text.partition(":")[0] for text in find_violations(request)}


def test_every_rule_is_broken_by_something() -> None:
    assert {rule for rule, _ in BREAKERS} == set(RULES)


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


def test_a_binary_tells_its_build() -> None:
    frame = Frame(FrameKind.NATIVE, "run", binary=Binary("libx.so", "c0ffee"), address=64)
    request = build(cpu_profile(Sample((frame,), 1)))
    note_profiles(request)
    dictionary = request.dictionary
    told = [
        (dictionary.string_table[one.key_strindex], one.value.string_value)
        for mapping in dictionary.mapping_table
        for one in (dictionary.attribute_table[index] for index in mapping.attribute_indices)
    ]
    assert told == [("process.executable.build_id.gnu", "c0ffee")]


def test_a_frame_tells_the_package_that_it_is_installed_with() -> None:
    frame = Frame(FrameKind.CPYTHON, "forward", file="module.py", package="torch")
    request = build(cpu_profile(Sample((frame,), 1, {})))
    note_profiles(request)
    dictionary = request.dictionary
    (location,) = [one for one in dictionary.location_table if one.lines]
    told = [dictionary.attribute_table[index] for index in location.attribute_indices]
    assert {dictionary.string_table[one.key_strindex]: one.value.string_value for one in told} == {
        "profile.frame.type": "cpython",
        "training.frame.package": "torch",
    }


def test_a_negative_value_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 0 or more"):
        build_request([cpu_profile(Sample((STEP,), -1))], "rootwalk.profiles", "1")
