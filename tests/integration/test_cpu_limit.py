"""A CPU limit on this machine's own control groups: it limits, children included, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rootwalk.graph.commands.cpu_limit import CpuLimit, GroupTree, find_group_tree, remove_leftovers
from rootwalk.instrumentation.errors import UnavailableError

# A parent that waits and a child that burns CPU: the limit has to hold for the child.
TREE = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print(flush=True)\\nwhile True: pass"])
child.wait()
"""


@pytest.fixture
def tree() -> GroupTree:
    try:
        tree = find_group_tree()
        CpuLimit.create(tree, 1.0).remove()
    except UnavailableError as error:
        pytest.skip(f"cgroup: {error.reason}")
    return tree


@pytest.fixture
def burner() -> Iterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    (child,) = psutil.Process(process.pid).children()
    yield child
    child.kill()
    process.wait()
    process.stdout.close()


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def throttled_periods(group: Path) -> int:
    words = (group / "cpu.stat").read_text().split()
    return int(words[words.index("nr_throttled") + 1])


def test_limit_holds_for_children_and_ends_with_the_group(
    tree: GroupTree, burner: psutil.Process
) -> None:
    parent = burner.parent()
    assert parent is not None
    limit = CpuLimit.create(tree, 0.2)
    try:
        assert limit.add_tree(parent.pid) == 2
        before_s, began_s = cpu_s(burner), time.monotonic()
        deadline_s = time.monotonic() + 30
        while throttled_periods(limit.group) < 5:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        # 0.2 CPU in periods of 0.1 s, and one period more at either end.
        assert cpu_s(burner) - before_s <= 0.2 * (time.monotonic() - began_s + 0.2) + 0.02
    finally:
        limit.remove()
    assert not limit.group.exists()
    assert burner.is_running(), "what was in the group goes on"
    assert "rootwalk-limit" not in Path(f"/proc/{burner.pid}/cgroup").read_text()


def test_group_of_a_killed_process_is_removed_by_the_next(
    tree: GroupTree, burner: psutil.Process
) -> None:
    parent = burner.parent()
    assert parent is not None
    code = (
        "import os, signal, sys; from rootwalk.graph.commands.cpu_limit import *;"
        "limit = CpuLimit.create(find_group_tree(), 0.5); limit.add_tree(int(sys.argv[1]));"
        "print(limit.group, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", code, str(parent.pid)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    group = Path(done.stdout.strip())
    assert group.is_dir()
    assert remove_leftovers(tree) == [group]
    assert not group.exists()
    assert burner.is_running()
