"""NCCL's debug files of real processes, read while they grow: lines in NCCL's formats, and the real library's file."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from rootwalk.ebpf.nccl_log import LONGEST_WAIT_S, MAX_LINE_BYTES, MAX_VALUES, NcclLogReader
from rootwalk.ebpf.reader import Measurement, Place
from support.live_check import check_measurement

pytestmark = pytest.mark.side_by_side

SLOT = 3
# 2.27: three ways, each told by both of its ends.
LINES = """\
h:7:9 [0] NCCL INFO NCCL version 2.27.5+cuda12.9
h:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
h:7:9 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
h:7:9 [0] NCCL INFO Channel 02 : 0[0] -> 2[2] via SHM/direct/direct comm 0x55d0 nRanks 04
h:7:9 [0] NCCL INFO Channel 00/0 : 3[0] -> 0[0] [receive] via NET/IB/0/GDRDMA comm 0x55d0 nRanks 04
h:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 3[0] [send] via NET/IB/1(3)/GDRDMA comm 0x55d0 nRanks 04
h:7:9 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}
h:7:9 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}
h:7:9 [0] NCCL INFO 64 Bytes -> Algo 0 proto 1 time 12.5
h:7:9 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
"""
# Of NCCL 2.30.7, two ranks of one H200 over TCP.
RECORDED = Path(__file__).parents[2] / "data" / "hardware_h200" / "nccl_log"
WAYS = {"P2P/CUMEM/read": 2, "SHM/direct/direct": 1, "NET/IB/GDRDMA": 1}
Watch = Callable[..., "tuple[NcclLogReader, Path, Clock]"]
SLEEP = "import sys; print('there', flush=True); sys.stdin.read()"


class Clock:
    """A clock that is put forward."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def process(folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process with NCCL's settings that waits."""
    with subprocess.Popen(
        [sys.executable, "-c", SLEEP],
        cwd=folder,
        env=os.environ | {"NCCL_DEBUG": "INFO"} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        started.stdout.readline()
        try:
            yield started
        finally:
            started.kill()


def told(reader: NcclLogReader) -> dict[str, float]:
    """Return the connections by transport."""
    reader.look()
    found: list[Measurement] = list(reader.measurements())
    for one in found:
        check_measurement(one)
        assert one.slot == SLOT
    return {
        str(one.attributes["training.nccl.transport"]): one.value
        for one in found
        if one.metric == "training.nccl.connections"
    }


def chosen(reader: NcclLogReader) -> dict[tuple[object, ...], float]:
    """Return the operations by operation, algorithm and protocol."""
    return {
        tuple(
            one.attributes.get(f"training.nccl.{key}")
            for key in ("operation", "algorithm", "protocol")
        ): one.value
        for one in reader.measurements()
        if one.metric == "training.nccl.choices"
    }


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """Watches a process that has NCCL write to a file; returns the reader, the file and the reader's clock."""
    with ExitStack() as stack:

        def start(pattern: str, **environment: str) -> tuple[NcclLogReader, Path, Clock]:
            started = stack.enter_context(process(tmp_path, NCCL_DEBUG_FILE=pattern, **environment))
            clock = Clock()
            reader = stack.enter_context(closing(NcclLogReader(Place(), clock)))
            reader.watch(started.pid, SLOT)
            host = os.uname().nodename.partition(".")[0]
            return reader, tmp_path / f"nccl.{host}.{started.pid}", clock

        yield start


def test_ways_and_choices_are_told_as_the_file_grows(tmp_path: Path, watch: Watch) -> None:
    reader, path, _ = watch(f"{tmp_path}/nccl.%h.%p")
    path.write_text(LINES[: LINES.index("direct/direct")])  # in the middle of a line
    assert told(reader) == {"P2P/CUMEM/read": 2}
    path.write_text(LINES)
    assert told(reader) == WAYS
    assert told(reader) == WAYS
    assert chosen(reader) == {("all_reduce", "ring", "simple"): 2, (None, "tree", "ll128"): 1}


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        # Rank 0 tells its choices, and rank 1 tells none.
        (
            "nccl.vm.1185",
            {
                ("all_reduce", "ring", "simple"): 20,
                ("broadcast", "ring", "simple"): 1,
                ("broadcast", "ring", "ll"): 3,
            },
        ),
        ("nccl.vm.1186", {}),
    ],
)
def test_the_file_of_a_real_gpus_ranks_is_read(
    tmp_path: Path, watch: Watch, name: str, choices: dict[tuple[str, ...], int]
) -> None:
    reader, path, _ = watch(f"{tmp_path}/nccl.%h.%p")
    path.write_text((RECORDED / name).read_text("utf-8"), "utf-8")
    assert told(reader) == {"NET/Socket": 2}
    assert chosen(reader) == choices


