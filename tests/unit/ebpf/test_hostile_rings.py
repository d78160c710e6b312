"""Files of another user in the folder of rings: two ranks beside them are read as if there were none."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import psutil
import pytest

from rootwalk.ebpf import ring_files, ring_owners
from rootwalk.ebpf.rank_stream import RankStream
from rootwalk.ebpf.rank_streams import RankStreams
from rootwalk.ebpf.ring_files import RingFiles
from rootwalk.ebpf.scope import Scope
from rootwalk.ebpf.stalls import ProcessDetails
from rootwalk.ebpf.wait_details import WaitDetails
from rootwalk.ebpf.watched import WatchedRanks
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.ring_layout import (
    COUNTER,
    FILE_BYTES,
    IDENTITY_OFFSET,
    LAYOUT,
    LIVE_OFFSET,
    MAGIC,
    SLOT,
    SLOT_BYTES,
    SLOT_CAPACITY,
    SLOTS_OFFSET,
    STRING_CAPACITY,
)
from rootwalk.instrumentation.shared_ring import RingReader
from support.rings import Rank

SEED = 43
FILES = 3000
BATCH = 250
STEPS = 4

WHO: dict[str, object] = {
    "job": "j9",
    "attempt": 0,
    "rank": 0,
    "local_rank": 0,
    "world_size": 1,
    "pid": 999_999,
    "host_id": "h",
    "host_name": "h",
    "service_name": "s",
    "release": "",
}
CHANGES: tuple[dict[str, object], ...] = (
    {"pid": "1\0"},
    {"pid": -5},
    {"pid": 10**30},
    {"pid": True},
    {"rank": {}},
    {"rank": 1.5},
    {"rank": 1e400},
    {"job": []},
    {"job": "\ud800"},
    {"job": "\x1b[2J"},
    {"job": "x" * 3000},
    {"world_size": None},
    {"extra": 1},
)
BAD_IDENTITIES: tuple[bytes, ...] = (
    b"[" * 3000,
    b'{"a":' * 600,
    b"null",
    b"[]",
    b"{}",
    b"\xff\xfe",
    b"9" * 3000,
    *(json.dumps(WHO | change).encode() for change in CHANGES),
)


def _ring(
    identity: bytes,
    slots: tuple[tuple[int, ...], ...] = (),
    words: Mapping[int, int] = MappingProxyType({}),
) -> bytearray:
    """Return a ring with an identity, some slots, and words by their offset."""
    content = bytearray(FILE_BYTES)
    layout = (MAGIC, STRING_CAPACITY, SLOT_CAPACITY, SLOT_BYTES, len(identity))
    LAYOUT.pack_into(content, 0, *layout)
    content[IDENTITY_OFFSET : IDENTITY_OFFSET + len(identity)] = identity
    for number, fields in enumerate(slots):
        SLOT.pack_into(content, SLOTS_OFFSET + SLOT_BYTES * number, number + 1, *fields)
    for offset, value in words.items():
        COUNTER.pack_into(content, offset, value)
    return content


MAX = 2**64 - 1
GOOD = json.dumps(WHO).encode()
BAD_SLOTS: tuple[tuple[int, ...], ...] = (
    (99, 0, 0, 1, 2, 0, 0, 0, 0),
    (0, 0, 0, 1, 2, 0, 0, 0, 0),
    (1, 0xFFFF, 0xFFFFFFFF, MAX, MAX, MAX, MAX, MAX, MAX),
    (3, 0, 1, 1, 2, 1, MAX, MAX, MAX),
    (2, 0, 1, 5, 2, 1, 0xFFFFFFFF, 0, MAX),
)


def _write(folder: Path, number: int, randomness: random.Random) -> None:
    """Write a file that no rank writes."""
    path = folder / f"{number}-bad.ring"
    match number % 12:
        case 0:
            path.write_bytes(_ring(BAD_IDENTITIES[number // 12 % len(BAD_IDENTITIES)]))
        case 1:
            path.write_bytes(_ring(GOOD, (BAD_SLOTS[number // 12 % len(BAD_SLOTS)],)))
        case 2:
            content = _ring(GOOD)
            for _ in range(200):
                content[randomness.randrange(FILE_BYTES)] = randomness.randrange(256)
            path.write_bytes(content)
        case 3:
            path.write_bytes(randomness.randbytes(randomness.choice((0, 1, 100, 5000))))
        case 4:
            os.mkfifo(path)
        case 5:
            path.symlink_to("/dev/zero")
        case 6:
            path.mkdir()
        case 7:
            word = randomness.choice((24, 32, 40, 64, LIVE_OFFSET, 200, 208, 216))
            path.write_bytes(_ring(GOOD, words={word: randomness.choice((MAX, 1 << 63, 2))}))
        case 8:
            words = {LIVE_OFFSET + 8 * n: MAX - 1 for n in range(8)}
            path.write_bytes(_ring(GOOD, words=words))
        case 9:
            content = _ring(GOOD)
            content[:4096] = randomness.randbytes(4096)
            path.write_bytes(content)
        case 10:
            content = _ring(GOOD, ((3, 0, 0, 1, 2, 1, 0, 1 << 16, 5),), {64: 1})
            content[4096 : 4096 + 7] = b"a|b|c|d"
            path.write_bytes(content)
        case _:
            path.write_bytes(_ring(GOOD)[: randomness.randrange(FILE_BYTES)])


class Bench:
    """An agent's rings and streams, with two ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranks = [Rank(folder, number) for number in (0, 1)]
        for rank in self.ranks:
            rank.reader.close()
        self.files = RingFiles([folder], None, Scope(None))
        watched = cast(WatchedRanks, FakeRanks())
        self.streams = RankStreams(self.files, watched)
        self.steps: dict[int, int] = {0: 0, 1: 0}
        self.now_ns = 1_000

    def work(self) -> None:
        """Let each rank make a step."""
        for rank in self.ranks:
            for name in ("forward", "backward", "optimizer"):
                rank.phase(name, self.now_ns + 10, self.now_ns + 20)
        self.now_ns += 100

    def round(self) -> None:
        """Do what the agent does in a round."""
        for reader in self.files.open_new(self.streams.keys()):
            stream = RankStream(reader, None, ProcessDetails().read, WaitDetails(), 1)
            self.streams[reader.path] = stream
        self.streams.each(RankStream.read)
        for stream, batch in self.streams.each(RankStream.batch):
            if batch is not None:
                stream.acknowledge()
        for stream in self.streams.values():
            ring = stream.ring
            if ring is not None:
                ring.movement(), ring.frontiers(), ring.exception(), ring.live_state()
            stream.context_of(1), stream.losses()

    def victims(self) -> list[int]:
        """Return the steps that were read of each rank."""
        by_pid = {s.identity.pid: s.steps for s in self.streams.values()}
        return [by_pid.get(1000, -1), by_pid.get(1001, -1)]


