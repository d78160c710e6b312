"""Starts two ranks as mpirun and srun do: each with the launcher's variables, and all ended when one fails.

start_ranks.py openmpi|slurm COMMAND...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType

RANKS = 2
VARIABLES = {
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}
GRACE_S = 5.0


def main() -> int:
    rank_name, size_name, local_name = VARIABLES[sys.argv[1]]
    ranks = [
        subprocess.Popen(
            sys.argv[2:],
            env=os.environ | {rank_name: str(rank), size_name: str(RANKS), local_name: str(rank)},
        )
        for rank in range(RANKS)
    ]

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for rank in ranks:
            rank.send_signal(number)

    # A key press reaches the ranks from the terminal; the launcher outlives it to report their end.
    signal.signal(signal.SIGINT, signal.SIG_IGN if sys.stdin.isatty() else pass_on)
    signal.signal(signal.SIGTERM, pass_on)
    while all(rank.poll() in (None, 0) for rank in ranks):
        if all(rank.poll() == 0 for rank in ranks):
            return 0
        time.sleep(0.05)
    failed = next(rank for rank in ranks if rank.poll() not in (None, 0))
    pass_on(signal.SIGTERM, None)
    deadline = time.monotonic() + GRACE_S
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
    return failed.returncode if failed.returncode > 0 else 128 - failed.returncode


if __name__ == "__main__":
    raise SystemExit(main())
