"""Dumps of PyTorch 2.2 and 2.3: no version or 1.x, one number for all calls, groups without their ranks."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.hangs.judge import find_hang
from rootwalk.graph.importers.flight_recorder_format import parse_dump
from rootwalk.graph.reasons import Reason

START_US = 1_706_000_000_000_000


def call(
    group: int, sequence: int, name: str = "all_reduce", state: str = "completed"
) -> dict[str, Any]:
    return {
        "pg_id": group,
        "seq_id": sequence,
        "profiling_name": f"nccl:{name}",
        "time_created_us": START_US + sequence,
        "input_sizes": [[128, 4]],
        "output_sizes": [[128, 4]],
        "state": state,
        "retired": state == "completed",
        "frames": [
            {
                "name": "all_reduce",
                "filename": "/env/torch/distributed/distributed_c10d.py",
                "line": 1,
            },
            {"name": "sync", "filename": "/srv/run.py", "line": 9},
        ],
    }


def read(
    entries: dict[int, list[dict[str, Any]]], *, version: str | None = None
) -> list[RankRecord]:
    records = []
    for rank, own in entries.items():
        dump: Any = own if version is None else {"version": version, "entries": own}
        records.append(parse_dump(pickle.dumps(dump, 2), rank))
    return records


def blamed(records: list[RankRecord]) -> dict[Reason, tuple[int, ...]]:
    return {blame.reason: blame.ranks for blame in find_hang(records).blames}


@pytest.mark.parametrize("version", [None, "1.1", "1.5"])
@pytest.mark.parametrize("absent", [0, 3, 5])
def test_the_rank_that_has_not_called_is_blamed(version: str | None, absent: int) -> None:
    entries = {rank: [call(0, number) for number in range(1, 20)] for rank in range(6)}
    for rank in set(range(6)) - {absent}:
        entries[rank].append(call(0, 20, state="started"))
    records = read(entries, version=version)
    assert blamed(records) == {Reason.NOT_JOINED: (absent,)}
    (pending,) = records[1 if absent != 1 else 2].pending
    assert pending.created_unix_ns == (START_US + 20) * 1000
    assert pending.place == "sync (run.py:9)"


def test_a_group_known_by_its_number_alone_is_nobody_elses() -> None:
    # Number 1 is another pair on ranks 2 and 3, of which only one waits.
    waits = call(1, 7, state="scheduled")
    entries = {0: [waits], 1: [waits], 2: [call(1, 3)], 3: [call(1, 3)]}
    hang = find_hang(read(entries))
    assert hang.operations
    assert not hang.blames


def test_numbers_that_count_messages_too_are_not_compared() -> None:
    entries = {
        0: [call(0, 1), call(0, 2, "send 0->1"), call(0, 3, state="scheduled")],
        1: [call(0, 1), call(0, 2, state="scheduled")],
    }
    assert blamed(read(entries)) == {}


def test_a_large_missing_rank_is_not_taken_for_the_end_of_the_job() -> None:
    entries = {rank: [call(0, 1), call(0, 2, state="scheduled")] for rank in range(3)}
    hang = find_hang(read(entries))
    assert hang.operations
    assert not hang.blames
