"""How much the scheduler program tells at each level, and that it changes without a restart."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rootwalk.ebpf.agent import Agent, AgentConfig
from rootwalk.ebpf.bcc_backend import BCC
from rootwalk.ebpf.bpf_calls import enable_statistics
from rootwalk.ebpf.control import ask_agents
from rootwalk.ebpf.events import SampledInterval, SchedEvent, ThreadExit, ThreadState
from rootwalk.ebpf.program_time import ProgramTime
from rootwalk.ebpf.targets import CORE
from rootwalk.instrumentation import semconv
from support import fake_rank, workloads
from support.bpf_programs import LoneBackend, skip_without
from support.otlp_sink import OtlpSink, attributes, otlp_sink

# A thread that is held up on its way into or out of a wait makes it shorter or longer: one quiet try of three decides.
pytestmark = [pytest.mark.bpf, pytest.mark.flaky(reruns=2)]

LONG, LONG_S = 37, 0.004
SHORT, SHORT_S = 211, 0.00006
# A wait for less than 20 us is none, as of a thread that was held up on its way into it: longer where all are counted.
COUNTED_S = 0.0003
# Each line asks for one round of many short waits, of so many seconds or little more, and some of 4 ms. It ends with a
# line that says how many were long by the thread's own clock: on a slow machine a short one may be.
WAITER = f"""
import ctypes, sys, time
ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: the kernel may not let two naps end together
def nap(seconds):
    start = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - start >= {LONG_S / 2}
