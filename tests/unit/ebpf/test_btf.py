"""The kernel's description of its types, on types made by hand and on those of this kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf.btf import KernelTypes, Member
from rootwalk.instrumentation.errors import DecodeError
from support.fake_types import FakeTypes, fake_kernel

WHOLE = fake_kernel().encode()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("flags", Member(40, 4)),
        ("thread_info", Member(0, 16)),
        ("thread_info.cpu", Member(8, 4)),
        ("pid", Member(100, 4)),  # in an anonymous structure, behind a typedef
        ("tgid", Member(104, 4)),
        ("comm", Member(200, 16)),
        ("no_such_field", None),
        ("flags.inner", None),
        ("", None),
    ],
)
def test_fields(order: str, path: str, place: Member | None) -> None:
    assert KernelTypes(fake_kernel(order).encode()).member("task_struct", path) == place


def test_what_is_not_there() -> None:
    types = KernelTypes(WHOLE)
    assert types.member("no_such_struct", "pid") is None
    assert types.member("pid_t", "pid") is None
    assert types.has_structure("task_struct")
    assert not types.has_structure("task")  # the end of a name, or its beginning, is another name
    assert not types.has_structure("struct")


def test_hooks() -> None:
    types = KernelTypes(WHOLE)
    assert types.has_hook("sched_switch")
    assert types.has_hook("sched_wakeup")
    assert not types.has_hook("sched_wake")
    assert not types.has_hook("irq_handler_entry")


def test_arguments_of_a_hook() -> None:
    types = KernelTypes(WHOLE)
    assert types.count_arguments("sched_switch") == 4
    assert types.count_arguments("sched_wakeup") == 1
    assert types.count_arguments("irq_handler_entry") is None


def test_bit_field_is_no_place_but_whole_neighbours_are() -> None:
    fake = FakeTypes()
    u32 = fake.integer("unsigned int", 4)
    fake.bit_fields("flags", [("one", u32, 0, 1), ("two", u32, 1, 1), ("whole", u32, 32, 0)])
    types = KernelTypes(fake.encode())
    assert types.member("flags", "one") is None
    assert types.member("flags", "whole") == Member(4, 4)


def test_pointer_and_union_and_nested_array() -> None:
    fake = FakeTypes()
    u16 = fake.integer("unsigned short", 2)
    pointer = fake.add(2, word=u16)
    grid = fake.array(fake.array(u16, 3), 5)
    either = fake.structure("", 8, [("number", u16, 0), ("address", pointer, 0)], kind=5)
    fake.structure("mixed", 48, [("grid", grid, 0), ("", either, 256)])
    types = KernelTypes(fake.encode())
    assert types.member("mixed", "grid") == Member(0, 30)
    assert types.member("mixed", "address") == Member(32, 8)
    assert types.member("mixed", "number") == Member(32, 2)


def test_every_kind_is_stepped_over() -> None:
    fake = FakeTypes()
    u32 = fake.integer("unsigned int", 4)
    fake.add(6, "colour", 4, bytes(8 * 2), 2)  # enum
    fake.add(7, "later")
    for kind in (9, 10, 11, 18):  # aliases
        fake.add(kind, word=u32)
    fake.add(13, word=u32, extra=bytes(8), info=1)  # prototype
    fake.add(12, "function", fake.count)
    fake.add(14, "variable", u32, bytes(4))
    fake.add(15, ".data", 4, bytes(12), 1)  # section
    fake.add(16, "float", 4)
    fake.add(17, "tag", u32, bytes(4))
    fake.add(19, "large", 8, bytes(12), 1)  # enum64
    fake.structure("last", 4, [("field", u32, 0)])
    assert KernelTypes(fake.encode()).member("last", "field") == Member(0, 4)


def test_types_without_end_are_refused() -> None:
    fake = FakeTypes()
    fake.add(8, "round", 1)
    fake.structure("holder", 4, [("field", 1, 0)])
    with pytest.raises(DecodeError, match="aliases without end"):
        KernelTypes(fake.encode()).member("holder", "field")
    fake = FakeTypes()
    fake.structure("russian_doll", 4, [("", 1, 0), ("", 1, 0)])
    assert KernelTypes(fake.encode()).member("russian_doll", "field") is None


@pytest.mark.parametrize("data", [b"", b"\x9f\xeb", bytes(100), WHOLE[:60], WHOLE[::-1]])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="cannot read BTF"):
        KernelTypes(data)


def test_unknown_kind_is_refused() -> None:
    fake = FakeTypes()
    fake.add(20)
    with pytest.raises(DecodeError, match="kind 20"):
        KernelTypes(fake.encode())


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_one_wrong_byte_gives_an_answer_or_an_error(place: int, value: int) -> None:
    data = bytearray(WHOLE)
    data[place] = value
    try:
        types = KernelTypes(bytes(data))
        found = types.member("task_struct", "comm")
    except DecodeError:
        return
    assert found is None or isinstance(found, Member)
