"""What an import of a large PyTorch profile takes: seconds and memory, beside the size of its JSON.

    make bench-profiles ARGS=MEGABYTES

The profile is made (`support.profiles`), with some 450 bytes an event, as real ones have. One process of its own reads
it into a new store; its peak is what the operating system says of it, the interpreter and the database included.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.profiles import MadeProfile, write_large

DEFAULT_MEGABYTES = 1000
# Issue 8: bytes of memory for each byte of JSON, of profiles in which interpreter and database do not weigh.
MAX_MEMORY_RATIO = 0.5
STEPS = 200
# Three events each: itself, the launch, the kernel.
BYTES_PER_OPERATOR = 1310


def main() -> int:
    """Make a profile, import it, and print what that took as JSON; return 1 if it took too much memory."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_MEGABYTES
    operators = max(megabytes * 1_000_000 // STEPS // BYTES_PER_OPERATOR, 1)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rank0.json"
        size = write_large(path, MadeProfile(steps=STEPS, operators=operators))
        store = str(Path(directory) / "store.duckdb")
        command = [str(Path(sys.executable).parent / "rootwalk"), "import", "kineto", str(path)]
        began_s = time.perf_counter()
        subprocess.run([*command, "--store", store], check=True, stdout=subprocess.DEVNULL)
        took_s = time.perf_counter() - began_s
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    result = {
        "profile_bytes": size,
        "seconds": round(took_s, 1),
        "megabytes_per_second": round(size / took_s / 1e6, 1),
        "peak_rss_bytes": peak,
        "peak_bytes_per_byte": round(peak / size, 3),
    }
    print(json.dumps(result, indent=1))
    if megabytes < DEFAULT_MEGABYTES or peak <= MAX_MEMORY_RATIO * size:
        return 0
    print(f"over the limit: {peak / size:.2f} bytes of memory a byte, not {MAX_MEMORY_RATIO:g}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
