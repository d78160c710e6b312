"""What an agent makes of stacks: profiles that keep every rule, of the right rank, phase and step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from rootwalk.ebpf.agent_profiles import AgentProfiles, build_profiles
from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.stacks.reader import StackSample, Waker
from rootwalk.ebpf.stacks.records import StackFlag, StackKind
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.identity import Identity
from rootwalk.instrumentation.profiles import Frame, FrameKind, build_request
from support.profile_rules import find_violations, list_samples
from support.rank_identities import identity

LEAF = Frame(FrameKind.CPYTHON, "Net.forward", file="net.py", first_line=3)
KERNEL = Frame(FrameKind.KERNEL, "futex_do_wait")
PERIOD_NS = 10_101_010


@dataclass
class FakeRank:
    """A rank whose step 0 is all time below 1,000 ns, its forward below 500, with a collective from 400 to 600."""

    identity: Identity
    asked: list[int] = field(default_factory=list)

    def context_of(self, mono_ns: int) -> tuple[bytes, bytes] | None:
        self.asked.append(mono_ns)
        return (b"\1" * 16, b"\2" * 8) if mono_ns < 1000 else None

    def phase_of(self, mono_ns: int) -> str | None:
        return "forward" if mono_ns < 500 else None

    def collective_of(self, mono_ns: int) -> str | None:
        return "all_reduce" if 400 <= mono_ns < 600 else None


def sample(mono_ns: int, *frames: Frame, slot: int = 1, **changes: Any) -> StackSample:
    whole = StackSample(
        7, 7, slot, StackKind.ON_CPU, StackFlag.FIRST_THREAD, mono_ns, frames or (LEAF,), 1, 0
    )
    return whole._replace(**changes)


def request_of(*samples: StackSample) -> Any:
    ranks = {slot: FakeRank(identity(slot - 1)) for slot in (1, 2)}
    body = build_request(build_profiles(samples, ranks, (0, 5_000_000_000), PERIOD_NS), "s", "1")
    assert find_violations(body) == []
    request = ExportProfilesServiceRequest()
    request.ParseFromString(body)
    return request


def texts(request: Any, entry: Any) -> dict[str, str]:
    tables = request.dictionary
    found = [tables.attribute_table[n] for n in entry.attribute_indices]
    return {tables.string_table[one.key_strindex]: one.value.string_value for one in found}


def test_a_wait_has_who_ended_it_by_a_harmless_name() -> None:
    wait = {"kind": StackKind.OFF_CPU, "number": 2, "time_ns": 20}
    request = request_of(
        sample(10, **wait, waker=Waker(7, 9, "alice-upload")),
        sample(10, **wait, waker=Waker(8, 8, "pt_data_worker")),
        sample(10, **wait),
    )
    (profile,) = request.resource_profiles[0].scope_profiles[0].profiles
    tables = request.dictionary
    told = []
    for one in profile.samples:
        pairs = [tables.attribute_table[n] for n in one.attribute_indices]
        values = {tables.string_table[p.key_strindex]: p.value for p in pairs}
        waker = {k.removeprefix("training.waker."): v for k, v in values.items() if "waker" in k}
        told.append((waker["name"].string_value, waker["pid"].int_value) if waker else None)
    assert told == [("thread-f236822f", 7), ("pt_data_worker", 8), None]


def test_what_ran_and_what_waited_are_profiles_of_their_own() -> None:
    request = request_of(
        sample(10),
        sample(20, number=3),
        sample(30, KERNEL, LEAF, kind=StackKind.OFF_CPU, time_ns=5_000_000),
    )
    profiles = request.resource_profiles[0].scope_profiles[0].profiles
    words = request.dictionary.string_table
    kinds = [words[one.sample_type.type_strindex] for one in profiles]
    assert kinds == ["samples", "off_cpu"]
    assert [one.period for one in profiles] == [PERIOD_NS, 0]
    assert [list(one.samples[0].values) for one in profiles] == [[4], [5_000_000]]


def test_what_the_training_thread_waits_in_collectives_is_a_profile_of_its_own() -> None:
    wait = {"kind": StackKind.OFF_CPU, "time_ns": 20}
    request = request_of(
        sample(389, KERNEL, LEAF, **wait),  # its middle is before
        sample(390, KERNEL, LEAF, **wait),
        sample(589, KERNEL, LEAF, **wait),
        sample(560, KERNEL, LEAF, **wait | {"number": 2, "time_ns": 100}),  # two of 50 ns each
        sample(590, KERNEL, LEAF, **wait),  # behind
        sample(450, LEAF),
        sample(450, KERNEL, LEAF, flags=StackFlag(0), **wait),
        sample(450, KERNEL, LEAF, flags=StackFlag.CHILD | StackFlag.FIRST_THREAD, **wait),
    )
    words = request.dictionary.string_table
    (found,) = (
        one
        for one in request.resource_profiles[0].scope_profiles[0].profiles
        if words[one.sample_type.type_strindex] == "collective_wait"
    )
    assert words[found.sample_type.unit_strindex] == "nanoseconds"
    assert words[found.period_type.type_strindex] == "collective_wait"
    told = [(texts(request, one), list(one.values)) for one in found.samples]
    common = {"training.thread.role": "main", "collective.operation": "all_reduce"}
    assert told == [
        (common | {"training.phase": "forward"}, [20]),
        (common, [120]),
    ]


def test_samples_are_told_apart_by_phase_step_and_kind_of_thread() -> None:
    request = request_of(
        sample(10),
        sample(600),
        sample(2000),
        sample(10, flags=StackFlag.CHILD | StackFlag.FIRST_THREAD),
        sample(10, flags=StackFlag(0)),
    )
    seen = {
        (
            texts(request, one)["training.thread.role"],
            texts(request, one).get("training.phase"),
            one.link_index,
        )
        for _, _, one in list_samples(request)
    }
    assert seen == {
        ("main", "forward", 1),
        ("main", None, 1),
        ("main", None, 0),
        ("loader_worker", "forward", 1),
        ("other", "forward", 1),
    }


def test_ranks_have_resources_of_their_own_and_strangers_are_left_out() -> None:
    request = request_of(sample(10), sample(10, slot=2), sample(10, slot=9))
    ranks = [
        next(
            pair.value.int_value for pair in one.resource.attributes if pair.key == "training.rank"
        )
        for one in request.resource_profiles
    ]
    assert ranks == [0, 1]


def test_nothing_is_sent_of_nothing() -> None:
    assert build_request(build_profiles([], {}, (0, 1), PERIOD_NS), "s", "1") == b""


class FakeReader:
    """Stands for the loaded program."""

    is_filling = False

    def __init__(self, hz: int) -> None:
        self.hz = self.rate_hz = hz
        self.left_out: frozenset[int] = frozenset()
        self.watched: list[tuple[int, int]] = []

    def watch(self, pid: int, slot: int) -> None:
        self.watched.append((pid, slot))

    def choose(self, hz: int, left_out: frozenset[int]) -> None:
        self.hz, self.left_out = hz, left_out

    def lower(self, rung: int) -> None:
        self.rate_hz = self.hz >> rung

    def take(self) -> list[StackSample]:
        return []

    def losses(self) -> dict[str, int]:
        return {"bpf_stacks_full": 3}


class FakeReaders:
    """Opens one fake reader; or refuses."""

    def __init__(self, reader: FakeReader | None) -> None:
        self.reader = reader
        self.opened = 0
        self.closed: list[FakeReader] = []

    def open_more(self, _make: Any) -> FakeReader:
        self.opened += 1
        if self.reader is None:
            raise UnavailableError("cannot load: no", reason=Reason.NO_BPF, hint="none")
        return self.reader

    def close_one(self, reader: FakeReader) -> None:
        self.closed.append(reader)


def test_off_means_nothing_at_all() -> None:
    profiles, readers = AgentProfiles("http://127.0.0.1:1"), FakeReaders(FakeReader(1))
    profiles.choose(0, cast(Any, readers), {1: (0, [7])})
    assert readers.opened == 0
    assert profiles.send(lambda _: None, 0, is_due=True)
    assert profiles.losses() == {}
    profiles.close()


def test_what_cannot_be_had_is_asked_for_once(caplog: pytest.LogCaptureFixture) -> None:
    profiles, readers = AgentProfiles("http://127.0.0.1:1"), FakeReaders(None)
    for _ in range(3):
        profiles.choose(49, cast(Any, readers), {})
        assert profiles.send(lambda _: None, 0, is_due=True)
    assert readers.opened == 1
    assert [one.getMessage() for one in caplog.records] == ["no profiles: cannot load: no"]
    profiles.close()


def test_ranks_that_did_not_ask_are_left_out_and_what_nobody_asks_for_is_closed() -> None:
    reader = FakeReader(49)
    profiles, readers = AgentProfiles("http://127.0.0.1:1"), FakeReaders(reader)
    profiles.choose(49, cast(Any, readers), {1: (49, [7, 8]), 2: (0, [9])})
    assert reader.watched == [(7, 1), (8, 1), (9, 2)]
    assert reader.left_out == {2}
    profiles.choose(0, cast(Any, readers), {1: (0, [7]), 2: (0, [9])})
    assert reader.left_out == {1, 2}  # at once, however long the endpoint is away
    assert readers.closed == []
    assert profiles.send(lambda _: None, 0, is_due=False)
    assert readers.closed == [reader]
    assert profiles.losses()["bpf_stacks_full"] == 3
    profiles.choose(19, cast(Any, readers), {1: (19, [7])})
    assert readers.opened == 2
    profiles.close()
