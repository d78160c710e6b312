"""For every test: whether others may run beside it, and that nothing that it started outlives it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

# The same examples in every run: a new counter-example is looked for with --hypothesis-profile=explore, not by chance
# in somebody's merge. Deadlines measure the machine, not the code.
settings.register_profile("steady", derandomize=True, deadline=None)
# For what has been tried with all of them already, on another Python or with other versions.
settings.register_profile("brief", settings.get_profile("steady"), max_examples=20)
settings.register_profile("explore", max_examples=2_000, deadline=None)
settings.load_profile("steady")

# A shell starts what runs in its background with Ctrl-C ignored, nohup with SIGHUP; what tests start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

TESTS = Path(__file__).resolve().parent
# Tests in these folders run jobs or measure the machine; elsewhere those that do are marked.
ALONE = (TESTS / "e2e", TESTS / "integration" / "ebpf", TESTS / "integration" / "instrumentation")

# A thread that was told to stop may need a moment; more than this is a leak.
STOP_DEADLINE_S = 2.0


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `alone` what its folder says, but for what is marked otherwise."""
    for item in items:
        is_free = item.get_closest_marker("side_by_side") is not None
        if not is_free and any(item.path.is_relative_to(folder) for folder in ALONE):
            item.add_marker(pytest.mark.alone)


def pytest_sessionfinish() -> None:
    """Leave the names that real producers have sent in these tests to .ci/check_sent.py."""
    folder, checks = os.environ.get("ROOTWALK_SENT_FOLDER"), sys.modules.get("support.live_check")
    if folder and checks is not None:
        text = json.dumps(sorted(checks.SENT))
        (Path(folder) / f"{os.getpid()}.json").write_text(text, encoding="utf-8")


def find_leaks(
    threads: set[threading.Thread], children: set[psutil.Process]
) -> list[threading.Thread | psutil.Process]:
    """The threads and child processes that were not there before."""
    new_children = [
        child
        for child in set(psutil.Process().children()) - children
        if child.is_running() and child.status() != psutil.STATUS_ZOMBIE
    ]
    return [*(set(threading.enumerate()) - threads), *new_children]


@pytest.fixture(autouse=True)
def _nothing_outlives_the_test() -> Iterator[None]:
    threads = set(threading.enumerate())
    children = set(psutil.Process().children())
    yield
    deadline_s = time.monotonic() + STOP_DEADLINE_S
    while (leaks := find_leaks(threads, children)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not leaks, f"left behind: {leaks}"