for line in sys.stdin:
    long, short_s = 0, float(line)
    for number in range({SHORT}):
        long += nap(short_s)
        if number % {SHORT // LONG} == 0 and number < {LONG * (SHORT // LONG)}:
            long += nap({LONG_S})
    print(long, flush=True)
"""
LONG_NS = int(LONG_S * 1e9)


@pytest.fixture(params=[CORE, pytest.param(BCC, marks=pytest.mark.long)], ids=["core", "bcc"])
def backend(request: pytest.FixtureRequest) -> Iterator[LoneBackend]:
    skip_without(request.param)
    opened = LoneBackend(request.param)
    yield opened
    opened.close()


class Waiter:
    """A process with one thread that waits when it is told to; `long_naps` is what it says of its last round."""

    long_naps = 0

    def __init__(self, backend: LoneBackend) -> None:
        self._backend = backend
        self._process = subprocess.Popen(
            [sys.executable, "-c", WAITER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        backend.watch(self._process.pid, 1)
        self.round()  # imports, and the record of the thread

    def round(
        self, short_s: float = SHORT_S
    ) -> tuple[list[SchedEvent], list[SampledInterval], int]:
        """Return what was told of one round, and for how long the thread was blocked in it by the kernel's own sum."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._backend.read()
        before_ns = self._blocked_ns()
        self._process.stdin.write(f"{short_s}\n")
        self._process.stdin.flush()
        self.long_naps = int(self._process.stdout.readline())
        time.sleep(0.05)  # it blocks again
        blocked_ns = self._blocked_ns() - before_ns
        records = self._backend.read()
        assert not any(isinstance(one, ThreadExit) for one in records)
        events = [one for one in records if isinstance(one, SchedEvent)]
        return events, [one for one in records if isinstance(one, SampledInterval)], blocked_ns

    def _blocked_ns(self) -> int:
        threads = self._backend.threads()
        record = threads.get(self._process.pid)
        return record.totals.blocked_ns if record is not None else 0

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def waiter(backend: LoneBackend) -> Iterator[Waiter]:
    opened = Waiter(backend)
    yield opened
    opened.close()


def long_ones(events: list[SchedEvent]) -> list[SchedEvent]:
    """Return the waits of 4 ms; the one for the next round is far longer."""
    return [
        event
        for event in events
        if event.state == ThreadState.BLOCKED
        and event.end_ns - event.start_ns >= LONG_NS / 2
        and event.wait is not None
        and event.wait.call in {35, 115, 230}  # nanosleep, clock_nanosleep on arm64, on x86
    ]


def test_nothing_leaves_the_kernel_for_an_event_at_level_0(
    backend: LoneBackend, waiter: Waiter
) -> None:
    backend.set_level(0)
    waiter.round()  # the first sum of a thread that was there before tells nothing
    events, sums, blocked_ns = waiter.round()
    assert events == []
    # A sum each 20 ms at most, of waits that last 150 ms and 211 times 60 us or so.
    assert 3 <= len(sums) <= 2 + sum(one.end_ns - one.start_ns for one in sums) / 20e6
    # The wait for the next round was in progress before and after.
    told_ns = sum(one.blocked_ns for one in sums)
    assert told_ns >= LONG * LONG_NS
    assert abs(told_ns - blocked_ns) <= 0.05 * blocked_ns + 25_000_000


def test_every_stall_is_told_by_itself_at_level_1(backend: LoneBackend, waiter: Waiter) -> None:
    backend.set_level(1)
    waiter.round()
    events, sums, blocked_ns = waiter.round()
    assert LONG <= len(long_ones(events)) <= waiter.long_naps
    assert sums
    told_ns = sum(one.blocked_ns for one in sums)
    told_ns += sum(e.end_ns - e.start_ns for e in events if e.state == ThreadState.BLOCKED)
    # All but the short ones of the last 5 ms.
    assert told_ns == pytest.approx(blocked_ns, rel=0.05)


def test_every_wait_is_told_by_itself_at_level_2(backend: LoneBackend, waiter: Waiter) -> None:
    backend.set_level(2)
    waiter.round()
    events, sums, blocked_ns = waiter.round(COUNTED_S)
    assert sums == []
    told_ns = sum(e.end_ns - e.start_ns for e in events if e.state == ThreadState.BLOCKED)
    assert told_ns == pytest.approx(blocked_ns, rel=0.01)
    assert LONG <= len(long_ones(events)) <= waiter.long_naps
    naps = [
        event for event in events if event.wait is not None and event.wait.call in {35, 115, 230}
    ]
    assert 0.97 * (LONG + SHORT) <= len(naps) <= LONG + SHORT


def test_levels_change_while_it_runs(backend: LoneBackend, waiter: Waiter) -> None:
    counts = []
    for level in (2, 0, 1, 2):
        backend.set_level(level)
        waiter.round()
        counts.append(len(waiter.round(COUNTED_S if level == 2 else SHORT_S)[0]))
    assert counts[1] == 0
    assert LONG <= counts[2] < LONG + SHORT <= min(counts[0], counts[3])
    assert backend.losses()["bpf_ring_full"] == 0


def test_time_of_programs_by_the_kernels_own_statistics(
    backend: LoneBackend, waiter: Waiter
) -> None:
    measured = ProgramTime(backend.run_time_ns, enable_statistics, is_always_on=False)
    measured.look(0.0)
    waiter.round()
    counted_ns = measured.look(2.0)
    measured.close()
    if not counted_ns:
        pytest.skip("kernel: no run-time statistics")
    # 248 waits with two switches and a wake-up each, at 0.1 us or more.
    assert counted_ns["on_switch"] > 2 * (LONG + SHORT) * 100
    assert counted_ns["on_wakeup"] > (LONG + SHORT) * 100
    before = dict(measured.look(3.0))
    waiter.round()
    assert dict(measured.look(4.0)) == before  # they are off again


@contextmanager
def running(agent: Agent) -> Iterator[None]:
    thread = threading.Thread(target=agent.run)
    thread.start()
    try:
        yield
    finally:
        agent.stop()
        thread.join()


def levels_of(folder: Path, request: dict[str, object]) -> list[int]:
    return [one["level"] for answer in ask_agents(request, [folder]) for one in answer["ranks"]]


def has_counted(folder: Path) -> bool:
    """Return whether the agent has told a cost since events came and spans went."""
    cost = ask_agents({}, [folder])[0]["cost"]
    return bool(cost.get("sent_bytes") and cost["events"])


def told_waits(sink: OtlpSink) -> set[object]:
    """Return from which lengths on waits were told of the steps that were sent; None for not at all."""
    steps = [span for span in sink.spans() if span.name == "training.rank_step"]
    return {attributes(span).get(semconv.TRAINING_WAIT_MIN_TIME) for span in steps}


def test_a_running_agent_takes_another_level_and_tells_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ROOTWALK_JOB", "fake"), ("RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    sink: OtlpSink
    with otlp_sink() as sink:
        config = AgentConfig(
            sink.endpoint, job="fake", ring_directories=[tmp_path], budget_ratio=1e3
        )
        agent = Agent(config)
        command = [sys.executable, fake_rank.__file__, str(tmp_path), "100", "0"]
        with running(agent), subprocess.Popen(command) as process:
            workloads.wait_until(lambda: levels_of(tmp_path, {}) == [1], 20.0)
            assert levels_of(tmp_path, {"level": 2, "ranks": [5]}) == [1]
            assert levels_of(tmp_path, {"level": 0, "for_s": 4.0}) == [0]
            workloads.wait_until(lambda: levels_of(tmp_path, {}) == [1], 20.0)
            workloads.wait_until(lambda: has_counted(tmp_path), 20.0)
            workloads.wait_until(lambda: told_waits(sink) >= {None, 0.0001}, 20.0)
            (answer,) = ask_agents({}, [tmp_path])
            process.kill()
    assert json.dumps(answer)
    assert 0.0 < answer["cost"]["cpu_s"] <= time.process_time()
    assert answer["cost"]["resident_bytes"] > 1_000_000
    assert answer["cost"]["events"] > 0
    assert answer["cost"]["dropped"]["ring_full"] == 0
