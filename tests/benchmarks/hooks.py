"""CPU time of the in-process records for one rank and step: four phases and three collectives, into a real ring.

    python tests/benchmarks/hooks.py

What PyTorch itself spends on calling its hooks is not in it; tests/benchmarks/overhead.py measures the whole.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rootwalk.instrumentation.identity import read_identity
from rootwalk.instrumentation.shared_ring import RingReader, RingWriter
from rootwalk.instrumentation.tracker import Communicator, StepTracker

STEPS = 2_000
PHASES = ("data_load", "forward", "backward", "optimizer")
COLLECTIVES = 3


def main() -> int:
    """Print microseconds of CPU per step."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        writer = RingWriter(read_identity({"RANK": "0", "ROOTWALK_JOB": "bench"}), Path(folder))
        reader = RingReader(writer.path)
        tracker = StepTracker(writer)
        group = Communicator(tracker, "c0|2|gloo|default_pg")
        spent_s, number = 0.0, 0
        for _ in range(STEPS):
            began_s = time.process_time()
            for phase in PHASES:
                tracker.begin_phase(phase)
                if phase == "backward":
                    for _ in range(COLLECTIVES):
                        group.begin(number, "all_reduce", 4096, is_p2p=False)
                        group.end(number, is_known=True)
                        number += 1
                tracker.end_phase()
            spent_s += time.process_time() - began_s
            reader.advance(len(reader.read()))
        reader.close()
    print(
        f"{spent_s / STEPS * 1e6:.0f} us of CPU a step, {len(PHASES)} phases and {COLLECTIVES} collectives"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
