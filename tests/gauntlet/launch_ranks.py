"""Starts so many ranks and waits for all of them: a launcher would end the others when one leaves, before their dumps.

launch_ranks.py RANKS COMMAND...

GAUNTLET_NETWORKS: a process a rank, whose network namespace the rank is to be in; without it all are in this one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import NoReturn


def main() -> int:
    networks = [pid for pid in os.environ.get("GAUNTLET_NETWORKS", "").split(",") if pid]
    ranks = []
    for number in range(int(sys.argv[1])):
        # It becomes the command: the rank's process id is that of what is started here.
        enter = ["nsenter", f"--target={networks[number]}", "--net", "--"] if networks else []
        own = {"RANK": str(number), "LOCAL_RANK": str(number)}
        ranks.append(subprocess.Popen([*enter, *sys.argv[2:]], env=os.environ | own))

    def end(number: int, _frame: object) -> NoReturn:
        for rank in ranks:
            rank.kill()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    raise SystemExit(main())
