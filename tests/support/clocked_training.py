"""Trains the example for so long; every rank writes down what its own clocks and the kernel's accounts say.

    torchrun clocked_training.py FOLDER SECONDS [OPTIONS OF THE EXAMPLE]

FOLDER/rankN.json: at the end of each step the time and the CPU time of the thread that trains, and its account; at the
end the accounts of all threads of the rank, and of its loader workers'.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

import rootwalk.examples

EXAMPLE = Path(next(iter(rootwalk.examples.__path__))) / "train_ddp.py"
WARM_UP_STEPS = 5
# After so many it is known how many fit into the time.
TRIAL_STEPS = 15
START_TIME_FIELD = 19  # after the name, in /proc/<pid>/stat


def read_account(path: Path) -> tuple[int, int]:
    """Return for how long a thread has run, and waited for a CPU, ns."""
    ran, waited, _ = (path / "schedstat").read_text().split()
    return int(ran), int(waited)


def read_threads(pids: Iterable[int]) -> list[dict[str, int]]:
    """Return age and account of all threads of processes, ns."""
    found = []
    now_ns, tick_ns = (
        time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        1_000_000_000 // os.sysconf("SC_CLK_TCK"),
    )
    for path in (path for pid in pids for path in Path(f"/proc/{pid}/task").iterdir()):
        started = int((path / "stat").read_text().rpartition(")")[2].split()[START_TIME_FIELD])
        ran_ns, waited_ns = read_account(path)
        age_ns = now_ns - started * tick_ns
        found.append(
            {"tid": int(path.name), "age_ns": age_ns, "ran_ns": ran_ns, "waited_ns": waited_ns}
        )
    return found


class Clock:
    """Called at the end of every step; ends the training in time.

    Args:
        path: The rank's file.
        seconds: Of training after the trial.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds = path, seconds
        self._steps: list[dict[str, int]] = []
        self._last_step = 0

    def tick(self, *_: Any) -> None:
        """Note the end of a step."""
        ran_ns, waited_ns = read_account(Path("/proc/thread-self"))
        now = {"mono_ns": time.monotonic_ns(), "cpu_ns": time.thread_time_ns()}
        self._steps.append({**now, "ran_ns": ran_ns, "waited_ns": waited_ns})
        if len(self._steps) == TRIAL_STEPS:
            trial = self._steps[WARM_UP_STEPS:]
            step_s = (trial[-1]["mono_ns"] - trial[0]["mono_ns"]) / (len(trial) - 1) / 1e9
            last = torch.tensor(TRIAL_STEPS + int(self._seconds / step_s))
            dist.broadcast(last, 0)
            self._last_step = int(last)
        elif len(self._steps) == self._last_step:
            self._save()
            raise SystemExit

    def _save(self) -> None:
        workers = [
            child.pid for child in multiprocessing.active_children() if child.pid is not None
        ]
        told = {
            "steps": self._steps,
            "threads": [one for one in read_threads([os.getpid()]) if one["tid"] != os.getpid()],
            "workers": read_threads(workers),
        }
        self._path.write_text(json.dumps(told), encoding="utf-8")


def main() -> None:
    """Train."""
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    folder.mkdir(exist_ok=True)
    clock = Clock(folder / f"rank{os.environ['RANK']}.json", seconds)
    register_optimizer_step_post_hook(clock.tick)
    sys.argv = [str(EXAMPLE), "--steps", str(10**9), *sys.argv[3:]]
    try:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
