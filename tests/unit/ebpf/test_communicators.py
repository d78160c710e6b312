"""NCCL's communicators, the parts without a kernel: births and counts as measurements."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

import pytest

from rootwalk.ebpf.cuda.communicators import (
    BIRTH,
    COMMUNICATOR,
    COMMUNICATOR_KEY,
    CREATION,
    IS_NUMBERED,
    KEPT_S,
    LIFETIMES,
    NUMBER,
    UNFINISHED,
    Communicators,
)
from rootwalk.instrumentation import ids, semconv

UNIQUE_ID, OTHER_ID = bytes([7]) * 128, bytes([8]) * 128
ID = ids.nccl_communicator_id(UNIQUE_ID)
SLOT, PID = 5, 4242


def birth(
    number: int,
    unique_id: bytes = UNIQUE_ID,
    members: int = 3,
    parent: int = 0,
    split: int = 0,
    colour: int = 0,
) -> tuple[bytes, bytes]:
    value = BIRTH.pack(0xABC0, parent, PID, SLOT, members, 1, split, colour, unique_id)
    return NUMBER.pack(number), value


def present(number: int, collectives: int, messages: int = 0) -> tuple[bytes, bytes]:
    key = COMMUNICATOR_KEY.pack(PID, 0xABC0)
    return key, COMMUNICATOR.pack(number, collectives, messages, 0, 0)


def told(
    communicators: Communicators,
    *there: tuple[bytes, bytes],
    now_s: float = 0.0,
    unfinished: Sequence[tuple[bytes, bytes]] = (),
) -> set[tuple[object, bool, float]]:
    found = list(communicators.measure(unfinished, there, now_s))
    for one in found:
        definition = semconv.METRICS[one.metric]
        assert definition.required <= one.attributes.keys() <= definition.attributes
        assert one.slot == SLOT
    return {
        (
            one.attributes[semconv.COLLECTIVE_COMMUNICATOR_ID],
            bool(one.attributes[semconv.COLLECTIVE_IS_POINT_TO_POINT]),
            one.value,
        )
        for one in found
    }


@pytest.mark.parametrize(
    ("struct", "name"),
    [
        (COMMUNICATOR_KEY, "communicator_key"),
        (COMMUNICATOR, "communicator"),
        (BIRTH, "birth"),
        (UNFINISHED, "unfinished"),
        (CREATION, "creation"),
    ],
)
def test_sizes_are_those_of_the_header(struct: object, name: str) -> None:
    header = (files("rootwalk.ebpf.programs") / "communicators.h").read_text(encoding="utf-8")
    (size,) = re.findall(rf"sizeof\(struct {name}\) == (\d+)", header)
    assert struct.size == int(size)  # type: ignore[attr-defined]


def test_functions_are_told_as_the_header_numbers_them() -> None:
    header = (files("rootwalk.ebpf.programs") / "communicators.h").read_text(encoding="utf-8")
    numbers = {
        int(number) for number in re.findall(r"^\t[A-Z_]+ = (\d+),.*\(", header, re.MULTILINE)
    }
    assert {one.cookie for one in LIFETIMES["libnccl"].values()} == numbers == set(range(1, 8))


def test_members_in_different_processes_give_one_id() -> None:
    communicators = Communicators()
    communicators.take([birth(2, OTHER_ID), birth(1)])
    assert told(communicators, present(1, 7), present(2, 11, messages=3)) == {
        (ID, False, 7),
        (ids.nccl_communicator_id(OTHER_ID), False, 11),
        (ids.nccl_communicator_id(OTHER_ID), True, 3),
    }
    found = communicators.find(IS_NUMBERED | 1)
    assert found is not None
    assert found.attributes == {
        semconv.TRAINING_NCCL_COMMUNICATOR: "0xabc0",
        semconv.COLLECTIVE_COMMUNICATOR_ID: ID,
        semconv.COLLECTIVE_COMMUNICATOR_SIZE: 3,
    }


def test_split_of_what_is_not_known_is_not_known() -> None:
    communicators = Communicators()
    communicators.take(
        [
            # In the order of their numbers, whatever that of the map.
            birth(9, bytes(128), 0, parent=4, split=1, colour=-7),
            birth(4, bytes(128), 0, parent=1, split=2, colour=0),
            birth(1),
            birth(10, bytes(128), 0, parent=77, split=1),
        ]
    )
    child = ids.nccl_split_id(ID, 2, 0)
    assert told(communicators, present(9, 5), present(10, 5)) == {
        (ids.nccl_split_id(child, 1, -7), False, 5)
    }
    unknown = communicators.find(IS_NUMBERED | 10)
    assert unknown is not None
    assert (unknown.id, unknown.size, unknown.address) == (None, None, 0xABC0)


def test_what_has_ended_is_known_for_a_while() -> None:
    communicators = Communicators()
    communicators.take([birth(1)])
    assert told(communicators, present(1, 7)) == {(ID, False, 7)}
    assert told(communicators, now_s=10.0) == set()
    # It was made while the maps were read, and is there after all.
    assert told(communicators, present(1, 8), now_s=11.0 + KEPT_S) == {(ID, False, 8)}
    assert told(communicators, now_s=100.0) == set()
    assert communicators.find(IS_NUMBERED | 1) is not None
    assert told(communicators, now_s=101.0 + KEPT_S) == set()
    assert communicators.find(IS_NUMBERED | 1) is None


def test_split_in_which_nothing_was_called_is_there_until_it_ends() -> None:
    communicators = Communicators()
    value = BIRTH.pack(0, 1, PID, SLOT, 0, 0, 2, 4, bytes(128))
    communicators.take([birth(1), (NUMBER.pack(9), value)])
    child = ids.nccl_split_id(ID, 2, 4)
    waiting = [(b"", UNFINISHED.pack(*(0, 0x7F00, *[0] * 6), *(0, 9, *[0] * 6)))]
    assert told(communicators, unfinished=waiting) == {(child, False, 0)}
    found = communicators.find(IS_NUMBERED | 9)
    assert found is not None
    assert semconv.TRAINING_NCCL_COMMUNICATOR not in found.attributes
    # It was called in while these were read, so it is in both.
    communicators.take([], [present(9, 1)])
    assert told(communicators, present(9, 1), unfinished=waiting) == {(child, False, 1)}
    found = communicators.find(IS_NUMBERED | 9)
    assert found is not None
    assert found.attributes[semconv.TRAINING_NCCL_COMMUNICATOR] == "0xabc0"
    assert told(communicators) == set()


def test_rank_that_has_ended_is_forgotten() -> None:
    communicators = Communicators()
    communicators.take([birth(1)])
    communicators.forget(lambda slot: slot != SLOT)
    assert communicators.find(IS_NUMBERED | 1) is not None
    communicators.forget(lambda slot: slot == SLOT)
    assert communicators.find(IS_NUMBERED | 1) is None
    assert told(communicators, present(1, 7)) == set()
