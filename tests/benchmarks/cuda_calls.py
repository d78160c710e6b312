"""What it costs to count a call of a CUDA library, against the stand-ins: wall time a call, from C. No GPU is asked.

plain     no probes: what the stand-in's function takes itself, subtracted from the others
other     probes in the library, for a process that is not watched
watched   probes, and the process is a rank's
level 0   the probes taken away again

One function lies in the driver; another in the runtime, which calls the driver: two calls, each counted in its layer.
NCCL's is a collective, in a communicator whose creation was not seen and in one whose creation was; the driver's launch
inside it is counted too.
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
from support.cuda_standin import DRIVER, LOOP, NCCL, RUNTIME, build_standins
from support.puppet import Puppet, puppet

CALLS, REPEATS, SLOT = 100_000, 5, 1
FUNCTIONS = {
    "driver": "cuCtxSynchronize",
    "runtime and driver": "cudaDeviceSynchronize",
    "NCCL and driver": "ncclAllReduce",
    "NCCL, numbered, and driver": "ncclAllReduce",
}
CODE = """
import ctypes
folder, name = {folder!r}, {name!r}
libraries = [ctypes.CDLL(f"{{folder}}/{{one}}", mode=ctypes.RTLD_GLOBAL) for one in {libraries!r}]
function = next(getattr(one, name) for one in libraries if hasattr(one, name))
loop = ctypes.CDLL(f"{{folder}}/{loop}").call_many
loop.restype = ctypes.c_double
def turn(): return loop(ctypes.cast(function, ctypes.c_void_p), ctypes.c_long({calls}))
"""
# An all-reduce; its communicator is one that nobody has made, or is made in the first turn that is watched.
REDUCE = """
loop = ctypes.CDLL(f"{{folder}}/{loop}").reduce_many
loop.restype = ctypes.c_double
class Id(ctypes.Structure): _fields_ = [("internal", ctypes.c_char * 128)]
communicator, turns = ctypes.c_void_p(0x5EED00), 0
def turn():
    global turns
    turns += 1
    if {is_made} and turns == {first_watched}:
        assert libraries[-1].ncclCommInitRank(ctypes.byref(communicator), 1, Id(b"benchmark"), 0) == 0
    return loop(ctypes.cast(function, ctypes.c_void_p), communicator, ctypes.c_long({calls}))
"""


def measure(name: str, calls: int = CALLS, *, is_made: bool = False) -> dict[str, float]:
    """Return ns a call of a function, in each of the cases."""
    how = {"folder": str(build_standins()), "name": name, "loop": LOOP, "calls": calls}
    code = CODE.format(libraries=(DRIVER, RUNTIME, NCCL), **how)
    if name == "ncclAllReduce":
        code += REDUCE.format(is_made=is_made, first_watched=REPEATS + 2, **how)
    targets = Targets()
    reader = CudaReader(Place(targets=targets))
    reader.set_level(2)
    try:
        with puppet(code) as rank, puppet(code) as other:
            plain_ns = _median(rank)
            targets.watch(rank.pid, SLOT)
            reader.watch(rank.pid, SLOT)
            settle(reader)
            found = {"plain": plain_ns, "watched": _median(rank), "other": _median(other)}
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
        found = measure(name, calls, is_made="numbered" in layers)
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
