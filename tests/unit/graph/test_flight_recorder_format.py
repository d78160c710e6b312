"""Dumps of PyTorch's Flight Recorder: both forms, and files that are none."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from rootwalk.graph.hangs.flight_records import Frontier, RankRecord
from rootwalk.graph.importers.flight_recorder_format import parse_dump, parse_timed_dump
from rootwalk.instrumentation.errors import DecodeError
from support.flight_dumps import START_NS, FlightJob


def make_job() -> FlightJob:
    job = FlightJob(4, {"0": range(4), "7": (1, 3)})
    job.call(1, "0", elements=6, frame=("step", 31))
    job.call(1, "7", "_all_gather_base")
    job.receive(1, "7", 3)
    return job


def make_dump() -> dict[str, Any]:
    return make_job().dump(1)


def test_a_dump_says_how_far_its_rank_has_come_and_what_it_has_not_finished() -> None:
    record = parse_dump(pickle.dumps(make_dump(), 2), 1)
    assert (record.rank, record.version, record.library) == (1, "2.9", "2.27.3")
    assert [(f.communicator, f.members, f.issued) for f in record.frontiers] == [
        ("0", (0, 1, 2, 3), 4),
        ("7", (1, 3), 4),
    ]
    first, second, third = record.pending
    assert (first.operation, first.sequence, first.elements, first.peer) == (
        "all_reduce",
        4,
        6,
        None,
    )
    assert first.created_unix_ns == START_NS + 1000
    assert first.frames == ("step (train.py:31)",)
    assert second.operation == "all_gather"
    assert (third.operation, third.sequence, third.peer) == ("recv", 1, 3)


def test_json_says_the_same_as_pickle() -> None:
    dump = make_dump()
    expected = parse_dump(pickle.dumps(dump, 2), 1)
    for status in dump["pg_status"].values():
        status.update({key: str(value) for key, value in status.items()})
    assert parse_dump(json.dumps(dump).encode(), 1) == expected


def test_a_rank_without_calls_tells_its_progress_by_its_status() -> None:
    record = parse_dump(pickle.dumps(make_job().dump(3), 2), 3)
    assert [(f.communicator, f.issued, f.is_counted) for f in record.frontiers] == [
        ("0", 3, False),
        ("7", 3, False),
    ]


def test_a_status_that_does_not_pair_up_with_the_communicators_is_not_used() -> None:
    dump = make_job().dump(3)
    del dump["pg_status"]["1"]
    assert [f.issued for f in parse_dump(pickle.dumps(dump, 2), 3).frontiers] == [None, None]


def test_every_cut_off_dump_is_an_error_that_names_the_byte() -> None:
    pickled = pickle.dumps(make_dump(), 2)
    written = json.dumps(make_dump()).encode()
    for data in (pickled, written):
        for end in range(1, len(data), 7):
            with pytest.raises(DecodeError, match=r"at byte \d+"):
                parse_dump(data[:end], 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "3.1"}, 'format "3.1"; needs 1.x or 2.x'),
        ({"version": 2}, "dump.version; needs text"),
        ({"pg_config": []}, "dump.pg_config; needs fields"),
        ({"entries": 3}, "dump.entries; needs a list"),
        ({"entries": ["x"]}, r"entries\[0\]; needs fields"),
        ({"pg_config": {}}, 'communicator "0"; needs its ranks'),
    ],
)
def test_other_fields_than_a_dump_has_are_an_error_that_names_them(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(DecodeError, match=message):
        parse_dump(pickle.dumps({**make_dump(), **change}, 2), 1)


@pytest.mark.parametrize("value", [-1, 1 << 63, "4", None])
def test_numbers_that_cannot_be_stored_are_an_error(value: Any) -> None:
    dump = make_dump()
    dump["entries"][0]["time_created_ns"] = value
    with pytest.raises(DecodeError, match=r"time_created_ns; needs a whole number"):
        parse_dump(pickle.dumps(dump, 2), 1)


@pytest.mark.parametrize("data", [b"hello", b"\x1f\x8b\x08", b"{}", b"[1]", b"\x80\x02N."])
def test_files_of_another_kind_are_an_error(data: bytes) -> None:
    with pytest.raises(DecodeError, match="cannot read"):
        parse_dump(data, 1)


def test_a_dump_under_the_name_of_another_rank_is_an_error() -> None:
    with pytest.raises(DecodeError, match="dump of rank 0: saw communicator 7 without that rank"):
        parse_dump(pickle.dumps(make_dump(), 2), 0)


@pytest.mark.parametrize("size", ["Infinity", "1e999", "1" + "0" * 400, "-5"])
def test_a_size_that_is_none_is_not_known(size: str) -> None:
    text = json.dumps(make_dump()).replace('"input_sizes": [[6]]', f'"input_sizes": [[{size}]]')
    assert size in text
    assert parse_dump(text.encode(), 1).pending[0].elements is None


def test_a_number_that_is_none_is_an_error() -> None:
    dump = make_job().dump(3)
    for status in dump["pg_status"].values():
        status["last_enqueued_collective"] = float("inf")
    with pytest.raises(DecodeError, match="saw no number in pg_status"):
        parse_dump(json.dumps(dump).encode(), 3)


def test_a_communicator_with_an_odd_digit_is_no_traceback() -> None:
    dump = make_job().dump(3)
    dump["pg_status"] = dict(zip("\u00b2\u00b3", dump["pg_status"].values(), strict=True))
    assert [f.issued for f in parse_dump(json.dumps(dump).encode(), 3).frontiers] == [None, None]


def read_gloo(job: FlightJob, rank: int, **fields: Any) -> RankRecord:
    return parse_dump(json.dumps({**job.gloo_dump(rank), **fields}).encode(), rank)


def make_pairs() -> FlightJob:
    """Ranks 2 and 3 of four call in a pair of theirs and in the group of all."""
    job = FlightJob(4, {"0": range(4), "1": (0, 1), "2": (2, 3)})
    job.call_all((2, 3), "0")
    job.finish((2, 3), "0")
    job.call_all((2, 3), "2")
    return job


def test_a_list_of_ranks_without_a_name_says_how_many_there_are_at_least() -> None:
    job = FlightJob(4, {"0": range(4)})
    job.call(1, "0")
    record = read_gloo(job, 1)
    assert record.frontiers == (
        Frontier("0", "default_pg", (0, 1, 2, 3), 4, ended=3, is_whole=False),
    )
    assert [(call.communicator, call.sequence) for call in record.pending] == [("0", 4)]


def test_of_another_communicator_only_the_own_rank_is_known_to_be_a_member() -> None:
    # The list is [0, 1]: places in the pair of ranks 2 and 3.
    record = read_gloo(make_pairs(), 2)
    assert [(f.communicator, f.description, f.members) for f in record.frontiers] == [
        ("0", "default_pg", (0, 1, 2)),
        ("2", "GROUP_2", (2,)),
    ]
    assert not any(frontier.is_whole for frontier in record.frontiers)


def test_the_communicator_of_all_is_there_before_it_is_called() -> None:
    job = FlightJob(4, {"0": range(4), "1": (0, 1), "2": (2, 3)})
    job.call(2, "2")
    everyone, _ = read_gloo(job, 2).frontiers
    assert everyone == Frontier(
        "0", "default_pg", (0, 1, 2), None, is_counted=False, is_whole=False
    )


def test_a_communicator_of_another_description_is_not_that_of_all() -> None:
    dump = make_pairs().gloo_dump(2)
    for entry in dump["entries"]:
        entry["process_group"] = [entry["process_group"][0], "mine"]
    record = parse_dump(json.dumps(dump).encode(), 2)
    assert [f.members for f in record.frontiers] == [(2,), (2,)]


def test_named_ranks_are_taken_as_they_are_told_beside_a_list_without_a_name() -> None:
    job = make_pairs()
    named = {"2": {"name": "2", "desc": "pair", "ranks": "[2, 3]"}}
    record = read_gloo(job, 2, pg_config={**job.gloo_dump(2)["pg_config"], **named})
    assert [(f.members, f.is_whole) for f in record.frontiers] == [
        ((0, 1, 2), False),
        ((2, 3), True),
    ]


def test_calls_in_communicators_without_a_name_are_refused() -> None:
    # As TORCH_DISTRIBUTED_DEBUG=DETAIL has them: of several communicators under one empty name.
    dump = make_pairs().gloo_dump(2)
    for entry in dump["entries"]:
        entry["process_group"] = ["", ""]
    with pytest.raises(DecodeError, match="needs its name"):
        parse_dump(json.dumps(dump).encode(), 2)


def test_a_call_in_a_communicator_that_nothing_lists_is_refused() -> None:
    dump = make_dump()
    del dump["pg_config"]["7"]
    with pytest.raises(DecodeError, match="needs its ranks in pg_config"):
        parse_dump(json.dumps(dump).encode(), 1)


def test_a_message_to_a_place_in_an_untold_communicator_is_refused() -> None:
    # Left out, its rank would seem to wait for nobody.
    job = make_pairs()
    job.receive(2, "2", 3)
    with pytest.raises(DecodeError, match="saw a message in communicator"):
        read_gloo(job, 2)


def test_more_ranks_than_a_job_has_are_refused() -> None:
    config = {"": {"name": "", "desc": "", "ranks": f"[{1 << 40}]"}}
    with pytest.raises(DecodeError, match="needs ranks below"):
        read_gloo(make_pairs(), 2, pg_config=config)


def test_calls_are_not_timed_where_their_members_are_not_told() -> None:
    job = make_pairs()
    dump = job.gloo_dump(2)
    for entry in dump["entries"]:
        entry.update(state="completed", duration_ms=3.0, time_discovered_completed_ns=START_NS)
    _, timed = parse_timed_dump(json.dumps(dump).encode(), 2)
    assert timed == ()
