"""What it costs to count a call of a CUDA library, against the stand-ins: wall time a call, from C. No GPU is asked.

plain     no probes: what the stand-in's function takes itself, subtracted from the others
other     probes in the library, for a process that is not watched
watched   probes, and the process is a rank's
level 0   the probes taken away again

One function lies in the driver; the other in the runtime, which calls the driver: two calls, each counted in its layer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rootwalk.ebpf.cuda.reader import CudaReader
from rootwalk.ebpf.reader import Place
from rootwalk.ebpf.targets import Targets
from support.cuda_calls import settle
from support.cuda_standin import DRIVER, LOOP, RUNTIME, build_standins
from support.puppet import Puppet, puppet

CALLS, REPEATS, SLOT = 100_000, 5, 1
FUNCTIONS = {"driver": "cuCtxSynchronize", "runtime and driver": "cudaDeviceSynchronize"}
CODE = """
import ctypes
folder, name = {folder!r}, {name!r}
libraries = [ctypes.CDLL(f"{{folder}}/{{one}}", mode=ctypes.RTLD_GLOBAL) for one in {libraries!r}]
function = next(getattr(one, name) for one in libraries if hasattr(one, name))
loop = ctypes.CDLL(f"{{folder}}/{loop}").call_many
loop.restype = ctypes.c_double
def turn(): return loop(ctypes.cast(function, ctypes.c_void_p), ctypes.c_long({calls}))
"""


def measure(name: str, calls: int = CALLS) -> dict[str, float]:
    """Return ns a call of a function, in each of the cases."""
    folder = str(build_standins())
    code = CODE.format(
        folder=folder, name=name, libraries=(DRIVER, RUNTIME), loop=LOOP, calls=calls
    )
    targets = Targets()
    reader = CudaReader(Place(targets=targets))
    reader.set_level(2)
    try:
        with puppet(code) as rank, puppet(code) as other:
            plain_ns = _median(rank)
            targets.watch(rank.pid, SLOT)
            reader.watch(rank.pid, SLOT)
            settle(reader)
            found = {"plain": plain_ns, "other": _median(other), "watched": _median(rank)}
            begin_s = time.process_time()
            measurements = list(reader.measurements())
            found["read_us"] = (time.process_time() - begin_s) * 1e6 / len(measurements)
            reader.set_level(0)
            found["level 0"] = _median(rank)
    finally:
        reader.close()
        targets.close()
    return found


def _median(process: Puppet) -> float:
    process.turn()
    return statistics.median(float(process.turn()) for _ in range(REPEATS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=CALLS, help="calls a measurement")
    calls = parser.parse_args(arguments).calls
    print(
        f"ns a call over the plain one, medians of {REPEATS} times {calls:,} calls (stand-ins; no GPU)"
    )
    print(f"{'function':24}{'plain':>10}{'other':>10}{'watched':>10}{'level 0':>10}")
    for layers, name in FUNCTIONS.items():
        found = measure(name, calls)
        plain_ns = found["plain"]
        more = "".join(
            f"{found[case] - plain_ns:10.0f}" for case in ("other", "watched", "level 0")
        )
        print(
            f"{name:24}{plain_ns:10.0f}{more}   {layers}; to read it {found['read_us']:.0f} us a value"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
