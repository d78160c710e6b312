"""The faults that a rank has in itself: each is what real code does, at the place where it does it.

A job's own script imports this, so nothing here knows of Rootwalk. `lasting_work.py` has the work that only takes long.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pdb
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gauntlet.live.lasting_work import LASTING, download_before_meeting, meet

Settings = Mapping[str, str]
# A helper that outlives its rank leaves when the folder of the run is gone, or after this time, s.
HELPER_LIFE_S = 300.0
MEGABYTE = 1_000_000
PR_SET_PDEATHSIG = 1
_groups: list[Any] = []


@dataclass(frozen=True, slots=True)
class Planted:
    """One fault.

    Attributes:
        function: What the rank does.
        stage: When: `start` (before init_process_group), `initialised`, `step`, or `left` (its batches have run out).
        others: What the ranks without the fault do in that step; None for their usual step.
        groups: Makes groups before the first step, on every rank.
    """

    function: Callable[[Settings], object]
    stage: str = "step"
    others: Callable[[Settings], object] | None = None
    groups: Callable[[], None] | None = None


def sleep_for_ever(_: Settings) -> None:
    """Wait for something that never comes."""
    while True:
        time.sleep(3600)


def take_lock_twice(_: Settings) -> None:
    """Take a lock that this thread has already."""
    lock = threading.Lock()
    with lock:
        lock.acquire()


def spin_in_python(_: Settings) -> None:
    """Look for a condition that never holds, without a pause."""
    found = 0
    while found < 1:
        found *= 2


def spin_in_c(settings: Settings) -> None:
    """Call a C function that never returns; ctypes lets go of the interpreter's lock."""
    ctypes.CDLL(settings["library"]).search_without_end()


def ask_user(_: Settings) -> None:
    """Ask a question on a standard input that never answers."""
    input("continue? ")


def stop_in_debugger(_: Settings) -> None:
    """Meet a breakpoint that was left in the code."""
    pdb.set_trace()


def read_shard(settings: Settings) -> None:
    """Read a file whose server has stopped to answer."""
    Path(settings["switch"]).touch()
    with Path(settings["path"]).open("rb") as file:
        file.read(4096)


def wait_for_loader(_: Settings) -> None:
    """Fork a loader worker while another thread holds a lock, and wait for its first batch."""
    lock = threading.Lock()
    taken = threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            time.sleep(0.5)

    def load_samples(batches: Any) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with lock:
            batches.put([0])

    context = multiprocessing.get_context("fork")
    batches = context.Queue()
    threading.Thread(target=hold).start()
    taken.wait()
    context.Process(target=load_samples, args=(batches,), name="loader").start()
    batches.get()


def lock_of_dead_worker(_: Settings) -> None:
    """Wait for a lock between processes whose holder, a loader worker, was killed."""
    context = multiprocessing.get_context("fork")
    lock = context.Lock()

    def load_and_die() -> None:
        lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    worker = context.Process(target=load_and_die, name="loader")
    worker.start()
    worker.join()
    lock.acquire()


def other_collective(_: Settings) -> None:
    """Call a broadcast where the others call an all_reduce."""
    import torch
    import torch.distributed as dist

    dist.broadcast(torch.ones(64), src=int(os.environ["RANK"]))


def make_two_groups() -> None:
    """Make two groups of all ranks and use each once."""
    import torch.distributed as dist

    _groups.extend(dist.new_group(group_desc=name) for name in ("experts", "data"))
    use_in_order(_groups)


def use_in_order(groups: list[Any]) -> None:
    """Reduce over one group after the other."""
    import torch
    import torch.distributed as dist

    for group in groups:
        dist.all_reduce(torch.ones(64), group=group)


def cross_order(_: Settings) -> None:
    """Use the two groups in the order that the others do not use."""
    use_in_order(_groups[::-1])


def usual_order(_: Settings) -> None:
    """Use the two groups in their order."""
    use_in_order(_groups)


def meet_at_barrier(settings: Settings) -> None:
    """Be through with all batches, and wait for the others at the end of the epoch."""
    meet(settings)


def write_results(_: Settings) -> None:
    """Be through with all batches, and wait for a file that another program is to write."""
    while not Path("no-such-results").exists():
        time.sleep(0.5)


def keep_connections(settings: Settings) -> None:
    """Fork a child that goes on, as an uploader of logs does: it keeps the connections of its parent open."""
    if os.fork() == 0:
        end_s = time.monotonic() + HELPER_LIFE_S
        while Path(settings["folder"]).exists() and time.monotonic() < end_s:
            time.sleep(0.5)
        os._exit(0)


def leave_unnoticed(settings: Settings) -> None:
    """End with code 0 while a child keeps the connections open, so that the others wait on."""
    keep_connections(settings)
    os._exit(0)


def take_memory(settings: Settings) -> None:
    """Take memory until the kernel ends this process; the connections are left as they are."""
    with Path(settings["group"]).open("w") as file:
        file.write(str(os.getpid()))
    taken = []
    while True:
        taken.append(b"x" * MEGABYTE)


def take_memory_unnoticed(settings: Settings) -> None:
    """Take memory until the kernel ends this process, while a child keeps its connections open."""
    keep_connections(settings)
    time.sleep(0.5)
    take_memory(settings)


def parse_sample(_: Settings) -> None:
    """Meet a sample that cannot be parsed."""
    raise ValueError("cannot parse sample 4711")


def fail_first(_: Settings) -> None:
    """Meet a sample that cannot be parsed, a moment before the others fail by themselves."""
    raise ValueError("cannot parse sample 4711")


def fail_later(_: Settings) -> None:
    """Fail by itself soon after another rank has."""
    time.sleep(1.0)
    raise ValueError("cannot parse sample 4712")


def exit_with_code(settings: Settings) -> None:
    """End the script by sys.exit."""
    sys.exit(int(settings["code"]))


def exit_at_once(settings: Settings) -> None:
    """End the process without any clean-up."""
    os._exit(int(settings["code"]))


def read_address_zero(_: Settings) -> None:
    """Read memory that is not there: SIGSEGV."""
    ctypes.string_at(0)


def import_missing_module(_: Settings) -> None:
    """Import a module that is not installed."""
    __import__("module_that_is_not_installed")


FAULTS: dict[str, Planted] = {
    "sleep": Planted(sleep_for_ever),
    "lock": Planted(take_lock_twice),
    "spin_python": Planted(spin_in_python),
    "spin_c": Planted(spin_in_c),
    "input": Planted(ask_user),
    "debugger": Planted(stop_in_debugger),
    "fuse": Planted(read_shard),
    "loader_lock": Planted(wait_for_loader),
    "dead_worker": Planted(lock_of_dead_worker),
    "other_collective": Planted(other_collective),
    "crossed": Planted(cross_order, others=usual_order, groups=make_two_groups),
    "leaves": Planted(write_results, stage="left"),
    "leaves_for_barrier": Planted(meet_at_barrier, stage="left"),
    "gone": Planted(leave_unnoticed),
    "memory_unnoticed": Planted(take_memory_unnoticed),
    "memory": Planted(take_memory),
    "never_joins": Planted(sleep_for_ever, stage="start"),
    "exception": Planted(parse_sample),
    "several": Planted(fail_first, others=fail_later),
    "exit": Planted(exit_with_code),
    "exit_at_once": Planted(exit_at_once),
    "segfault": Planted(read_address_zero),
    "missing_module": Planted(import_missing_module, stage="start"),
    "download_one": Planted(download_before_meeting, stage="initialised", others=meet),
    **{name: Planted(function, stage) for name, (function, stage) in LASTING.items()},
}