class FakeRanks:
    def find(self, _pid: int) -> None:
        return None


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(
        "rootwalk.ebpf.rank_stream.is_process_alive", lambda pid, _ticks: pid != 999_999
    )
    made = Bench(tmp_path)
    yield made
    for path in list(made.streams):
        made.streams.drop(path)


def test_thousands_of_files_beside_two_ranks(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    randomness = random.Random(SEED)  # noqa: S311  (contents of files)
    process = psutil.Process()
    done, sizes = 0, []
    with caplog.at_level(logging.WARNING):
        for first in range(0, FILES, BATCH):
            for number in range(first, first + BATCH):
                _write(bench.folder, number, randomness)
            for _ in range(STEPS):
                bench.work()
                bench.round()
                done += 1
            bench.round()
            # All steps but the one that is open are there.
            assert bench.victims() == [done - 1, done - 1] or bench.victims() == [done, done]
            for path in bench.folder.glob("*-bad.ring"):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            for path in [p for p in bench.streams if p.name.endswith("-bad.ring")]:
                bench.streams.drop(path)
            sizes.append((process.num_fds(), process.memory_info().rss))
    assert sizes[-1][0] <= sizes[0][0]
    assert sizes[-1][1] <= sizes[1][1] + 64 * 1024 * 1024
    assert len(caplog.messages) < 40
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize("size_bytes", [0, 100, 4096, FILE_BYTES - 1])
def test_a_ring_that_is_cut_while_it_is_read_ends_alone(bench: Bench, size_bytes: int) -> None:
    path = bench.folder / "1-cut.ring"
    path.write_bytes(_ring(GOOD))
    bench.work()
    bench.round()
    assert path in bench.streams
    os.truncate(path, size_bytes)
    for _ in range(3):
        bench.work()
        bench.round()
    assert bench.victims() == [3, 3] or bench.victims() == [4, 4]


def test_a_stream_that_fails_in_any_way_ends_alone(bench: Bench) -> None:
    path = bench.folder / "1-odd.ring"
    path.write_bytes(_ring(GOOD))
    bench.work()
    bench.round()

    def fail(stream: RankStream) -> int:
        if stream.identity.job == "j9":
            raise RecursionError("deep")
        return stream.steps

    assert len(bench.streams.each(fail)) == 2
    assert path not in bench.streams
    bench.round()
    assert path not in bench.streams


def test_a_ring_must_belong_to_the_user_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user's file with the rank and pid of a rank that runs."""
    rank = Rank(tmp_path)
    rank.reader.close()
    monkeypatch.setattr(RingReader, "owner", property(lambda _self: 4711))
    monkeypatch.setattr(ring_files, "is_process_alive", lambda *_: True)
    monkeypatch.setattr(ring_files, "read_users", lambda _pid: frozenset({4712}))
    with caplog.at_level(logging.WARNING):
        assert RingFiles([tmp_path], None, Scope(None)).open_new([]) == []
    assert "names process 1000 of another user" in caplog.text


def test_another_user_adds_no_rank_to_a_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(RingReader, "owner", property(lambda _self: 4711))
    bench.work()
    bench.round()
    forged = bench.folder / "9-forged.ring"
    forged.write_bytes(_ring(json.dumps(WHO | {"job": "j1", "rank": 1}).encode()))
    monkeypatch.setattr(RingReader, "owner", property(lambda _self: 4712))
    with caplog.at_level(logging.WARNING):
        bench.round()
    assert forged not in bench.streams
    assert "for a job of user" in caplog.text


def test_users_of_a_process() -> None:
    users = ring_owners.read_users(os.getpid())
    assert users is not None
    assert os.geteuid() in users
    assert ring_owners.read_users(4_000_000) is None


def test_folders_that_others_made_are_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / f"rootwalk-{os.getuid()}"
    own.mkdir()
    (tmp_path / "rootwalk-link").symlink_to("/etc")
    (tmp_path / "rootwalk-12345").mkdir()
    (tmp_path / "rootwalk-file").touch()
    monkeypatch.setattr(ring_files, "ring_directory", lambda: own)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert ring_files.find_folders() == [own]


def _refused(path: Path) -> str:
    try:
        RingReader(path).close()
    except (DecodeError, OSError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("make", "saw"),
    [
        (lambda path: os.mkfifo(path), "mode"),
        (lambda path: path.symlink_to("/dev/zero"), os.strerror(errno.ELOOP)),
        (lambda path: path.write_bytes(b""), "0 bytes"),
        (lambda path: path.write_bytes(_ring(b"[" * 3000)), "identity"),
    ],
)
def test_what_is_no_ring_is_refused_and_leaves_no_descriptor(
    tmp_path: Path, make: Callable[[Path], Any], saw: str
) -> None:
    path = tmp_path / "1-x.ring"
    make(path)
    before = psutil.Process().num_fds()
    assert all(saw in _refused(path) for _ in range(50))
    assert psutil.Process().num_fds() == before
