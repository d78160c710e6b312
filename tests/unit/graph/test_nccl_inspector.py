"""NCCL Inspector's lines: what is read of them, whose they are, and what is said of bad ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rootwalk.graph.importers import nccl_inspector
from rootwalk.graph.importers.formats import BrokenPart, ImportOptions, load_importer
from rootwalk.graph.importers.nccl_inspector_format import Member, parse_line, parse_member
from rootwalk.graph.importers.rank_numbers import RankNumbers
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.otel_receiver.imports import ImportRequest
from rootwalk.otel_receiver.request_checks import read_request
from rootwalk.otel_receiver.signals import Signal
from support.inspector_logs import START_US, line, to_bytes


def text(**fields: Any) -> bytes:
    return to_bytes([line(**fields)])


def changed(part: str, name: str, value: Any) -> bytes:
    item = line(times=(START_US, START_US + 1000))
    item[part][name] = value
    return to_bytes([item])


def test_a_line_of_a_collective() -> None:
    record = parse_line(
        text(rank=2, size=8, name="DP Group 0", coll="ReduceScatter", sequence=1407, exec_us=61974)
    )
    assert record.member == Member("node1", 100, "7f8c496ae9f661", 2, 8)
    assert (record.name, record.operation, record.sequence) == (
        "DP Group 0",
        "reduce_scatter",
        1408,
    )
    assert (record.size_bytes, record.device_s) == (1_048_576, 0.061974)
    assert (record.called_unix_ns, record.ended_unix_ns) == (None, None)
    assert record.written_unix_ns == START_US * 1000


def test_a_verbose_line_has_the_times() -> None:
    record = parse_line(text(times=(START_US, START_US + 2500), exec_us=2000))
    assert record.called_unix_ns == START_US * 1000
    assert record.ended_unix_ns == (START_US + 2500) * 1000


def test_a_line_of_a_message() -> None:
    record = parse_line(text(coll="Send", peer=1, sequence=7))
    assert (record.operation, record.is_message, record.sequence, record.peer) == (
        "send",
        True,
        7,
        1,
    )


@pytest.mark.parametrize(
    ("source", "exec_us", "seconds"),
    [
        ("kernel_gpu", 1000, 0.001),
        ("kernel_cpu", 1000, 0.001),
        (None, 1000, 0.001),
        ("collective_cpu", 1000, None),
        ("kernel_gpu", 0, None),
    ],
)
def test_only_what_ran_on_the_device_is_its_time(
    source: str | None, exec_us: int, seconds: float | None
) -> None:
    assert parse_line(text(source=source, exec_us=exec_us)).device_s == seconds


def test_the_member_is_told_without_reading_the_line() -> None:
    for sample in (text(), text(coll="Recv", peer=1), text(times=(START_US, START_US + 9))):
        assert parse_member(sample) == parse_line(sample).member
    assert parse_member(b'{"header": 7}') is None
    assert parse_member(text(rank=2, size=2)) is None


@pytest.mark.parametrize(
    ("content", "saw"),
    [
        (text()[:-40], "saw no JSON at its character"),
        (b"\xff\xfe\n", "saw no UTF-8 at its byte 0"),
        (b"[" * 100_000, "cannot read line"),
        (b'{"n": ' + b"9" * 5000 + b"}", "cannot read line"),
        (b"[]\n", "saw a value of type list at line; needs an object"),
        (b'{"header": {}}', "saw nothing at metadata"),
        (text(version="v5.0"), 'saw format "v5.0"; needs v4.x'),
        (text(coll="Invalid"), 'saw operation "Invalid"'),
        (text(rank=2, size=2), "saw rank 2 of 2; needs one below 2"),
        (text(coll="Send", peer=2), "saw peer 2 of 2"),
        (text(communicator="7f8c"), "saw no hash at header.id"),
        (changed("coll_perf", "coll_exec_time_us", -5), "saw -5 us at coll_perf.coll_exec_time_us"),
        # A difference below zero, as the plugin writes it.
        (changed("coll_perf", "coll_exec_time_us", 2**64 - 5), "saw -5 us at"),
        (changed("coll_perf", "coll_sn", 1.5), "saw a value of type float"),
        (changed("coll_perf", "coll_sn", True), "saw a value of type bool at coll_perf.coll_sn"),
        (changed("coll_perf", "coll_sn", 10**300), "saw a number of more than 64 bits"),
        (changed("metadata", "dump_timestamp_us", 2**61), "needs Unix us"),
        (changed("metadata", "hostname", "\ud800"), "saw a value of type str at metadata.hostname"),
        (changed("metadata", "hostname", "n" * 300), "text of 256 characters at most"),
        (text(times=(START_US, START_US - 1500)), "saw an end 0.001500 s before the call"),
    ],
)
def test_bad_lines_say_what_was_seen(content: bytes, saw: str) -> None:
    with pytest.raises(DecodeError) as caught:
        parse_line(content)
    assert saw in str(caught.value)
    assert "; needs " in str(caught.value)


def read(path: Path, *others: Path, job: str | None = None) -> tuple[list[Any], list[BrokenPart]]:
    requests, broken = [], []
    for part in load_importer("nccl-inspector", ImportOptions((path, *others))).read(path, job):
        if isinstance(part, BrokenPart):
            broken.append(part)
            continue
        assert isinstance(part, ImportRequest)
        assert read_request(Signal.TRACES, part.body).accepted == part.records
        requests.append(part)
    return requests, broken


def spans_of(requests: list[ImportRequest]) -> list[tuple[dict[str, Any], Any, dict[str, Any]]]:
    found = []
    for request in requests:
        message = ExportTraceServiceRequest.FromString(request.body)
        for resource in message.resource_spans:
            owner = values(resource.resource.attributes)
            spans = resource.scope_spans[0].spans
            found += [(owner, span, values(span.attributes)) for span in spans]
    return found


def values(attributes: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in attributes}


def test_a_span_says_what_the_line_said(tmp_path: Path) -> None:
    path = tmp_path / "node1-pid100.log"
    path.write_bytes(text(rank=1, exec_us=1500, name="dp") + text(sequence=1, rank=1, exec_us=20))
    requests, broken = read(path)
    (owner, span, found), (_, second, _) = spans_of(requests)
    assert broken == []
    assert owner["training.rank"] == 1
    assert (owner["training.job.id"], owner["training.world_size"]) == ("nccl-inspector", 2)
    assert (owner["host.name"], owner["process.pid"]) == ("node1", 100)
    assert span.name == "collective.all_reduce"
    assert span.end_time_unix_nano - span.start_time_unix_nano == 1_500_000
    assert second.end_time_unix_nano > span.end_time_unix_nano
    assert found == {
        "collective.operation": "all_reduce",
        "collective.communicator.id": "7f8c496ae9f661-AllReduce",
        "collective.communicator.name": "dp",
        "collective.communicator.size": 2,
        "collective.sequence": 1,
        "collective.size": 1_048_576,
        "collective.backend": "nccl",
        "collective.is_point_to_point": False,
        "collective.is_end_known": False,
        "collective.device_time": 0.0015,
    }


def test_a_message_names_the_rank_at_its_other_end(tmp_path: Path) -> None:
    # Places of a pipeline's communicator are no ranks: places 0 and 1 of it are ranks 1 and 3.
    world = {"communicator": "0xaa", "size": 4}
    pair = {"communicator": "0xbb", "size": 2, "peer": 1, "coll": "Send"}
    paths = []
    for rank, place in ((1, 0), (3, 1)):
        path = tmp_path / f"{rank}.log"
        path.write_bytes(
            text(**world, rank=rank, pid=rank)
            + text(**{**pair, "peer": 1 - place}, rank=place, pid=rank)
        )
        paths.append(path)
    requests, _ = read(*paths)
    (_, _, message) = spans_of(requests)[1]
    assert message["collective.root"] == 3
    assert message["collective.is_point_to_point"] is True


def test_bad_lines_are_named_and_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    cut = text(sequence=4)[:-30]
    path.write_bytes(
        text()
        + b"{no json\n\n"
        + text(sequence=1, version="v3.0")
        + text(sequence=2)
        + text(exec_us=-1, sequence=3)
        + cut
    )
    requests, broken = read(path)
    assert [part.place for part in broken] == ["line 2", "line 4", "line 6", "line 7"]
    assert [found["collective.sequence"] for _, _, found in spans_of(requests)] == [1, 3]


def test_long_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(text() + b'{"header": "' + b"x" * 1_200_000 + b'"}\n' + text(sequence=1))
    requests, broken = read(path)
    assert [part.place for part in broken] == ["line 2"]
    assert "more than 1048576 bytes" in str(broken[0].error)
    assert sum(request.records for request in requests) == 2


def test_the_same_lines_are_the_same_requests(tmp_path: Path) -> None:
    lines = b"".join(text(sequence=n) for n in range(1200))
    plain, packed = tmp_path / "a.log", tmp_path / "b.log.gz"
    plain.write_bytes(lines)
    packed.write_bytes(gzip.compress(lines))
    first, second = read(plain)[0], read(packed, job="j7")[0]
    assert [request.records for request in first] == [500, 500, 200]
    assert [r.request_id for r in first] == [r.request_id for r in second]
    ids = {(span.trace_id, span.span_id) for _, span, _ in spans_of(first)}
    assert ids == {(span.trace_id, span.span_id) for _, span, _ in spans_of(second)}
    assert len(ids) == 1200


def test_members_of_one_collective_share_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(text(rank=0, pid=1) + text(rank=1, pid=2) + text(coll="AllGather", pid=1))
    first, other, second = (span for _, span, _ in spans_of(read(path)[0]))
    assert first.trace_id == second.trace_id != other.trace_id
    assert first.span_id != second.span_id


def test_lines_of_a_process_with_several_ranks_need_the_world(tmp_path: Path) -> None:
    world = [line(rank=rank, size=2, communicator="0xaa") for rank in range(2)]
    other = [line(rank=rank, size=2, communicator="0xbb") for rank in range(2)]
    path = tmp_path / "log"
    path.write_bytes(to_bytes([*world, *other]))
    requests, broken = read(path)
    assert [owner["training.rank"] for owner, _, _ in spans_of(requests)] == [0, 1]
    assert [part.place for part in broken] == ["line 3", "line 4"]
    assert "with several ranks" in str(broken[0].error)


def member(host: str, pid: int, communicator: str, place: int, size: int) -> Member:
    return Member(host, pid, communicator, place, size)


def test_ranks_are_places_of_the_communicator_that_has_all() -> None:
    world = [member("b", 1, "w", 0, 3), member("a", 1, "w", 1, 3), member("a", 2, "w", 2, 3)]
    pair = [member("a", 2, "p", 0, 2), member("a", 1, "p", 1, 2)]
    ranks = RankNumbers([*world, *pair])
    assert ranks.is_told
    assert ranks.world_size == 3
    assert [ranks.rank_of(one) for one in [*world, *pair]] == [0, 1, 2, 2, 1]
    assert [ranks.rank_at("p", 0), ranks.rank_at("p", 7)] == [2, None]


def test_without_it_processes_are_numbered_by_host_and_pid(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    members = [
        member("node10", 1, "x", 0, 2),
        member("node9", 7, "x", 1, 2),
        member("node9", 5, "y", 0, 2),
        member("node10", 3, "y", 1, 2),
    ]
    ranks = RankNumbers(members)
    assert not ranks.is_told
    assert [ranks.rank_of(one) for one in members] == [2, 1, 0, 3]
    assert ranks.world_size == 4
    path = tmp_path / "log"
    path.write_bytes(
        text(communicator="0xaa", pid=1) + text(communicator="0xbb", pid=2, host="node2")
    )
    read(path)
    assert "numbered by host and pid" in caplog.text


def test_what_cannot_be_read_is_told_by_the_import_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(text())
    absent = tmp_path / "absent"
    assert read(path, absent)[1] == []
    with pytest.raises(FileNotFoundError):
        list(nccl_inspector.read(absent, None))


def test_samples_of_the_repository_are_read() -> None:
    folder = Path(__file__).parents[2] / "data" / "nccl_inspector_made"
    paths = sorted(folder.glob("*.log"))
    assert len(paths) == 2
    operations = set()
    for path in paths:
        requests, broken = read(path, *paths)
        assert broken == []
        assert sum(request.records for request in requests) == len(path.read_bytes().splitlines())
        operations |= {found["collective.operation"] for _, _, found in spans_of(requests)}
        assert all(
            json.loads(row)["metadata"]["git_rev"] == "" for row in path.read_text().splitlines()
        )
    assert operations == {"all_reduce", "reduce_scatter", "all_gather", "send", "recv"}
