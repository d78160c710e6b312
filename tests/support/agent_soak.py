"""An agent whose ranks come and go for as long as one likes: what it holds at rest must not grow.

    rank 0     |---------------------------------------------------------------------|   lives all the time
    ranks 1-3  |- exit -|- exit -|  rest  |- exit -|- exit -|  rest  |- ...              start anew every period
               |- kill -|- kill -|        |- kill -|
               |- crash |- crash |        |- crash |
    look                             x                          x

A rest begins when the agent has let go of all ranks but the first. What it holds is then the same every time, so
everything but memory is compared exactly.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean

from rootwalk.ebpf.control import ask_agents
from rootwalk.instrumentation.shared_ring import ring_directory
from rootwalk.otel_receiver.store import query_store
from support import soak_rank
from support.held_bpf import HeldBpf, count_entries, list_alive, list_held
from support.receiver_process import running_receiver

ENDS = ("exit", "kill", "crash")
# An agent looks for ranks that are gone every 2 s, or later on a busy machine.
LET_GO_DEADLINE_S = 30.0
# Over this time the least of each figure counts: what a round of the agent opens and closes is not held.
REST_S = 5.0
# Kernel programs are freed a grace period after their last user is gone.
UNLOAD_DEADLINE_S = 10.0
# Kernel maps with an entry for each process or thread that is followed.
FOLLOWED_MAPS = ("targets", "threads", "living", "running")
# Those with sums of ranks: one goes on meeting disks and interrupts that are new to it for a while. Left out is
# `requests`: what all disks of the machine are asked for at this moment.
SUMS_MAPS = ("totals", "untold", "windows")
MAX_MEMORY_GROWTH_BYTES = 2_000_000
# Idle connections to the receiver are closed by it, and made again when there is something to tell.
MAX_DESCRIPTORS_GROWTH = 2
# A leak of one entry or descriptor a rank is more than these within a minute.
MAX_SUMS_GROWTH = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """What an agent holds at rest."""

    second: float
    started_ranks: int
    resident_bytes: int
    descriptors: int
    threads: int
    programs: int
    maps: int
    rings: int
    targets_entries: int
    threads_entries: int
    living_entries: int
    running_entries: int
    sums_entries: int


FIGURES = [one.name for one in fields(Sample)][2:]
LIMITS = dict.fromkeys(FIGURES, 0) | {
    "resident_bytes": MAX_MEMORY_GROWTH_BYTES,
    "descriptors": MAX_DESCRIPTORS_GROWTH,
    "sums_entries": MAX_SUMS_GROWTH,
}
TOLD = (
    "SELECT count(DISTINCT resource->>'process.pid') FROM spans WHERE name = 'training.rank_step'"
)
DROPPED = """
    SELECT attributes->>'rootwalk.drop.reason', max(value)::BIGINT FROM metrics
    WHERE name = 'rootwalk.dropped' GROUP BY ALL HAVING max(value) > 0 ORDER BY 1
