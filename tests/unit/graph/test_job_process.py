"""The end of a command whose processes no signal ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest

from rootwalk.graph import job_process
from rootwalk.graph.job_process import JobProcess
from rootwalk.graph.signal_queue import SignalQueue

UNKILLABLE = 2**22 - 1


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """One process that is always there, short times, and the signals that it gets."""
    found: list[tuple[int, int]] = []

    def send(pids: Sequence[int], number: int) -> None:
        found.extend((pid, number) for pid in pids)

    monkeypatch.setattr(job_process, "send_signal", send)
    monkeypatch.setattr(job_process, "find_descendants", lambda *_, **__: [UNKILLABLE])
    for name in ("ORPHAN_GRACE_S", "SAVE_GRACE_S", "UNKILLABLE_S"):
        monkeypatch.setattr(job_process, name, 0.3)
    return found


def test_a_process_that_no_signal_ends_is_left_behind(
    sent: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    with SignalQueue() as signals:
        job = JobProcess(["false"], os.environ, signals, lambda: [UNKILLABLE])
        assert job.wait([]) == 1
    assert (UNKILLABLE, signal.SIGTERM) in sent
    assert (UNKILLABLE, signal.SIGKILL) in sent
    assert f"left behind: 1 processes that SIGKILL does not end (pid {UNKILLABLE})" in caplog.text
