"""An agent whose ranks start and stop for half an hour: what it holds must not grow, and a kill must leave nothing.

    python tests/benchmarks/soak_agent.py --output tests/benchmarks/results/soak_agent.json

One rank lives all the time; three more end every 20 s, by themselves, by SIGKILL and by a crash, and start anew. Needs
what kernel programs need. Exit code 1 when anything grows from the second sixth of the time to its last, or when a
program or a map outlives the agent.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.agent_soak import Sample, run_soak

# Memory goes up and down by 2 MB: only the mean of many looks shows whether it grows.
PERIODS_A_LOOK = 1


def main() -> int:
    """Print a line a rest, then the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of soaking (default 30)")
    parser.add_argument("--period", type=float, default=20.0, help="of a rank, s (default 20)")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()

    # Ended from outside, it still ends the agent and the ranks that it started; a second signal does not hinder that.
    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)

    def report(sample: Sample) -> None:
        print(
            f"{sample.second:7.1f} s: {sample.started_ranks} ranks, "
            f"{sample.resident_bytes / 1e6:.1f} MB, {sample.descriptors} descriptors, "
            f"{sample.programs} programs, {sample.maps} maps, {sample.threads_entries} threads followed",
            flush=True,
        )

    with tempfile.TemporaryDirectory() as name:
        store = Path(name, "soak.duckdb")
        result = run_soak(store, 60.0 * arguments.minutes, arguments.period, PERIODS_A_LOOK, report)
    for name, limit in result.limits.items():
        print(f"{name}: grew by {result.growth[name]:,.0f} of {limit:,} at most")
    print(f"dropped: {result.dropped or 'nothing'}")
    print(f"programs and maps left by kill -9: {result.left_programs}, {result.left_maps}")
    wrong = result.wrong()
    print("passed" if not wrong else f"FAILED: {', '.join(wrong)}")
    if arguments.output is not None:
        figures: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": os.uname().release,
            "minutes": arguments.minutes,
            "period_s": arguments.period,
            "passed": not wrong,
            **asdict(result),
        }
        arguments.output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