def test_a_file_that_comes_late_or_begins_again_is_read(tmp_path: Path, watch: Watch) -> None:
    reader, path, clock = watch("nccl.%h.%p")  # in its own folder
    assert told(reader) == {}
    path.write_text(LINES)
    assert told(reader) == {}  # it is asked for less and less often
    clock.now_s += LONGEST_WAIT_S
    assert told(reader) == WAYS
    path.write_text(LINES.splitlines()[1] + "\n")
    assert told(reader) == WAYS | {"P2P/CUMEM/read": 3}


@pytest.mark.parametrize(
    ("pattern", "environment"),
    [
        ("nccl.%h.%p", {"NCCL_DEBUG": "WARN"}),
        ("nccl.%h.%p", {"NCCL_DEBUG": "VERSION"}),
        ("nccl.%h", {}),  # others write there too
        ("/dev/stderr", {}),
        ("", {}),
    ],
)
def test_what_is_not_a_processs_own_file_is_not_read(
    tmp_path: Path, watch: Watch, pattern: str, environment: dict[str, str]
) -> None:
    reader, path, _ = watch(pattern, **environment)
    path.write_text(LINES)
    (tmp_path / path.name.rpartition(".")[0]).write_text(LINES)
    assert told(reader) == {}


def test_lines_that_are_none_of_nccls_do_no_harm(tmp_path: Path, watch: Watch) -> None:
    reader, path, _ = watch("nccl.%h.%p")
    long = "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC" + " " * MAX_LINE_BYTES
    many = "".join(
        f"Channel 00 : 0[0] -> 1[1] via NET/Made{chr(65 + i % 26)}{i}x\n" for i in range(99)
    )
    path.write_bytes(
        f"{long}\n{many}".encode() + b"\xff\xfe Channel\n" + LINES.encode() + long.encode() * 3
    )
    found = told(reader)
    assert len(found) == MAX_VALUES
    assert "P2P/IPC" not in found


@pytest.mark.timeout(30)
def test_a_pipe_in_its_place_blocks_nobody(tmp_path: Path, watch: Watch) -> None:
    reader, path, _ = watch("nccl.%h.%p")
    os.mkfifo(path)
    assert told(reader) == {}


def test_a_rank_that_has_ended_is_told_no_more(tmp_path: Path, watch: Watch) -> None:
    reader, path, _ = watch("nccl.%h.%p")
    path.write_text(LINES)
    assert told(reader) == WAYS
    pid = int(path.name.rpartition(".")[2])
    reader.forget(pid)
    reader.forget(pid)
    assert told(reader) == {}


CALLS_NCCL = """
import ctypes, sys
nccl = ctypes.CDLL(sys.argv[1])
print(nccl.ncclGetUniqueId(ctypes.create_string_buffer(128)), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.nccl") is None,
    reason="needs PyTorch",
)
def test_the_real_library_writes_where_it_is_read(tmp_path: Path) -> None:
    """Without a GPU it makes no channels: what it is known for here is the name of its file."""
    spec = importlib.util.find_spec("nvidia.nccl")
    assert spec is not None
    library = Path(next(iter(spec.submodule_search_locations or ()))) / "lib" / "libnccl.so.2"
    with subprocess.Popen(
        [sys.executable, "-c", CALLS_NCCL, str(library)],
        env=os.environ
        | {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_FILE": f"{tmp_path}/nccl.%h.%p",
            "NCCL_SOCKET_IFNAME": "lo",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        started.stdout.readline()
        with closing(NcclLogReader(Place())) as reader:
            reader.watch(started.pid, SLOT)
            (path,) = tmp_path.iterdir()
            assert "NCCL" in path.read_text()
            with path.open("a") as file:
                file.write(LINES)
            assert told(reader) == WAYS
        started.kill()
