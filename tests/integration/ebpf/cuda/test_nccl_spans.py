"""Collectives of NCCL as spans that the agent makes: two ranks with steps of their own, the stand-ins, a server.

rank 0, 1   |-- forward --|-- backward: all_reduce, all_reduce, send --|        12 steps; their hooks see no collective
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from rootwalk.ebpf.agent import Agent, AgentConfig
from rootwalk.ebpf.cuda.reader import CudaReader
from rootwalk.ebpf.reader import CollectiveCall
from rootwalk.instrumentation import ids, semconv
from support import workloads
from support.bpf_programs import open_targets
from support.cuda_standin import DRIVER, NCCL, build_standins
from support.cuda_watch import find_standins, open_reader, watch
from support.otlp_sink import OtlpSink, attributes, otlp_sink
from support.puppet import puppet

pytestmark = [pytest.mark.bpf, pytest.mark.slow]

STEPS, RANKS, SLOT = 12, 2, 3
UNIQUE_ID = bytes(range(1, 129))
ID = ids.nccl_communicator_id(UNIQUE_ID)
# Rank, folder of rings, file to wait for, what the hooks record (a backend, or nothing), libraries.
RANK = f"""
import ctypes, os, sys, time
from pathlib import Path
from rootwalk.instrumentation.communicator import Communicator
from rootwalk.instrumentation.identity import read_identity
from rootwalk.instrumentation.shared_ring import RingWriter
from rootwalk.instrumentation.tracker import StepTracker
rank, rings, go, records, *paths = sys.argv[1:]
P, Z = ctypes.c_void_p, ctypes.c_size_t
nccl = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in paths][-1]
class Id(ctypes.Structure): _fields_ = [("internal", ctypes.c_char * 128)]
tracker = StepTracker(RingWriter(read_identity(os.environ), Path(rings)))
group = Communicator(tracker, f"feed|2|{{records}}|default_pg")
while not Path(go).exists(): time.sleep(0.01)
comm = P()
assert nccl.ncclCommInitRank(ctypes.byref(comm), {RANKS}, Id.from_buffer_copy({UNIQUE_ID!r}), int(rank)) == 0
for step in range({STEPS}):
    tracker.begin_phase("forward")
    time.sleep(0.02)
    tracker.end_phase()
    tracker.begin_phase("backward")
    for _ in range(2):
        if records: group.begin(1, "all_reduce", 44, is_p2p=False)
        assert nccl.ncclAllReduce(P(64), P(64), Z(11), 7, 0, comm, P(0)) == 0
        if records: group.end(1, is_known=records != "nccl")
    assert nccl.ncclSend(P(64), Z(11), 9, 1 - int(rank), comm, P(0)) == 0
    time.sleep(0.02)
    tracker.end_phase()
    tracker.begin_phase("optimizer")
    tracker.end_optimizer()
