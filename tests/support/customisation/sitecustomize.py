"""A customisation of the environment's owner: it must run although Rootwalk's comes before it on the path.

TINY_CUSTOMISED names a file to make. TINY_CLOCK names a file: while it exists, the clock on the wall of this process is
off by the seconds that it holds, as after a jump of the clock or a laptop's sleep. The monotonic clock goes on.
"""

import os
import time
from pathlib import Path


def jump(flag: str) -> None:
    """Put a clock that jumps in the place of the real one."""
    real_ns = time.time_ns

    def shift_ns() -> int:
        try:
            return int(Path(flag).read_text(encoding="ascii")) * 1_000_000_000
        except (OSError, ValueError):
            return 0

    time.time_ns = lambda: real_ns() + shift_ns()
    time.time = lambda: time.time_ns() / 1e9


if "TINY_CUSTOMISED" in os.environ:
    Path(os.environ["TINY_CUSTOMISED"]).touch()
if "TINY_CLOCK" in os.environ:
    jump(os.environ["TINY_CLOCK"])
