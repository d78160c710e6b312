"""What stacks of a real job take: bytes on the wire, CPU time a sample, per cent of step time, at 19, 49 and 99 Hz.

    make bench-stacks-wire ARGS="--rates 99 --seconds 60"

Four ranks of the example train on gloo under `rootwalk run --profile-hz`, with an OTLP server of our own that counts
bodies as they come, compressed. One run a rate, and one without stacks, which is what the others are held against: the
kernel's part is what its own statistics say of the three stack programs; the agent's is its CPU time a rank-step more
than without stacks. No budget: nothing is given up but for the wire's sake. Ranks share the cores of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rootwalk.ebpf.control import ask_agents
from support.command import torchrun
from support.otlp_sink import OtlpSink, otlp_sink
from support.profile_rules import find_violations, list_profiles

RANKS = 4
RATES_HZ = (0, 19, 49, 99)
WARM_STEPS = 3
START_S = 180.0
JOB = "wire"
PATH = "/v1development/profiles"
PROGRAMS = ("take_tick", "take_leave", "take_return")
LIMIT_BYTES = 1_000_000


@contextmanager
def job(sink: OtlpSink, hz: int, folder: Path) -> Iterator[None]:
    """Train until the end of a block."""
    watch = [sys.executable, "-m", "rootwalk.graph", "run", "--endpoint", sink.endpoint]
    watch += ["--job", JOB, "--budget-ratio", "1", "--profile-hz", str(hz), "--"]
    command = [*watch, *torchrun(RANKS, "--steps", "1000000")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def ask_cost() -> dict[str, Any] | None:
    """Return what the agent of our job has cost; None before it knows, and when it is too busy to answer."""
    for answer in ask_agents({}):
        if any(one["job"] == JOB for one in answer.get("ranks", ())) and answer["cost"]:
            found: dict[str, Any] = answer["cost"]
            return found
    return None


def cost_after(rank_steps: int) -> dict[str, Any]:
    """Return what the agent has cost, as soon as ranks have made so many steps."""
    deadline = time.monotonic() + START_S
    while (found := ask_cost()) is None or found["rank_steps"] < rank_steps:
        if time.monotonic() > deadline:
            sys.exit(f"cannot measure: saw no agent that answers within {START_S:.0f} s")
        time.sleep(0.5)
    return found


def wire_bytes(sink: OtlpSink) -> list[int]:
    """Return the sizes of the requests with profiles, as they came."""
    return [int(headers["content-length"]) for path, headers in sink.headers if path == PATH]


def count_samples(requests: list[Any]) -> tuple[int, int]:
    """Return how many samples were taken on the CPU, and how many values were sent."""
    ticks = values = 0
    for request in requests:
        words = request.dictionary.string_table
        for _, profile in list_profiles(request):
            values += len(profile.samples)
            if words[profile.sample_type.type_strindex] == "samples":
                ticks += sum(sample.values[0] for sample in profile.samples)
    return ticks, values


def measure(hz: int, seconds: float) -> dict[str, Any]:
    """Train at one rate; return what was sent and spent."""
    with tempfile.TemporaryDirectory(prefix="rootwalk-wire-") as name, otlp_sink() as sink:
        with job(sink, hz, Path(name)):
            # Imports and the first steps are left out.
            before, sent, began_s = (
                cost_after(WARM_STEPS * RANKS),
                len(sink.profiles),
                time.monotonic(),
            )
            time.sleep(seconds)
            after, until, elapsed_s = cost_after(0), len(sink.profiles), time.monotonic() - began_s
        requests = sink.profiles[sent:until]
        sizes = wire_bytes(sink)[sent:until]
        wrong = [one for request in sink.profiles for one in find_violations(request)]
    ticks, values = count_samples(requests)
    kernel_s = {
        name: after["program_s"].get(name, 0.0) - before["program_s"].get(name, 0.0)
        for name in PROGRAMS
    }
    steps = after["rank_steps"] - before["rank_steps"]
    row: dict[str, Any] = {
        "hz": hz,
        "seconds": round(elapsed_s, 1),
        "rank_steps": steps,
        "step_s": round(elapsed_s * RANKS / max(steps, 1), 4),
        "samples": ticks,
        "values": values,
        "requests": len(requests),
        "wire_bytes_in_60_s": round(sum(sizes) / elapsed_s * 60),
        "largest_request": max(sizes, default=0),
        "uncompressed_bytes_in_60_s": round(sum(r.ByteSize() for r in requests) / elapsed_s * 60),
        "kernel_ms": {name: round(spent * 1e3, 1) for name, spent in kernel_s.items()},
        "agent_s": round(after["cpu_s"] - before["cpu_s"], 3),
        "lost": {why: lost for why, lost in after["dropped"].items() if lost and "stack" in why},
        "rule_violations": len(wrong),
    }
    row["kernel_us_per_sample"] = round(kernel_s["take_tick"] / max(ticks, 1) * 1e6, 1)
    return row


def compare(rows: list[dict[str, Any]]) -> None:
    """Add to each row what stacks cost beside the run without them."""
    base = next((row for row in rows if row["hz"] == 0), None)
    for row in rows:
        if base is None or row is base or not row["samples"]:
            continue
        usual_s = base["agent_s"] / base["seconds"] * row["seconds"]
        agent_s = max(row["agent_s"] - usual_s, 0.0)
        spent_s = agent_s + sum(row["kernel_ms"].values()) / 1e3
        row["agent_us_per_sample"] = round(agent_s / row["samples"] * 1e6, 1)
        row["percent_of_step_time"] = round(spent_s / (row["seconds"] * RANKS) * 100, 3)


def main() -> int:
    """Measure each rate and print the results as JSON; 1 where a minute takes more than 1 MB, or breaks a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=int, nargs="*", default=list(RATES_HZ), metavar="HZ")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = []
    for hz in arguments.rates:
        rows.append(measure(hz, arguments.seconds))
        sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    compare(rows)
    machine = f"{platform.system()} {platform.release()}, {len(os.sched_getaffinity(0))} cores"
    result = {"date": time.strftime("%Y-%m-%d"), "machine": machine, "ranks": RANKS, "rates": rows}
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text)
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")
    is_right = all(
        row["wire_bytes_in_60_s"] < LIMIT_BYTES and not row["rule_violations"] for row in rows
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
