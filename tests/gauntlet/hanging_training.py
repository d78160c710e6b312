"""A script of `examples/` in which one rank does something, in one step, after which the job does not go on.

    hanging_training.py --script train_ddp.py --bug leave --bug-ranks 1 --bug-step 12 --dumps FOLDER -- OPTIONS

Every rank has what jobs on GPUs get from PyTorch's own watchdog: when no step has ended for a while, or an exception
ends it, it writes the dump of its flight recorder and leaves. The rank with the bug writes down when it did it.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

import rootwalk.examples

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gauntlet.stand_in_device import StandInDevice, play

# A step takes some ms; the first ones, and the meeting of the ranks, up to some seconds. NCCL's own watchdog waits for
# minutes; the agent needs some seconds of stacks after those in which the hang began.
SILENCE_S = 14.0
START_S = 150.0
GONE = 3


class Watchdog:
    """Dumps this rank's flight recorder when its steps no longer end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._due_s = time.monotonic() + START_S
        self.steps = 0
        self._leaving = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def tick(self, *_: Any) -> None:
        """Note that a step has ended."""
        self.steps += 1
        self._due_s = time.monotonic() + SILENCE_S

    def _watch(self) -> None:
        while time.monotonic() < self._due_s:
            time.sleep(0.2)
        self.leave()

    def leave(self) -> None:
        """Write the dump and end this process, whatever its other threads do; the first thread that comes does it."""
        self._leaving.acquire()
        dump = torch._C._distributed_c10d._dump_fr_trace()
        self._path.write_bytes(dump)
        os._exit(GONE)


def be_killed() -> None:
    """End at once, as a process is ended that took too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def swallow() -> None:
    """Catch an exception, and wait for somebody who never comes."""
    try:
        json.loads("a broken sample")
    except ValueError:
        threading.Event().wait()


def leave() -> None:
    """Have one batch fewer than the others, and be busy with the results."""
    while True:
        time.sleep(0.1)


def other_size() -> None:
    """Reduce a tensor of another size than the others do at this place."""
    dist.all_reduce(torch.ones(12_345))


def other_operation() -> None:
    """Take part in another operation than the others at this place."""
    dist.broadcast(torch.ones(64), src=int(os.environ["RANK"]))


def fork_with_lock() -> None:
    """Fork a worker while another thread holds a lock that the worker wants too, and wait for the worker."""
    lock = threading.Lock()
    taken = threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            time.sleep(0.5)

    def work() -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: ends with the rank
        lock.acquire()

    threading.Thread(target=hold).start()
    taken.wait()
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    worker.join()


def use_in_order(groups: list[Any]) -> None:
    """Use one group after the other."""
    for group in groups:
        dist.all_reduce(torch.ones(64), group=group)


BUGS: dict[str, Callable[[], None]] = {
    "killed": be_killed,
    "swallow": swallow,
    "leave": leave,
    "other_size": other_size,
    "other_operation": other_operation,
    "fork_with_lock": fork_with_lock,
}


# Gives its device something that it does not end, and waits for it; a stand-in's other scenario is seen after so long.
WAIT_FOR_DEVICE, SCENARIO_S = "wait_for_device", 0.1


def plant(arguments: argparse.Namespace, watchdog: Watchdog) -> None:
    """Let the bug happen after the update of its step; in the crossed order all ranks take part in it."""
    rank = int(os.environ["RANK"])
    has_bug = str(rank) in arguments.bug_ranks.split(",")
    groups: list[Any] = []
    scenario = Path(f"{arguments.device_scenario}.{rank}")
    device = StandInDevice(arguments.device_runtime, scenario) if arguments.device_runtime else None

    def act(*_: Any) -> None:
        watchdog.tick()
        if device is not None and watchdog.steps != arguments.bug_step:
            device.work()
        if arguments.bug == "cross_order" and not groups:
            # A training job uses its groups from its first step on.
            groups.extend(dist.new_group(group_desc=name) for name in ("experts", "data"))
            use_in_order(groups)
        if watchdog.steps != arguments.bug_step:
            return
        if has_bug:
            told = {"unix_s": time.time(), "pid": os.getpid(), "bug": arguments.bug}
            (arguments.dumps / "bug.json").write_text(json.dumps(told), encoding="utf-8")
        if arguments.bug == "cross_order":
            use_in_order(groups[::-1] if has_bug else groups)
        elif has_bug and arguments.bug == WAIT_FOR_DEVICE:
            assert device is not None, "needs --device-runtime"
            play(scenario, "0 cudaStreamSynchronize -1")
            time.sleep(2 * SCENARIO_S)
            device.work()
        elif has_bug:
            BUGS[arguments.bug]()

    register_optimizer_step_post_hook(act)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--script", required=True, help="file in examples/")
    parser.add_argument("--bug", choices=[*BUGS, WAIT_FOR_DEVICE, "cross_order"], required=True)
    parser.add_argument("--bug-ranks", required=True, help="ranks that do it: 1, or 0,1")
    parser.add_argument("--bug-step", type=int, required=True)
    parser.add_argument("--dumps", type=Path, required=True, help="folder for the dumps")
    parser.add_argument("--device-runtime", help="stand-in of the CUDA runtime: each step uses it")
    parser.add_argument("--device-scenario", help="what a rank's device plays, with .RANK behind")
    arguments, rest = parser.parse_known_args()
    sys.path.insert(0, str(Path(next(iter(rootwalk.examples.__path__))).resolve()))
    watchdog = Watchdog(arguments.dumps / f"nccl_trace_rank_{os.environ['RANK']}")
    plant(arguments, watchdog)
    sys.argv = [arguments.script, *[word for word in rest if word != "--"]]
    try:
        importlib.import_module(arguments.script.removesuffix(".py")).main()
    except RuntimeError as error:  # a peer is gone: as gloo tells it
        sys.stderr.write(f"rank {os.environ['RANK']}: {error}\n")
        watchdog.leave()


if __name__ == "__main__":
    main()
