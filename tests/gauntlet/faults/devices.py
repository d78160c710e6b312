"""GPUs that stand-ins play: what a device takes for its work, and what NVML says of it. No GPU is there."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gauntlet.case import Effect, NeedsEnvironment
from gauntlet.stand_in_device import play
from rootwalk.graph.commands.demo_faults import Target
from rootwalk.instrumentation.errors import UnavailableError
from support.cuda_standin import RUNTIME, build_standins
from support.nvml_standin import GIB, Scenario, has_compiler

RANKS = 4
# What a device takes for each while nothing is wrong; 20 kernels and a copy in a step, and maybe a transfer.
KERNEL_S, COPY_S, TRANSFER_S = 0.002, 0.005, 0.005
# More than ranks: what a device loses of its peers is a large part of them.
GPUS = 8
POLL_S = 0.2
# Seconds after the start: until then NVML has told whose each GPU is.
HANGS_AT_STEP = 400
# What NVML says has to have been played for so long, s.
LEAST_PLAYED_S = 5.0
# (scenario, GPU, since when)
Says = Callable[[Scenario, int, float], object]


def says_nothing(scenario: Scenario, gpu: int, at_s: float) -> None:
    """Every value stays what it was."""


class Devices:
    """A device for each rank, and NVML that has them all; from the start on something is said and done of one.

    Args:
        says: What NVML says of the disturbed rank's GPU.
        kernels: How many times longer its kernels take.
        copies: How many times longer its copies from the host take.
        transfers: How many times longer its copies to another device take; None for ranks that make none.
        host_passes: Forward passes more that the rank runs on the host in each step.
    """

    def __init__(
        self,
        says: Says = says_nothing,
        *,
        kernels: float = 1.0,
        copies: float = 1.0,
        transfers: float | None = None,
        host_passes: int = 0,
    ) -> None:
        self._says = says
        self._transfers = transfers is not None
        self._factors = (kernels, copies, transfers or 1.0)
        self._host_passes = host_passes
        self._folder = Path()
        self._nvml: Scenario | None = None
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._began_s: float | None = None
        self._began_unix_s = 0.0
        self._pid = 0

    def prepare(self, rank: int, folder: Path) -> None:
        """Write what is played while nothing is wrong.

        Raises:
            UnavailableError: Without a C compiler.
        """
        if not has_compiler():
            text = "cannot play a device: saw no C compiler; needs cc"
            raise UnavailableError(text, reason="NO_COMPILER")
        self._folder = folder
        (folder / "bug").mkdir(exist_ok=True)
        (folder / "bug.on").touch()
        for each in range(RANKS):
            self._play(each, (1.0, 1.0, 1.0))
        self._nvml = Scenario(folder / "nvml", gpus=GPUS if self._transfers else RANKS)
        self._nvml.write()
        arguments = (self._nvml, folder, self._lock, self._is_over)
        threading.Thread(target=tell_processes, args=arguments, daemon=True).start()

    def environment(self) -> dict[str, str]:
        """Return where the agent finds NVML."""
        assert self._nvml is not None
        return self._nvml.environment()

    def options(self) -> list[str]:
        """Return what every rank does with its device."""
        ranks = ",".join(str(rank) for rank in range(RANKS))
        options = ["--bug", "use_device", "--bug-ranks", ranks]
        options += ["--bug-file", str(self._folder / "bug.on")]
        options += ["--bug-log", str(self._folder / "bug")]
        settings = {
            "scenario": self._folder / "cuda",
            "host": self._folder / "host",
            "runtime": build_standins() / RUNTIME,
            "times": self._host_passes,
            "transfers": "yes" if self._transfers else "no",
        }
        return [*options, *(f"--bug-with={key}={value}" for key, value in settings.items())]

    def start(self, target: Target) -> None:
        """Let one device be slow, and NVML say it, or one of both."""
        assert self._nvml is not None
        self._pid, self._began_s, self._began_unix_s = target.pid, time.monotonic(), time.time()
        if self._host_passes:
            (self._folder / f"host.{target.rank}").touch()
        self._play(target.rank, self._factors)
        with self._lock:
            self._says(self._nvml, target.rank, self._nvml.now_s())
            self._nvml.change()

    def effect(self) -> Effect:
        """Return for how long it was played, and how much longer than before the rank was at it in each step."""
        assert self._began_s is not None
        played_s = time.monotonic() - self._began_s
        log = self._folder / "bug" / f"{self._pid}.jsonl"
        entries = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
        before, after = (
            [one["seconds"] for one in entries if (one["unix_s"] > self._began_unix_s) is is_after]
            for is_after in (False, True)
        )
        added_s = statistics.median(after) - statistics.median(before)
        return Effect(played_s, f"s played, {added_s * 1e3:+.1f} ms a step", LEAST_PLAYED_S)

    def stop(self) -> None:
        """End what tells processes."""
        self._is_over.set()

    def _play(self, rank: int, factors: tuple[float, float, float]) -> None:
        """Put the scenario of a rank's device in its place."""
        usual = {"kernel": KERNEL_S, "copy": COPY_S, "transfer": TRANSFER_S}
        times = zip(usual.items(), factors, strict=True)
        told = [f"0 {key} {factor * seconds}" for (key, seconds), factor in times]
        play(self._folder / f"cuda.{rank}", *told)


