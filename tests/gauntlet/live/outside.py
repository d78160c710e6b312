"""What happens to a job from outside: signals to a rank, to its launcher, to all of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from gauntlet.live.case import FAULT_RANK, Act, Given, Scene
from rootwalk.graph.process_tree import find_descendants

# How long a job is suspended, s.
SUSPENDED_S = 30.0


def kill_pids(pids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to processes, of which some may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def read_command(pid: int) -> str:
    """Return a process's command line; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def list_job(scene: Scene) -> list[int]:
    """Return the processes of the job: its launcher and everything below it."""
    return [scene.launcher_pid, *find_descendants(scene.launcher_pid)]


def stop_rank(scene: Scene) -> None:
    """Stop one rank by SIGSTOP."""
    scene.write_truth(FAULT_RANK)
    kill_pids([scene.ranks[FAULT_RANK]], signal.SIGSTOP)


def kill_rank(scene: Scene) -> None:
    """Kill one rank."""
    scene.write_truth(FAULT_RANK)
    kill_pids([scene.ranks[FAULT_RANK]])


def kill_launcher(scene: Scene) -> None:
    """Kill the launcher only."""
    scene.write_truth(None)
    kill_pids([scene.launcher_pid])


def press_ctrl_c(scene: Scene) -> None:
    """Do what a terminal does at Ctrl-C: SIGINT to the whole process group of `rootwalk run`."""
    scene.write_truth(None)
    os.killpg(scene.run_pid, signal.SIGINT)


def suspend_job(scene: Scene) -> None:
    """Stop every process of the job and let it go on after `SUSPENDED_S`."""
    _suspend(scene, lambda: list_job(scene))


def freeze_all(scene: Scene) -> None:
    """Stop the job, `rootwalk run` and its helpers, as a machine that sleeps does, and let all go on."""
    _suspend(scene, lambda: [scene.run_pid, *find_descendants(scene.run_pid)])


def _suspend(scene: Scene, list_pids: Callable[[], list[int]]) -> None:
    pids = list_pids()
    scene.write_truth(None)
    kill_pids(pids, signal.SIGSTOP)
    try:
        time.sleep(SUSPENDED_S)
    finally:
        kill_pids(reversed(pids), signal.SIGCONT)


def by(act: Act) -> Callable[[Path], AbstractContextManager[Given]]:
    """Return what gives a case one act from outside."""

    @contextmanager
    def give(_: Path) -> Iterator[Given]:
        yield Given(act=act)

    return give
