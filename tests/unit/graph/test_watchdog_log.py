"""Lines of PyTorch's NCCL watchdog: all wordings, what stands around them, what they say together."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.hangs.flight_store import RecordReader
from rootwalk.graph.hangs.judge import find_hang
from rootwalk.graph.importers.formats import ImportOptions, Note, load_importer
from rootwalk.graph.importers.watchdog_lines import parse_line
from rootwalk.graph.reasons import Reason
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.imports import ImportRequest

# 17 July 2025, 12:00 UTC: after every time in the lines.
WRITTEN_S = 1_752_753_600


def work(
    sequence: int,
    operation: str = "ALLREDUCE",
    *,
    elements: int | None = 1024,
    ran_ms: int = 600_010,
) -> str:
    sizes = "" if elements is None else f"NumelIn={elements}, NumelOut={elements}, "
    return (
        "Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={sequence}, OpType={operation}, {sizes}Timeout(ms)=600000)"
        f" ran for {ran_ms} milliseconds before timing out."
    )


def v21(rank: int, sequence: int, issued: int) -> list[str]:
    return [f"[E ProcessGroupNCCL.cpp:474] [Rank {rank}] {work(sequence)}"]


def v23(rank: int, sequence: int, issued: int) -> list[str]:
    return [
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:523] [Rank {rank}] {work(sequence)}",
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank {rank}] Timeout at NCCL work: {sequence},"
        f" last enqueued NCCL work: {issued}, last completed NCCL work: {sequence - 1}.",
    ]


def v24(rank: int, sequence: int, issued: int) -> list[str]:
    return [
        f"[rank{rank}]:[E716 17:05:38.1 ProcessGroupNCCL.cpp:607] [Rank {rank}] {work(sequence)}",
        f"[rank{rank}]:[E716 17:05:38.2 ProcessGroupNCCL.cpp:1664] [PG 0 Rank {rank}] Exception (either an error"
        f" or timeout) detected by watchdog at work: {sequence}, last enqueued NCCL work: {issued},"
        f" last completed NCCL work: {sequence - 1}.",
    ]


def v27(rank: int, sequence: int, issued: int, *, day: int = 16, elements: int = 1024) -> list[str]:
    return [
        f"[rank{rank}]:[E7{day:02d} 17:05:38.1 ProcessGroupNCCL.cpp:632] [Rank {rank}]"
        f" {work(sequence, elements=elements)}",
        f"[rank{rank}]:[E7{day:02d} 17:05:38.2 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg)"
        f" Rank {rank}]  failure detected by watchdog at work sequence id: {sequence} PG status: last enqueued"
        f" work: {issued}, last completed work: {sequence - 1}",
    ]


def behind(rank: int, issued: int, *, day: int = 16) -> str:
    return (
        f"[rank{rank}]:[E7{day:02d} 17:05:39.1 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        " Received a dump signal due to a collective timeout from  rank 1 and we will try our best to dump the debug"
        f" info. Last enqueued NCCL work: {issued}, last completed NCCL work: {issued}.This is most likely"
    )


def read(folder: Path, *texts: list[str]) -> tuple[list[RankRecord], dict[str, int]]:
    """Return the records and notes of the import of some logs."""
    paths = []
    for number, lines in enumerate(texts):
        path = folder / f"stderr_{number}.log"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.utime(path, (WRITTEN_S, WRITTEN_S))
        paths.append(path)
    importer = load_importer("watchdog-log", ImportOptions(tuple(paths)))
    records, notes = [], {}
    for path in paths:
        for part in importer.read(path, None):
            if isinstance(part, Note):
                notes[part.kind] = part.count
                continue
            assert isinstance(part, ImportRequest)
            request = ExportLogsServiceRequest.FromString(part.body)
            event = request.resource_logs[0].scope_logs[0].log_records[0]
            records.append(RecordReader().read(event.body.string_value))
    return records, notes


def blamed(records: list[RankRecord]) -> dict[Reason, tuple[int, ...]]:
    return {blame.reason: blame.ranks for blame in find_hang(records).blames}


@pytest.mark.parametrize("wording", [v23, v24, v27])
@pytest.mark.parametrize(("world", "absent"), [(4, 2), (16, 0), (7, 6)])
def test_the_rank_whose_last_call_is_behind_is_blamed(
    tmp_path: Path, wording: object, world: int, absent: int
) -> None:
    assert callable(wording)
    lines = [line for r in range(world) if r != absent for line in wording(r, 31, 33)]
    records, notes = read(tmp_path, [*lines, behind(absent, 30)])
    assert blamed(records) == {Reason.NOT_JOINED: (absent,)}
    assert notes == {"world_from_log": world}
    (call,) = next(r for r in records if r.rank != absent).pending
    assert (call.operation, call.sequence, call.elements) == ("all_reduce", 31, 1024)


def test_without_numbers_of_the_group_a_rank_without_lines_is_gone(tmp_path: Path) -> None:
    records, _ = read(tmp_path, [line for r in (0, 1, 2, 4) for line in v21(r, 9, 9)])
    assert blamed(records) == {Reason.RANK_GONE: (3,)}


def test_an_operation_that_all_have_called_blames_nobody(tmp_path: Path) -> None:
    records, _ = read(tmp_path, [line for r in range(5) for line in v27(r, 9, 9)])
    assert len(records) == 5
    assert blamed(records) == {}


def test_members_that_call_another_size_are_a_mismatch(tmp_path: Path) -> None:
    lines = [line for r in range(8) for line in v27(r, 5, 5, elements=7 if r in (1, 5) else 8)]
    records, _ = read(tmp_path, lines)
    assert blamed(records) == {Reason.COLLECTIVE_MISMATCH: (1, 5)}


@pytest.mark.parametrize(
    "dress",
    [
        lambda line: f"\x1b[36m(worker pid=77)\x1b[0m {line}",
        lambda line: f"[default3]:{line}",
        lambda line: f"2025-07-16T17:05:38.123456789Z stderr F {line}",
        lambda line: f"Epoch 3: 41%|###   | 9/22 [00:10<00:12]\rEpoch 3: 45%|###   |{line}",
        lambda line: f"trainer-worker-0 | {line}   ",
        lambda line: f"{line}{line}",
    ],
)
def test_what_stands_around_the_lines_changes_nothing(tmp_path: Path, dress: object) -> None:
    assert callable(dress)
    lines = [line for r in (0, 1, 3) for line in v27(r, 31, 31)] + [behind(2, 30)]
    plain, _ = read(tmp_path, lines)
    noise = ["Traceback (most recent call last):", "step 30 loss 2.3", "", "\ufffd\u2028"]
    dressed = [dress(line) for line in lines]
    random.Random(5).shuffle(dressed)  # noqa: S311
    found, _ = read(tmp_path, [*noise, *dressed, *noise])
    assert sorted(found, key=lambda r: r.rank) == sorted(plain, key=lambda r: r.rank)


def test_a_log_a_rank_and_one_log_of_all_say_the_same(tmp_path: Path) -> None:
    texts = [*(v27(r, 31, 31) for r in (0, 1, 3)), [behind(2, 30)]]
    together, _ = read(tmp_path, [line for lines in texts for line in lines])
    apart, _ = read(tmp_path, *texts)
    assert sorted(apart, key=lambda r: r.rank) == sorted(together, key=lambda r: r.rank)


def test_ranks_of_a_group_are_those_of_the_job(tmp_path: Path) -> None:
    # The pairs' second members are ranks 1 and 3 of the job, both "Rank 1" of theirs.
    def lines(rank: int, place: int, group: int) -> list[str]:
        return [
            f"[rank{rank}]:[E716 17:05:38.1 ProcessGroupNCCL.cpp:632] [Rank {place}] {work(12)}",
            f"[rank{rank}]:[E716 17:05:38.2 ProcessGroupNCCL.cpp:2271] [PG ID {group} PG GUID {group}(tp) Rank {place}]"
            "  failure detected by watchdog at work sequence id: 12 PG status: last enqueued work: 12,"
            " last completed work: 11",
        ]

    signal = behind(3, 11).replace(
        "PG ID 0 PG GUID 0(default_pg) Rank 3", "PG ID 5 PG GUID 5(tp) Rank 1"
    )
    records, _ = read(tmp_path, [*lines(2, 0, 5), signal])
    assert blamed(records) == {Reason.NOT_JOINED: (3,)}
    records, _ = read(tmp_path, [*lines(0, 0, 4), *lines(1, 1, 4), *lines(2, 0, 5)])
    assert blamed(records) == {}


def test_of_several_launches_the_last_one_counts(tmp_path: Path) -> None:
    first = [line for r in (1, 2, 3) for line in v27(r, 100, 100, day=14)] + [behind(0, 99, day=14)]
    second = [line for r in (0, 1, 3) for line in v27(r, 40, 40)] + [behind(2, 39)]
    records, _ = read(tmp_path, first + second)
    assert blamed(records) == {Reason.NOT_JOINED: (2,)}


@pytest.mark.parametrize("operation", ["SEND", "RECV", "COALESCED", "UNKNOWN", "NEW_ONE"])
def test_operations_without_known_members_blame_nobody_and_are_no_clean_bill(
    tmp_path: Path, operation: str
) -> None:
    lines = [
        f"[rank{r}]:[E ProcessGroupNCCL.cpp:632] [Rank {r}] {work(7, operation)}" for r in (0, 1)
    ]
    records, notes = read(tmp_path, lines)
    hang = find_hang(records)
    assert hang.operations
    assert not hang.blames
    assert notes["messages_unpaired"] == 2


def test_a_line_that_is_cut_is_counted_and_the_rest_is_used(tmp_path: Path) -> None:
    cut = v27(1, 31, 31)[0][:130]
    records, notes = read(tmp_path, [*v27(0, 31, 31), cut, *v27(2, 31, 31), behind(1, 30)])
    assert blamed(records) == {Reason.NOT_JOINED: (1,)}
    assert notes["lines_cut"] == 1


def test_ranks_that_several_processes_claim_are_left_out(tmp_path: Path) -> None:
    # Before 2.2 a line has the rank in the group alone: two groups, two different calls of "Rank 1".
    lines = [*v21(0, 9, 9), *v21(1, 9, 9), *v21(1, 14, 14)]
    records, notes = read(tmp_path, lines)
    assert [record.rank for record in records] == [0]
    assert notes["ranks_ambiguous"] == 1


def test_the_size_of_the_job_is_taken_from_the_log_where_it_says_it(tmp_path: Path) -> None:
    lines = ["node1:1:9 [0] NCCL INFO comm 0x55 rank 0 nranks 6 cudaDev 0"]
    records, notes = read(tmp_path, lines + [line for r in range(5) for line in v27(r, 3, 3)])
    assert notes == {}
    assert blamed(records) == {Reason.RANK_GONE: (5,)}


def test_the_stack_of_the_failed_call_is_kept(tmp_path: Path) -> None:
    stack = [
        "[rank0]:[E716 17:05:38.3 ProcessGroupNCCL.cpp:733] Stack trace of the failed collective: ",
        "#0 all_reduce from /opt/env/site-packages/torch/distributed/distributed_c10d.py:2810",
        "#1 reduce_loss from /srv/job/loop.py:57",
        behind(1, 2),
        "#2 another from /srv/job/other.py:1",
    ]
    records, _ = read(tmp_path, [*v27(0, 3, 3), *stack])
    assert records[0].pending[0].frames == (
        "all_reduce (distributed_c10d.py:2810)",
        "reduce_loss (loop.py:57)",
    )


def test_times_have_the_year_in_which_the_file_was_written(tmp_path: Path) -> None:
    records, _ = read(tmp_path, v27(0, 3, 3))
    # 16 July 2025, 17:05:38.1, less what it ran.
    assert records[0].pending[0].created_unix_ns == 1_752_685_538_100_000_000 - 600_010_000_000
    records, _ = read(tmp_path, [line.replace("E716", "E1231") for line in v27(0, 3, 3)])
    assert records[0].pending[0].created_unix_ns < 1_740_000_000_000_000_000


def test_a_log_without_such_lines_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="no whole line of PyTorch's NCCL watchdog") as caught:
        read(tmp_path, ["step 1", "NCCL INFO Bootstrap"])
    assert caught.value.hint is not None
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" in caught.value.hint


def test_any_bytes_are_read_without_an_error() -> None:
    made = random.Random(11)  # noqa: S311
    lines = [*v21(1, 2, 3), *v23(1, 2, 3), *v24(1, 2, 3), *v27(1, 2, 3), behind(1, 2)]
    for _ in range(2000):
        line = made.choice(lines)
        start, end = sorted((made.randrange(len(line)), made.randrange(len(line))))
        list(
            parse_line(line[:start] + made.choice(("", "\x1b[", "]", "9" * 30, "\0")) + line[end:])
        )