tracker.close()
"""


@contextmanager
def ranks(folder: Path, records: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run both ranks; they begin when the file `go` is there."""
    paths = [str(build_standins() / name) for name in (DRIVER, NCCL)]
    with ExitStack() as stack:
        started = []
        for rank in range(RANKS):
            environment = {
                **os.environ,
                "ROOTWALK_JOB": "fake",
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
            }
            command = [sys.executable, "-c", RANK, str(rank), str(folder / "rings")]
            process = subprocess.Popen(
                [*command, str(folder / "go"), records, *paths], env=environment
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(process)
        yield started


def watch_job(folder: Path, records: str = "", level: int = 2) -> OtlpSink:
    """Return what an agent has told of both ranks."""
    find_standins()  # skips without a compiler
    with open_targets() as targets:
        open_reader(targets).close()  # skips where probes are refused
    rings = folder / "rings"
    rings.mkdir()
    with otlp_sink() as sink:
        config = AgentConfig(
            sink.endpoint, job="fake", level=level, budget_ratio=None, ring_directories=[rings]
        )
        with ranks(folder, records) as started:
            # They have loaded the libraries: the agent need not look for them again.
            workloads.wait_until(lambda: len(list(rings.glob("*.ring"))) == RANKS, 30.0)
            agent = Agent(config)
            try:
                _drive(agent, started, rings, folder / "go")
            finally:
                agent.close()
        return sink


def _drive(agent: Agent, started: list[subprocess.Popen[bytes]], rings: Path, go: Path) -> None:
    def is_over() -> bool:
        agent.round()
        is_gone = all(process.poll() is not None for process in started)
        return is_gone and not list(rings.glob("*.ring"))

    for _ in range(20):  # each attaches to one library at most
        agent.round()
        time.sleep(0.02)
    go.touch()
    workloads.wait_until(is_over, 30.0)


def of_agent(sink: OtlpSink) -> list[Span]:
    spans = [span for span in sink.spans() if span.name.startswith("collective.")]
    return [span for span in spans if attributes(span)[semconv.COLLECTIVE_COMMUNICATOR_ID] == ID]


def test_calls_that_the_hooks_do_not_see_are_spans_under_their_phases(tmp_path: Path) -> None:
    sink = watch_job(tmp_path)
    found = of_agent(sink)
    assert len({span.span_id for span in found}) == len(found) == RANKS * STEPS * 3
    reduced = [span for span in found if span.name == "collective.all_reduce"]
    told = attributes(reduced[0])
    assert {
        semconv.COLLECTIVE_BACKEND: "nccl",
        semconv.COLLECTIVE_COMMUNICATOR_ID: ID,
        semconv.COLLECTIVE_COMMUNICATOR_SIZE: RANKS,
        semconv.COLLECTIVE_SIZE: 44,
        semconv.COLLECTIVE_DATA_TYPE: "Float",
        semconv.COLLECTIVE_IS_POINT_TO_POINT: False,
        semconv.COLLECTIVE_IS_END_KNOWN: False,
        semconv.TRAINING_PHASE: "backward",
    }.items() <= told.items()
    # Both ranks' spans of a collective link to one span context, in one trace, and lie below their own phases.
    phases = {span.span_id for span in sink.spans() if span.name == "backward"}
    by_sequence: dict[int, list[Span]] = {}
    for span in reduced:
        by_sequence.setdefault(int(str(attributes(span)[semconv.COLLECTIVE_SEQUENCE])), []).append(
            span
        )
    assert sorted(by_sequence) == list(range(1, 2 * STEPS + 1))
    for sequence, (first, second) in by_sequence.items():
        shared = ids.collective_shared_id("fake", 0, ID, sequence, is_p2p=False)
        assert first.links[0].span_id == second.links[0].span_id == shared
        assert first.trace_id == second.trace_id == first.links[0].trace_id
        assert first.parent_span_id != second.parent_span_id
        assert {first.parent_span_id, second.parent_span_id} <= phases
    sends = [attributes(span) for span in found if span.name == "collective.send"]
    assert {one[semconv.COLLECTIVE_IS_POINT_TO_POINT] for one in sends} == {True}
    numbers = [int(str(one[semconv.COLLECTIVE_SEQUENCE])) for one in sends]
    assert sorted(numbers) == sorted([*range(1, STEPS + 1)] * RANKS)


def test_collectives_that_the_hooks_record_are_there_once(tmp_path: Path) -> None:
    sink = watch_job(tmp_path, "nccl")
    assert of_agent(sink) == []
    recorded = [span for span in sink.spans() if span.name == "collective.all_reduce"]
    assert len(recorded) == RANKS * STEPS * 2


def test_hooks_that_record_another_backend_leave_nccl_to_the_agent(tmp_path: Path) -> None:
    assert len(of_agent(watch_job(tmp_path, "gloo"))) == RANKS * STEPS * 3


def test_level_1_tells_no_calls(tmp_path: Path) -> None:
    assert of_agent(watch_job(tmp_path, level=1)) == []


def test_reader_tells_calls_at_level_2_only() -> None:
    libraries = find_standins()
    code = f"""
import ctypes
P, Z = ctypes.c_void_p, ctypes.c_size_t
paths = {[str(libraries[0]), str(libraries[-1])]!r}
nccl = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in paths][-1]
class Id(ctypes.Structure): _fields_ = [("internal", ctypes.c_char * 128)]
comm = P()
def turn():
    if not comm.value:
        nccl.ncclCommInitRank(ctypes.byref(comm), 2, Id.from_buffer_copy({UNIQUE_ID!r}), 0)
    nccl.ncclAllGather(P(64), P(64), Z(11), 123, comm, P(0))  # a type that nobody knows
    nccl.ncclAllGather(P(64), P(64), Z(11), 7, P(0x5EED00), P(0))  # a communicator that nobody has made
"""
    with open_targets() as targets:
        reader = open_reader(targets)
        try:
            with puppet(code) as process:
                watch(targets, reader, process.pid, SLOT)
                process.turn()
                found = _calls(reader)
                assert found == [
                    CollectiveCall(
                        *(SLOT, found[0].start_ns, found[0].end_ns, "all_gather", ID),
                        *(2, 1, None, None, False),
                    )
                ]
                assert 0 < found[0].start_ns < found[0].end_ns < time.monotonic_ns()
                assert _calls(reader) == []
                reader.set_level(1)
                process.turn()
                reader.set_level(2)
                process.turn()
                assert [one.sequence for one in _calls(reader)] == [3]
        finally:
            reader.close()


def _calls(reader: CudaReader) -> list[CollectiveCall]:
    return list(reader.calls())
