"""Starts so many ranks and waits for all of them: a launcher would end the others when one leaves, before their dumps.

launch_ranks.py RANKS COMMAND...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import NoReturn


def main() -> int:
    ranks = [
        subprocess.Popen(
            sys.argv[2:], env=os.environ | {"RANK": str(number), "LOCAL_RANK": str(number)}
        )
        for number in range(int(sys.argv[1]))
    ]

    def end(number: int, _frame: object) -> NoReturn:
        for rank in ranks:
            rank.kill()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    raise SystemExit(main())
