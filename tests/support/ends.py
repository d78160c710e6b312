"""Ways in which a watched job comes to its end, or through something that could have been its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from support.launchers import CUSTOMISATION
from support.process_list import processes_below
from support.terminal import CTRL_C

# More than half of this, and a second key press is not taken for the same wish as the first.
BETWEEN_KEYS_S = 0.6
SLEEP_S = 3.0
HOUR_S = 3600
# A launcher's exit codes after the end of a rank, as they are without Rootwalk.
ANY_FAILURE = frozenset(range(1, 256))


class Stage(Protocol):
    """The running cell, as an end sees it."""

    folder: Path
    attempt: int

    @property
    def run_pid(self) -> int: ...

    def press(self, key: bytes) -> None: ...

    def rank_pid(self, rank: int) -> int: ...

    def memory_group(self) -> Path | None: ...

    def fill_disk(self) -> None: ...


@dataclass(frozen=True, slots=True)
class End:
    """One way.

    Attributes:
        act: What happens in mid-run.
        is_survived: The job runs to its last step, and its exit code is 0.
        codes: Exit codes that are right.
        options: Of the training script.
        environment: Variables of `rootwalk run`.
        is_watched: Whether `rootwalk run` lives to tell a verdict; else the store alone is looked at.
        has_disk: Whether the store lies on a disk of its own.
    """

    act: Callable[[Stage], None]
    is_survived: bool = False
    codes: Collection[int] = ANY_FAILURE
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    is_watched: bool = True
    has_disk: bool = False


def _nothing(_stage: Stage) -> None:
    pass


def _crash(stage: Stage) -> None:
    (stage.folder / "job" / f"crash.{stage.attempt}").touch()


def _press_once(stage: Stage) -> None:
    stage.press(CTRL_C)


def _press_twice(stage: Stage) -> None:
    stage.press(CTRL_C)
    time.sleep(BETWEEN_KEYS_S)
    stage.press(CTRL_C)


def _terminate(stage: Stage) -> None:
    os.kill(stage.run_pid, signal.SIGTERM)


def _exhaust_memory(stage: Stage) -> None:
    pid = stage.rank_pid(1)
    group = stage.memory_group()
    if group is None:  # no right to make one: the same signal without its cause
        os.kill(pid, signal.SIGKILL)
        return
    (group / "cgroup.procs").write_text(str(pid))
    (stage.folder / "job" / f"grow.{stage.attempt}").touch()


def _fill_disk(stage: Stage) -> None:
    stage.fill_disk()


def _kill_helper(verb: str) -> Callable[[Stage], None]:
    def act(stage: Stage) -> None:
        found = [
            process.pid
            for process in processes_below(stage.run_pid)
            if f"rootwalk.graph {verb}" in process.line
        ]
        assert len(found) == 1, found
        os.kill(found[0], signal.SIGKILL)

    return act


def _kill_run(stage: Stage) -> None:
    os.kill(stage.run_pid, signal.SIGKILL)


def _jump(seconds: int) -> Callable[[Stage], None]:
    def act(stage: Stage) -> None:
        draft = stage.folder / "clock.new"
        draft.write_text(str(seconds))
        draft.rename(stage.folder / "clock")

    return act


def _sleep(stage: Stage) -> None:
    """Stop everything for a while, as far as a process can tell."""
    pids = [stage.run_pid, *(process.pid for process in processes_below(stage.run_pid))]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(SLEEP_S)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)


_CLOCK = {"PYTHONPATH": CUSTOMISATION, "TINY_CLOCK": "clock"}

ENDS: dict[str, End] = {
    "normal": End(_nothing, is_survived=True),
    "crash": End(_crash, codes=(1,)),
    "ctrl_c": End(_press_once),
    "ctrl_c_twice": End(_press_twice, options=("--deaf",)),
    "sigterm": End(_terminate),
    "oom": End(_exhaust_memory, codes=(1, 137)),
    "full_disk": End(_fill_disk, is_survived=True, has_disk=True),
    "agent_killed": End(_kill_helper("agent"), is_survived=True),
    "receiver_killed": End(_kill_helper("receive"), is_survived=True),
    "run_killed": End(_kill_run, is_survived=True, codes=(-signal.SIGKILL,), is_watched=False),
    "clock_forward": End(_jump(HOUR_S), is_survived=True, environment=_CLOCK),
    "clock_back": End(_jump(-HOUR_S), is_survived=True, environment=_CLOCK),
    "sleep": End(_sleep, is_survived=True),
}
