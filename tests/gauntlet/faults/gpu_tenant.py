"""A process that has a context and memory on the first GPU, and multiplies matrices there while it is told to.

    python gpu_tenant.py busy|idle COUNT_FILE

Prints a line when it is there; then writes down how often it has multiplied.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

SIZE = 8192
# Between two words to the file, s.
TELL_S = 0.5


def main() -> None:
    kind, path = sys.argv[1], Path(sys.argv[2])
    values = torch.rand(SIZE, SIZE, device="cuda:0")
    torch.cuda.synchronize()
    print("there", flush=True)
    count = 0
    told_s = 0.0
    while True:
        if kind == "busy":
            torch.mm(values, values)
            torch.cuda.synchronize()
            count += 1
        else:
            time.sleep(TELL_S)
        if time.monotonic() - told_s >= TELL_S:
            told_s = time.monotonic()
            new = path.with_suffix(".new")
            new.write_text(f"{count}\n", encoding="ascii")
            new.replace(path)


if __name__ == "__main__":
    main()
