"""Throttling on this machine's own control groups, against the kernel's own numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.cgroups import CgroupReader, read_counts
from rootwalk.ebpf.throttling import RankThrottling
from rootwalk.graph.commands.cpu_limit import CpuLimit, find_group_tree
from rootwalk.instrumentation.errors import UnavailableError
from support import workloads

# So little that even a busy machine leaves more than that to a process.
CPUS = 0.1
LOOKS = 4
LOOK_INTERVAL_S = 0.3


@pytest.fixture
def limit() -> Iterator[CpuLimit]:
    try:
        made = CpuLimit.create(find_group_tree(), CPUS)
    except UnavailableError as error:
        pytest.skip(f"cgroup: {error.reason}")
    yield made
    made.remove()


@pytest.mark.flaky(reruns=2)  # a machine that is busy enough leaves nothing to be throttled
@pytest.mark.parametrize("threads", [1, 2])
def test_busy_process_with_a_limit(limit: CpuLimit, threads: int) -> None:
    cpu = workloads.last_cpu()
    code = workloads.burn(cpu) if threads == 1 else workloads.burn_everywhere(2)
    with workloads.python(code) as process:
        reader = CgroupReader()
        throttling = RankThrottling(process.pid, reader)
        throttling.look(time.monotonic_ns)
        limit.add_tree(process.pid)
        throttling.look(time.monotonic_ns)
        start = time.monotonic_ns()
        levels = reader.levels(process.pid)
        assert levels is not None
        assert Path(levels[0].folder) == limit.group
        before = read_counts(levels[0])
        throttling.look(time.monotonic_ns)
        for _ in range(LOOKS):
            time.sleep(LOOK_INTERVAL_S)
            throttling.look(time.monotonic_ns)
        after, end = read_counts(levels[0]), time.monotonic_ns()
        throttling.look(time.monotonic_ns)
        totals = throttling.totals()
    assert before is not None
    assert after is not None
    found = throttling.throttled_ns(start, end)
    assert found is not None
    summed_ns = after.throttled_ns - before.throttled_ns
    wall_ns = end - start
    # What is counted at the end of a period of 100 ms may fall on the other side of a look.
    if threads == 1:
        assert found == pytest.approx(summed_ns, abs=100_000_000)
    else:
        assert found <= summed_ns + 100_000_000
    assert 0.3 * wall_ns < found <= wall_ns
    assert totals is not None
    assert totals.limit is not None
    assert totals.limit.cpus == pytest.approx(CPUS)
    assert totals.throttled_periods >= 2


def test_rank_without_a_limit_is_never_throttled() -> None:
    with workloads.python(workloads.burn(workloads.last_cpu())) as process:
        reader = CgroupReader()
        if reader.backend is None or reader.levels(process.pid) is None:
            pytest.skip("cgroup: NO_CPU_CONTROLLER")
        throttling = RankThrottling(process.pid, reader)
        throttling.look(time.monotonic_ns)
        start = time.monotonic_ns()
        time.sleep(0.3)
        end = time.monotonic_ns()
        throttling.look(time.monotonic_ns)
    totals = throttling.totals()
    assert totals is not None
    if totals.limit is not None:
        pytest.skip("cgroup: NO_CGROUP_ACCESS: these tests run under a limit themselves")
    assert throttling.throttled_ns(start, end) == 0