def tell_processes(
    scenario: Scenario, folder: Path, lock: threading.Lock, is_over: threading.Event
) -> None:
    """Let each rank be the process on its GPU, as soon as its step log says which it is."""
    missing = set(range(RANKS))
    while missing and not is_over.wait(POLL_S):
        for rank in sorted(missing):
            log = folder / "steps" / f"rank{rank}.jsonl"
            first, _, rest = (log.read_text("utf-8") if log.exists() else "").partition("\n")
            if not first or not rest:
                continue
            missing.discard(rank)
            with lock:
                scenario.add(rank, "process", json.loads(first)["pid"], 10 * GIB)
                scenario.change()


class HungDevice:
    """A device for each rank of a job that will hang; as soon as it does, NVML says something of the rank's GPU.

    Args:
        says: What NVML says of it.
    """

    def __init__(self, says: Says = says_nothing) -> None:
        self._says = says
        self._folder, self._rank = Path(), 0
        self._nvml: Scenario | None = None
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._said: list[float] = []

    def prepare(self, rank: int, folder: Path) -> None:
        """Write what is played while nothing is wrong.

        Raises:
            UnavailableError: Without a C compiler.
        """
        if not has_compiler():
            text = "cannot play a device: saw no C compiler; needs cc"
            raise UnavailableError(text, reason="NO_COMPILER")
        self._folder, self._rank = folder, rank
        for each in range(RANKS):
            play(folder / f"cuda.{each}", f"0 kernel {KERNEL_S / 10}", f"0 copy {COPY_S / 10}")
        self._nvml = Scenario(folder / "nvml", gpus=RANKS)
        self._nvml.write()
        arguments = (self._nvml, folder, self._lock, self._is_over)
        threading.Thread(target=tell_processes, args=arguments, daemon=True).start()
        threading.Thread(target=self._say, args=(self._nvml,), daemon=True).start()

    def environment(self) -> dict[str, str]:
        """Return where the agent finds NVML."""
        assert self._nvml is not None
        return self._nvml.environment()

    def options(self) -> list[str]:
        """Return what every rank does with its device."""
        runtime = str(build_standins() / RUNTIME)
        options = ["--device-runtime", runtime, "--device-scenario", str(self._folder / "cuda")]
        return [*options, "--bug-step", str(HANGS_AT_STEP)]

    def start(self, target: Target) -> None:
        """Nothing: the rank with the bug begins by itself."""

    def effect(self) -> Effect:
        """Return how often NVML has said it."""
        return Effect(float(len(self._said)), "times said", 1.0)

    def stop(self) -> None:
        """End what tells."""
        self._is_over.set()

    def _say(self, scenario: Scenario) -> None:
        """Wait for the bug's own word that it has begun, and say it."""
        told = self._folder / "dumps" / "bug.json"
        while not self._is_over.wait(POLL_S):
            if told.exists():
                with self._lock:
                    self._says(scenario, self._rank, scenario.now_s())
                    scenario.change()
                self._said.append(time.time())
                return


class SaidBeside:
    """Something else is disturbed, while NVML says something of a GPU of the host; no device is used.

    Args:
        other: What is done.
        says: What NVML says of the disturbed rank's GPU.
    """

    def __init__(self, other: NeedsEnvironment, says: Says) -> None:
        self._other, self._says = other, says
        self._nvml: Scenario | None = None
        self._rank = 0

    def prepare(self, rank: int, folder: Path) -> None:
        """Prepare it, and GPUs of which nothing is said."""
        self._rank = rank
        self._other.prepare(rank, folder)
        self._nvml = Scenario(folder / "nvml", gpus=GPUS)
        self._nvml.write()

    def environment(self) -> dict[str, str]:
        """Return what it needs, and where the agent finds NVML."""
        assert self._nvml is not None
        return self._other.environment() | self._nvml.environment()

    def options(self) -> list[str]:
        """Return those of what is done."""
        return self._other.options()

    def start(self, target: Target) -> None:
        """Begin both."""
        assert self._nvml is not None
        self._other.start(target)
        self._says(self._nvml, self._rank, self._nvml.now_s())
        self._nvml.change()

    def effect(self) -> Effect:
        """Return that of what is done."""
        return self._other.effect()

    def stop(self) -> None:
        """End it."""
        self._other.stop()
