"""What the times of a GPU cost the thread that trains, as far as a machine without one can say.

look      once a step where CUDA is not in use: a job on CPUs
boundary  the begin and the end of a phase, with marks in a stand-in's stream over without: what is ours of it, not what
          CUDA takes to record an event and to be asked for it
read      one reading of a Flight Recorder ring of so many entries, of gloo's own ring: dump and parse
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rootwalk.instrumentation.device_hooks import DeviceWatch
from rootwalk.instrumentation.device_marks import PhaseMarks
from rootwalk.instrumentation.flight_times import read_times
from rootwalk.instrumentation.runtime import Runtime
from rootwalk.instrumentation.tracker import StepTracker
from support.fake_cuda import FakeCuda
from support.rings import Rank

ROUNDS = 9
CALLS = 2000
ENTRIES = 512


class OneRank(Runtime):
    """A runtime whose tracker is there."""

    def __init__(self, tracker: StepTracker) -> None:
        super().__init__()
        self._tracker = tracker


def measure() -> dict[str, float]:
    """Return CPU times of this thread, microseconds a call; of a reading, milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        rank = Rank(Path(folder))
        look = DeviceWatch(OneRank(rank.tracker)).look
        look_us = _each_us(look)
        without_us = _each_us(lambda: _phase(rank, None)) / 2
        cuda = FakeCuda()
        rank.tracker.watch_device(PhaseMarks(cuda, rank.clock))
        with_us = _each_us(lambda: _phase(rank, cuda)) / 2
        rank.close()
    return {
        "look_without_cuda_us": look_us,
        "boundary_without_us": without_us,
        "boundary_with_marks_us": with_us,
        **_read_ms(),
    }


def _phase(rank: Rank, cuda: FakeCuda | None) -> None:
    rank.tracker.begin_phase("forward")
    rank.tracker.end_phase()
    marks = rank.tracker.marks
    if cuda is not None and marks is not None:
        marks.settle()
    rank.reader.advance(1)


def _each_us(call: Callable[[], object]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        began_ns = time.thread_time_ns()
        for _ in range(CALLS):
            call()
        rounds.append((time.thread_time_ns() - began_ns) / CALLS / 1e3)
    return statistics.median(rounds)


def _read_ms() -> dict[str, float]:
    import torch
    from torch import distributed
    from torch._C import _distributed_c10d

    dump = _distributed_c10d._dump_fr_trace_json
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    for _ in range(ENTRIES):
        distributed.all_reduce(torch.ones(4))
    began_unix_ns = json.loads(dump(True, False))["entries"][-20]["time_created_ns"]
    dumped, parsed = [], []
    for _ in range(ROUNDS):
        began_ns = time.thread_time_ns()
        text = dump(True, False)
        middle_ns = time.thread_time_ns()
        read_times(text, began_unix_ns)
        dumped.append((middle_ns - began_ns) / 1e6)
        parsed.append((time.thread_time_ns() - middle_ns) / 1e6)
    distributed.destroy_process_group()
    return {
        f"dump_of_{ENTRIES}_ms": statistics.median(dumped),
        "parse_of_20_ms": statistics.median(parsed),
    }


def main() -> None:
    """Print what was measured."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, value in measure().items():
        print(f"{name:28} {value:8.3f}")


if __name__ == "__main__":
    main()
