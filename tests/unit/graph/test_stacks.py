"""Which frame explains an excess, and what a dictionary that nobody should trust becomes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest
from opentelemetry.proto.profiles.v1development.profiles_pb2 import (
    Function,
    KeyValueAndUnit,
    Line,
    Location,
    ProfilesDictionary,
    Stack,
)
from opentelemetry.proto.profiles.v1development.profiles_pb2 import Mapping as MappingMessage

from rootwalk.graph.profiles.difference import FrameExcess, StackTimes, find_excess, reference_of
from rootwalk.graph.profiles.flame import MAX_ROWS, Box, build_flame
from rootwalk.graph.profiles.frames import MAX_DEPTH, Frame, FrameNumbers, read_stacks
from support.log_and_profile_messages import dictionary
from support.otlp_messages import any_value

EXPLAINED_S = 0.1


class Stacks:
    """Stacks written as `main;step`, outermost first; capitals are native frames without a file."""

    def __init__(self) -> None:
        self.numbers = FrameNumbers()

    def times(
        self, seconds: Mapping[str, float], *, steps: float = 100.0, period_s: float = 0.0
    ) -> StackTimes:
        folded = {
            tuple(self.numbers.number(self.frame(name)) for name in stack.split(";")): value
            for stack, value in seconds.items()
        }
        return StackTimes(folded, {}, steps, period_s)

    @staticmethod
    def frame(name: str) -> Frame:
        return Frame(name) if name.isupper() else Frame(name, "train.py", 0, True)

    def find(
        self,
        culprit: StackTimes,
        *peers: StackTimes,
        history: StackTimes | None = None,
    ) -> list[FrameExcess]:
        return find_excess(culprit, peers, history, EXPLAINED_S, self.numbers.frames)


def names(found: list[FrameExcess]) -> list[str]:
    return [one.frame.function for one in found]


def test_the_place_where_the_stacks_part_is_named() -> None:
    s = Stacks()
    usual = {"main;step;forward": 0.4, "main;step;log": 0.01}
    found = s.find(s.times(usual | {"main;step;log;write;WRITE": 0.1}), s.times(usual))
    (only,) = found
    # write and WRITE are always met together; log is new in 0.10 of its 0.11 s only.
    assert (only.frame.function, only.caller, only.peers, only.history) == (
        "write",
        None,
        0.0,
        None,
    )
    assert only.value == pytest.approx(0.1)


def test_what_runs_everywhere_a_little_is_one_frame() -> None:
    # Garbage is collected wherever something is allocated.
    s = Stacks()
    usual = {"main;forward": 0.2, "main;backward": 0.2, "main;load": 0.1}
    collected = {f"main;{at};GC;VISIT": 0.04 for at in ("forward", "backward", "load")}
    (found,) = s.find(s.times(usual | collected), s.times(usual))
    assert (found.frame.function, found.caller) == ("GC", None)
    assert found.value == pytest.approx(0.12)


def test_the_caller_of_a_library_s_frame_is_told() -> None:
    s = Stacks()
    usual = {"main;forward": 0.2}
    (found,) = s.find(s.times(usual | {"main;forward;GC": 0.1}), s.times(usual))
    assert found.label == "forward (train.py) > GC"


def test_independent_frames_are_told_apart() -> None:
    s = Stacks()
    usual = {"main;forward": 0.4}
    extra = {"main;hog": 0.3, "main;spin": 0.2, "main;little": 0.02}
    found = s.find(s.times(usual | extra), s.times(usual))
    assert names(found) == ["hog", "spin"]


def test_more_of_the_same_is_told_with_both_numbers() -> None:
    s = Stacks()
    (found,) = s.find(
        s.times({"main;forward": 0.6, "main;rest": 0.5}),
        s.times({"main;forward": 0.4, "main;rest": 0.5}),
    )
    assert (found.frame.function, found.value, found.peers) == ("forward", 0.6, 0.4)


@pytest.mark.parametrize("others", ["peers", "history", "one of both"])
def test_what_others_have_as_well_is_no_explanation(others: str) -> None:
    s = Stacks()
    usual, slow = s.times({"main;forward": 0.2}), {"main;forward": 0.2, "main;log": 0.3}
    same, culprit = s.times(slow), s.times(slow)
    if others == "peers":
        assert s.find(culprit, same, same, usual) == []
    elif others == "history":
        assert s.find(culprit, history=same) == []
    else:
        # New to itself, and nothing new to the others; or the other way round.
        assert s.find(culprit, same, history=usual) == []
        assert s.find(culprit, usual, history=same) == []


def test_nobody_to_compare_with_is_no_explanation() -> None:
    s = Stacks()
    assert s.find(s.times({"main": 9.0})) == []


def test_few_samples_are_chance() -> None:
    s = Stacks()
    usual = s.times({"main": 0.2}, steps=10.0)
    # At 0.1 s between two samples, 0.1 s in each of 10 steps are ten samples: the scatter is 3.2 of them.
    for period_s, is_sure in ((0.1, True), (0.2, False)):
        culprit = s.times({"main": 0.2, "main;log": 0.1}, steps=10.0, period_s=period_s)
        assert bool(s.find(culprit, usual)) == is_sure


def test_a_recursion_is_counted_once() -> None:
    s = Stacks()
    deep = ";".join(["main", *["walk"] * 1000])
    (found,) = s.find(s.times({deep: 0.3}), s.times({"main": 0.1}))
    assert (found.frame.function, found.value) == ("walk", 0.3)


def test_the_order_of_ranks_and_stacks_changes_nothing() -> None:
    choose = random.Random(4)  # noqa: S311
    s = Stacks()
    stacks = [f"main;{a};{b}" for a in "abcd" for b in "efgh"]
    ranks = [{stack: choose.random() for stack in stacks} for _ in range(6)]
    first = s.find(*(s.times(rank) for rank in ranks))
    for _ in range(5):
        culprit, *peers = [dict(choose.sample(list(r.items()), len(r))) for r in ranks]
        choose.shuffle(peers)
        again = s.find(s.times(culprit), *(s.times(rank) for rank in peers))
        assert [(f.label, f.peers) for f in again] == [(f.label, f.peers) for f in first]
        assert [f.value for f in again] == pytest.approx([f.value for f in first])


def test_the_usual_is_the_median_of_the_peers() -> None:
    s = Stacks()
    peers = [s.times({"main": v, "main;hog": h}) for v, h in ((0.1, 0.0), (0.2, 0.0), (0.9, 5.0))]
    before = s.times({"main": 7.0})
    main, hog = s.times({"main": 0.0}).seconds, s.times({"main;hog": 0.0}).seconds
    assert reference_of(peers, before) == {next(iter(main)): 0.2, next(iter(hog)): 0.0}
    assert reference_of([], before) == before.seconds
    assert reference_of([], None) == {}


# -- what a dictionary says --------------------------------------------------------------------------


def labels(message: object, index: int) -> list[str]:
    numbers = FrameNumbers()
    stack = read_stacks(message, [index], numbers)[index]
    return [numbers.frames[number].label for number in stack]


def test_stacks_come_outermost_first_with_what_was_inlined() -> None:
    assert labels(dictionary(), 1) == ["main", "step"]
    assert labels(dictionary(), 2) == ["main", "step", "memcpy"]
    # The file is the name already.
    assert labels(dictionary(), 3) == ["main", "libx.so+0x2f"]


@pytest.mark.parametrize("index", [0, 4, 2**31 - 1, -1, -(2**31)])
def test_a_stack_that_is_not_there_is_unknown(index: int) -> None:
    assert labels(dictionary(), index) == ["unknown"]
    assert labels(ProfilesDictionary(), index) == ["unknown"]


@pytest.mark.parametrize("wrong", [2, -1, 2**31 - 1])
def test_numbers_out_of_range_mean_none(wrong: int) -> None:
    stack = Stack(location_indices=[1, wrong])
    table = [Stack(), stack]
    # Each entry refers to what is not there, in all of its places.
    location = Location(
        mapping_index=wrong, attribute_indices=[wrong], lines=[Line(function_index=wrong)]
    )
    message = ProfilesDictionary(stack_table=table, location_table=[Location(), location])
    assert labels(message, 1) == ["unknown", "unknown"]
    function = Function(name_strindex=wrong, filename_strindex=wrong, start_line=-5)
    message = ProfilesDictionary(
        stack_table=[Stack(), Stack(location_indices=[1])],
        location_table=[Location(), Location(lines=[Line(function_index=1)])],
        function_table=[Function(), function],
        mapping_table=[MappingMessage(filename_strindex=wrong)],
        attribute_table=[KeyValueAndUnit(), KeyValueAndUnit(key_strindex=wrong)],
        string_table=[""],
    )
    assert labels(message, 1) == ["unknown"]


def test_a_deep_stack_keeps_both_ends() -> None:
    strings = ["", *(f"f{n}" for n in range(1000))]
    message = ProfilesDictionary(
        string_table=strings,
        function_table=[Function(), *(Function(name_strindex=n + 1) for n in range(1000))],
        location_table=[
            Location(),
            *(Location(lines=[Line(function_index=n + 1)]) for n in range(1000)),
        ],
        stack_table=[Stack(), Stack(location_indices=list(range(1, 1001)))],
    )
    found = labels(message, 1)
    assert len(found) == MAX_DEPTH + 1
    assert (found[0], found[MAX_DEPTH // 2], found[-1]) == ("f999", "(frames left out)", "f0")


def test_long_names_are_cut_and_folders_left_out() -> None:
    message = ProfilesDictionary(
        string_table=["", "x" * 10_000, "/home/someone/secret/train.py", "profile.frame.type"],
        function_table=[Function(), Function(name_strindex=1, filename_strindex=2, start_line=7)],
        location_table=[
            Location(),
            Location(lines=[Line(function_index=1)], attribute_indices=[1]),
        ],
        stack_table=[Stack(), Stack(location_indices=[1])],
        attribute_table=[
            KeyValueAndUnit(),
            KeyValueAndUnit(key_strindex=3, value=any_value("cpython")),
        ],
    )
    numbers = FrameNumbers()
    read_stacks(message, [1], numbers)
    (frame,) = numbers.frames
    assert (len(frame.function), frame.file, frame.line) == (160, "train.py", 7)
    assert frame.is_python
    assert frame.is_own_code


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        ("train.py", True),
        ("threading.py", False),
        ("__init__.py", False),
        ("libtorch.so", False),
        ("", False),
        ("<frozen importlib._bootstrap>", False),
    ],
)
def test_whose_code_a_file_is(file: str, is_own: bool) -> None:
    assert Frame("f", file).is_own_code == is_own


# -- the picture -------------------------------------------------------------------------------------


def test_boxes_stand_below_their_callers_with_what_the_peers_spend_there() -> None:
    s = Stacks()
    own = s.times({"main;train;a": 0.2, "main;train;a;c": 0.2, "main;train;b": 0.6})
    peers = [
        s.times({"main;train;a": value, "main;train;elsewhere": 0.4}) for value in (0.1, 0.2, 0.9)
    ]
    flame = build_flame(own, peers, s.numbers.frames)
    # main and train are in all stacks.
    assert [frame.function for frame in flame.above] == ["main", "train"]
    assert flame.seconds == pytest.approx(1.0)
    assert (flame.rows, flame.cut_rows) == (2, 0)
    told = [
        (b.frame.function, b.row, round(b.left, 9), round(b.width, 9), b.usual) for b in flame.boxes
    ]
    assert told == [("a", 0, 0.0, 0.4, 0.2), ("b", 0, 0.4, 0.6, 0.0), ("c", 1, 0.0, 0.2, 0.0)]


def test_every_box_lies_in_its_caller_s() -> None:
    choose = random.Random(9)  # noqa: S311
    s = Stacks()
    stacks = {
        ";".join(choose.choices("abcdefg", k=choose.randint(1, 9))): choose.random()
        for _ in range(400)
    }
    flame = build_flame(s.times(stacks), [s.times(stacks)], s.numbers.frames)
    rows: dict[int, list[Box]] = {}
    for box in flame.boxes:
        rows.setdefault(box.row, []).append(box)
        assert box.seconds == pytest.approx(box.usual)
    for row, boxes in rows.items():
        for left, right in itertools.pairwise(boxes):
            assert left.left + left.width <= right.left + 1e-9
        for box in boxes if row else ():
            assert any(
                up.left - 1e-9 <= box.left and box.left + box.width <= up.left + up.width + 1e-9
                for up in rows[row - 1]
            )


def test_a_deep_tree_and_an_empty_one_are_drawn_as_far_as_they_go() -> None:
    s = Stacks()
    walk = ";".join(["main", *[f"w{n}" for n in range(200)]])
    flame = build_flame(s.times({walk: 0.5, "main;x": 0.5}), [s.times({})], s.numbers.frames)
    assert (flame.rows, flame.cut_rows) == (MAX_ROWS, 200 - MAX_ROWS)
    assert len(flame.above) == 1
    nothing = build_flame(s.times({}), [s.times({"main": 1.0})], s.numbers.frames)
    assert (nothing.boxes, nothing.rows, nothing.seconds) == ((), 0, 0.0)
    one = build_flame(s.times({"main": 1.0}), [s.times({})], s.numbers.frames)
    assert [(box.frame.function, box.width) for box in one.boxes] == [("main", 1.0)]
