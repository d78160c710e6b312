"""A process that behaves like a training rank without PyTorch: real steps, a real ring, real CPU time.

`python fake_rank.py DIRECTORY STEPS CPU`: each step loads for 20 ms (asleep) and computes for 60 ms of wall time.
With FAKE_RANK_WAITS it waits 30 ms more in a collective, at the end of backward.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from rootwalk.instrumentation.communicator import Communicator
from rootwalk.instrumentation.identity import read_identity
from rootwalk.instrumentation.shared_ring import RingWriter
from rootwalk.instrumentation.tracker import StepTracker

LOAD_S, COMPUTE_S, WAIT_S = 0.02, 0.06, 0.03


def _compute(duration_s: float) -> None:
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        pass


def _wait_for_others(group: Communicator) -> None:
    group.begin(1, "all_reduce", 4, is_p2p=False)
    time.sleep(WAIT_S)
    group.end(1, is_known=True)


def main() -> None:
    """Run the steps."""
    directory, steps, cpu = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, {cpu})
    ring = RingWriter(read_identity(os.environ), directory)
    tracker = StepTracker(ring)
    group = Communicator(tracker, "0|2|gloo|default_pg")
    for _ in range(steps):
        tracker.begin_phase("data_load")
        time.sleep(LOAD_S)
        tracker.end_phase()
        for phase in ("forward", "backward"):
            tracker.begin_phase(phase)
            _compute(COMPUTE_S / 2)
            if phase == "backward" and os.environ.get("FAKE_RANK_WAITS"):
                _wait_for_others(group)
            tracker.end_phase()
        tracker.begin_phase("optimizer")
        tracker.end_optimizer()
    if os.environ.get("FAKE_RANK_DIES"):
        os._exit(1)
    tracker.close()


if __name__ == "__main__":
    main()