"""


class SoakedAgent:
    """A real agent, and the ranks that it follows.

    Args:
        endpoint: Where it sends.
        folder: Its rings.
        job: Of the ranks.
    """

    def __init__(self, endpoint: str, folder: Path, job: str) -> None:
        self._folder, self._job = folder, job
        self._environment = {**os.environ, "ROOTWALK_RING_DIRECTORY": str(folder)}
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.started_ranks = 0
        ready = folder / "ready.json"
        command = [sys.executable, "-m", "rootwalk.graph", "agent", "--endpoint", endpoint]
        command += ["--job", job, "--ready-file", str(ready)]
        self._log = (folder / "agent.log").open("w+b")
        self.process = subprocess.Popen(command, env=self._environment, stderr=self._log)
        try:
            _wait(ready.exists, LET_GO_DEADLINE_S, "the agent is not ready")
        except BaseException:  # ended from outside, too, it leaves no agent
            self.close()
            raise

    def start_rank(self, number: int, end: str, seconds: float) -> None:
        """Start a rank; `end` is how it ends by itself, or `kill`, which is for `end_ranks`."""
        script_end = end if end in ("exit", "crash") else "stay"
        variables = {
            "ROOTWALK_JOB": self._job,
            "RANK": str(number),
            "WORLD_SIZE": str(len(ENDS) + 1),
            "TORCHELASTIC_RESTART_COUNT": str(self.started_ranks),  # else its steps are told twice
        }
        self._ranks[number] = subprocess.Popen(
            [sys.executable, soak_rank.__file__, script_end, str(seconds)],
            env=self._environment | variables,
        )
        self.started_ranks += 1

    def end_ranks(self, numbers: Sequence[int]) -> None:
        """Kill those that have not ended by themselves, and reap all."""
        for number in numbers:
            rank = self._ranks.pop(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(0 if number == ENDS.index("kill") + 1 else LET_GO_DEADLINE_S)
            rank.kill()
            rank.wait()

    def soak(
        self,
        seconds: float,
        period_s: float,
        periods_a_look: int,
        on_sample: Callable[[Sample], object],
    ) -> list[Sample]:
        """Let ranks come and go, as `run_soak` says; return what the agent held at every rest."""
        samples: list[Sample] = []
        start_s = time.monotonic()
        self.start_rank(0, "stay", 0.0)
        numbers = range(1, len(ENDS) + 1)
        while time.monotonic() < start_s + seconds:
            for _ in range(periods_a_look):
                for number in numbers:
                    self.start_rank(number, ENDS[number - 1], period_s)
                time.sleep(period_s)
                self.end_ranks(numbers)
            samples.append(self.rest(round(time.monotonic() - start_s, 1)))
            on_sample(samples[-1])
        return samples

    def look(self, second: float = 0.0) -> Sample:
        """Return what the agent holds now."""
        pid = self.process.pid
        held = list_held(pid)
        entries = count_entries(held.maps)
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return Sample(
            second,
            self.started_ranks,
            pages * os.sysconf("SC_PAGE_SIZE"),
            _count_files(Path(f"/proc/{pid}/fd")),
            _count_files(Path(f"/proc/{pid}/task")),
            len(held.programs),
            len(held.maps),
            len(list(self._folder.glob("*.ring"))),
            **{f"{name}_entries": entries.get(name, 0) for name in FOLLOWED_MAPS},
            sums_entries=sum(entries.get(name, 0) for name in SUMS_MAPS),
        )

    def rest(self, second: float) -> Sample:
        """Wait until the agent has let go of all ranks that have ended; return what it then holds.

        Raises:
            AssertionError: If it does not let go of them.
        """

        def has_let_go() -> bool:
            answers = ask_agents({}, [self._folder])
            return [len(answer.get("ranks", ())) for answer in answers] == [len(self._ranks)]

        _wait(has_let_go, LET_GO_DEADLINE_S, "the agent holds ranks that are gone")
        looks = []
        end_s = time.monotonic() + REST_S
        while time.monotonic() < end_s:
            looks.append(self.look(second))
            time.sleep(REST_S / 10)
        return Sample(*(min(getattr(one, field.name) for one in looks) for field in fields(Sample)))

    def kill(self) -> HeldBpf:
        """Kill the agent as nothing else ends it; return what is left of its programs and maps."""
        held = list_held(self.process.pid)
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(AssertionError):
            _wait(lambda: not any(_both(list_alive(held))), UNLOAD_DEADLINE_S, "")
        return list_alive(held)

    def log(self) -> str:
        """Return what the agent has said."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        """End everything; safe twice."""
        for process in (*self._ranks.values(), self.process):
            process.kill()
            process.wait()
        self._ranks.clear()
        self._log.close()


@contextlib.contextmanager
def soaked_agent(endpoint: str, job: str) -> Iterator[SoakedAgent]:
    """Run an agent with a folder of rings of its own for the length of a block."""
    with tempfile.TemporaryDirectory(dir=ring_directory().parent) as name:
        folder = Path(name, "rings")
        folder.mkdir()
        agent = SoakedAgent(endpoint, folder, job)
        try:
            yield agent
        finally:
            agent.close()


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What a soak has shown.

    Attributes:
        started_ranks: Ranks that were started.
        told_ranks: Those of them with a step in the store.
        growth: Of each figure of a sample, from the second sixth of the time to its last.
        limits: What it may be.
        dropped: What the agent could not keep, by `rootwalk.drop.reason`.
        left_programs: Programs that the kernel still had after the agent was killed.
        left_maps: The same for maps.
        samples: What the agent held at every rest.
    """

    started_ranks: int
    told_ranks: int
    growth: Mapping[str, float]
    limits: Mapping[str, int]
    dropped: Mapping[str, int]
    left_programs: int
    left_maps: int
    samples: Sequence[Sample]

    def wrong(self) -> list[str]:
        """Return what is not as it should be."""
        found = [f"{name} grew" for name, limit in self.limits.items() if self.growth[name] > limit]
        if not self.samples[-1].programs:
            found.append("no kernel program was loaded")
        if self.left_programs or self.left_maps:
            found.append("programs or maps outlive the agent")
        return found


def run_soak(
    store: Path,
    seconds: float,
    period_s: float,
    periods_a_look: int,
    on_sample: Callable[[Sample], object] = lambda _: None,
    max_memory_growth_bytes: int = MAX_MEMORY_GROWTH_BYTES,
) -> SoakResult:
    """Let ranks come and go under an agent that sends to a receiver, then kill the agent in the middle of work.

    Args:
        store: A new store.
        seconds: For how long.
        period_s: How long a rank lives.
        periods_a_look: After so many periods there is a rest.
        on_sample: Called after each rest.
        max_memory_growth_bytes: How much the agent's memory may grow.
    """
    job = f"soak-{os.getpid()}"
    with running_receiver(store) as receiver:
        with soaked_agent(f"http://{receiver.http}", job) as agent:
            samples = agent.soak(seconds, period_s, periods_a_look, on_sample)
            left = agent.kill()
        receiver.stop()
    _, _, told = query_store(store, TOLD)
    _, _, dropped = query_store(store, DROPPED)
    return SoakResult(
        agent.started_ranks,
        told[0][0],
        measure_growth(samples),
        LIMITS | {"resident_bytes": max_memory_growth_bytes},
        dict(dropped),
        len(left.programs),
        len(left.maps),
        samples,
    )


def measure_growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Return how much more was held in the last sixth of the time than in its second sixth.

    The first sixth fills the memories that are bounded.
    """
    count = max(1, len(samples) // 6)
    before, after = samples[count : 2 * count], samples[-count:]
    return {
        name: mean(getattr(one, name) for one in after) - mean(getattr(one, name) for one in before)
        for name in LIMITS
    }


def _count_files(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def _both(held: HeldBpf) -> tuple[frozenset[int], frozenset[int]]:
    return held.programs, held.maps


def _wait(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"{what} after {deadline_s:g} s"
        time.sleep(0.1)
