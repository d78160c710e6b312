"""What stacks cost: CPU time of the kernel program and of naming and sending, a sample, at 19, 49 and 99 Hz.

    make bench-stacks ARGS="--seconds 20"

The program of known shape (`support/stack_shapes.py`) runs alone under the stack program: on the CPU in Python, in a C
library and in the kernel, and waiting 5 to 30 ms some 20 times a second. The kernel's part is what the kernel's own
statistics say of the programs; of it, that of the clock is told a sample. The rest is the CPU time of this process:
naming every stack, building the requests of 5 s each, at the end; importing and reading symbol tables for the first
time is told by itself. Bytes are those of the requests, uncompressed.

Where PyTorch is there, a transformer layer is trained too, at 99 Hz: its native stacks are deep. `native_cut_percent`
says how many of all stacks were not walked to where the thread began.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rootwalk.ebpf.agent_profiles import build_profiles
from rootwalk.ebpf.bpf_calls import enable_statistics
from rootwalk.ebpf.stacks.records import Counter
from rootwalk.instrumentation.identity import Identity
from rootwalk.instrumentation.profiles import build_request
from support.rank_identities import identity
from support.stack_truth import HERE, build_library, open_stacks, target

RATES_HZ = (19, 49, 99)
ROUND_S = 0.5
# Rules of unwinding are taught at the first looks.
WARM_UP_S = 4.0
TRAINING = """
import sys, torch
print("ready", flush=True)
sys.stdin.readline()
layer = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True)
optimizer = torch.optim.AdamW(layer.parameters())
batch = torch.randn(16, 64, 256)
while True:
    layer(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ROUNDS_A_REQUEST = 10


class _Rank:
    """A rank whose moments are in no step."""

    def __init__(self) -> None:
        self.identity: Identity = identity(0)

    def context_of(self, _mono_ns: int) -> None:
        """Return that the step is not known."""

    def phase_of(self, _mono_ns: int) -> None:
        """Return that the phase is not known."""

    def collective_of(self, _mono_ns: int) -> None:
        """Return that no collective is known."""


def measure(hz: int, seconds: float, command: list[str]) -> dict[str, Any]:
    """Return what one rate costs.

    Args:
        hz: Samples a second and CPU.
        seconds: How long is measured.
        command: A program that says when it is ready, and begins when it reads a line.
    """
    statistics = enable_statistics()
    if statistics is None:
        sys.exit(
            "cannot measure: the kernel keeps no statistics for us; needs root or CAP_SYS_ADMIN"
        )
    with (
        open_stacks(hz) as (program, source),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        target(program, process.pid)
        first_s = time.process_time()
        source.watch(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        warm_s = time.monotonic() + WARM_UP_S
        while time.monotonic() < warm_s:
            time.sleep(ROUND_S)
            source.take()
        first_s = time.process_time() - first_s
        before = program.counts()
        kernel = program.run_time_ns()
        ran_s, begin_s = _cpu_s(process.pid), time.monotonic()
        spent_s, sent_bytes, held, since_ns = 0.0, 0, [], time.monotonic_ns()
        rounds = round(seconds / ROUND_S)
        for number in range(1, rounds + 1):
            time.sleep(max(begin_s + number * ROUND_S - time.monotonic(), 0))
            round_s = time.process_time()
            held += source.take()
            if not number % ROUNDS_A_REQUEST or number == rounds:
                until_ns = time.monotonic_ns()
                made = build_profiles(held, {1: _Rank()}, (since_ns, until_ns), 1_000_000_000 // hz)
                sent_bytes += len(build_request(made, "rootwalk.ebpf", "0"))
                held, since_ns = [], until_ns
            spent_s += time.process_time() - round_s
        elapsed_s = time.monotonic() - begin_s
        ran_s = _cpu_s(process.pid) - ran_s
        after, counts = program.run_time_ns(), program.counts()
        process.kill()
    ticks, waits, cut = (
        counts[one] - before[one] for one in (Counter.ON_CPU, Counter.OFF_CPU, Counter.NATIVE_CUT)
    )
    used = {name: after.get(name, 0) - kernel.get(name, 0) for name in after}
    os.close(statistics)
    total_s = spent_s + sum(used.values()) / 1e9
    return {
        "hz": hz,
        "seconds": round(elapsed_s, 1),
        "program_cpu_s": round(ran_s, 2),
        "samples": ticks,
        "waits": waits,
        "kernel_us_per_sample": round(used.get("take_tick", 0) / max(ticks, 1) / 1000, 1),
        "kernel_us_per_wait": round(used.get("take_leave", 0) / max(waits, 1) / 1000, 1),
        "kernel_ms": {name: round(ns / 1e6, 2) for name, ns in used.items()},
        "agent_us_per_sample": round(spent_s / max(ticks + waits, 1) * 1e6, 1),
        "first_look_ms": round(first_s * 1000, 1),
        "native_cut_percent": round(100 * cut / max(ticks + waits, 1), 1),
        "percent_of_cpu": round(total_s / elapsed_s * 100, 3),
        "bytes_per_s": round(sent_bytes / elapsed_s),
        "losses": source.losses(),
        "without_name": source.unknowns(),
    }


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
    return int(words[0]) / 1e9


def main() -> None:
    """Measure each rate and print the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = []
    for hz in RATES_HZ:
        with tempfile.TemporaryDirectory() as folder:
            shapes = HERE / "stack_shapes.py", build_library(Path(folder)), Path(folder) / "log"
            command = [sys.executable, *map(str, shapes), "1e9"]
            rows.append(measure(hz, arguments.seconds, command))
    training = None
    if importlib.util.find_spec("torch"):
        training = measure(RATES_HZ[-1], arguments.seconds, [sys.executable, "-c", TRAINING])
    result = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "rates": rows,
        "training": training,
    }
    text = json.dumps(result, indent=1)
    sys.stdout.write(text + "\n")
    if arguments.output is not None:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
