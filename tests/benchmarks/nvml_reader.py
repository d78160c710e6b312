"""What reading GPUs costs, against the stand-in of the driver's library: 8 GPUs, all signals. No GPU is asked.

look     one look of the helper process at everything, and the same as it is due at 1 Hz: CPU time
agent    what the agent does with it: taken, given to ranks, made into a request of OTLP every 5 s, of what has changed;
         once a minute of everything

Beside it the time of a fixed piece of work, which tells how fast the machine was: a core that another machine shares
takes twice as long for everything.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.resources import Resource

from rootwalk.ebpf.garbage import collect_seldom
from rootwalk.ebpf.gpu.device import DeviceReading
from rootwalk.ebpf.gpu.reader import measure_device
from rootwalk.ebpf.gpu.worker import GpuWorker
from rootwalk.ebpf.metric_export import build_resource_metrics
from rootwalk.ebpf.unchanged import UnchangedFilter
from support.nvml_standin import Scenario

GPUS = 8
EXPORT_INTERVAL_S = 5
REPEATS = 60


def measure(repeats: int = REPEATS) -> dict[str, float]:
    """Return CPU times, ms; and the part of a core that all of it takes at one look a second."""
    collect_seldom()  # as both processes do
    now_s = time.monotonic()
    worker = GpuWorker(clock_s=lambda: now_s)
    whole = [_timed(lambda: _look(_fresh(worker)))[0] for _ in range(repeats)]
    due, texts = [], []
    for _ in range(repeats):
        now_s += 1.0
        took_s, text = _timed(lambda: _look(worker))
        due.append(took_s)
        texts.append(text)
    taken, exported, everything = _agent(texts)
    a_second_s = statistics.mean(due) + statistics.mean(taken)
    a_second_s += statistics.mean(exported) / EXPORT_INTERVAL_S
    return {
        "all_signals_ms": statistics.median(whole) * 1e3,
        "look_ms": statistics.mean(due) * 1e3,
        "taken_ms": statistics.mean(taken) * 1e3,
        "exported_ms": statistics.mean(exported) * 1e3,
        "all_signals_with_export_ms": (
            statistics.median(whole) + statistics.mean(taken) + statistics.mean(exported)
        )
        * 1e3,
        "everything_exported_ms": statistics.median(everything) * 1e3,
        "core_ratio": a_second_s,
        "fixed_work_ms": statistics.median(_timed(_fixed_work)[0] for _ in range(repeats)) * 1e3,
    }


def _timed(turn: Callable[[], Any]) -> tuple[float, Any]:
    begin_s = time.thread_time()
    result = turn()
    return time.thread_time() - begin_s, result


def _fresh(worker: GpuWorker) -> GpuWorker:
    """Let everything be due, with nothing known."""
    worker.readings = {
        uuid: DeviceReading(worker.nvml, reading.device, worker.clock_s)
        for uuid, reading in worker.readings.items()
    }
    return worker


def _look(worker: GpuWorker) -> str:
    return json.dumps(worker.look())


def _fixed_work() -> int:
    return sum(number * number for number in range(20_000))


def _agent(texts: list[str]) -> tuple[list[float], list[float], list[float]]:
    unchanged = UnchangedFilter()
    resource = Resource({"host.name": "bench"})
    taken, exported, everything = [], [], []
    for number, text in enumerate(texts):
        took_s, message = _timed(partial(json.loads, text))
        taken.append(took_s)
        if number % EXPORT_INTERVAL_S == 0:
            exported.append(_timed(partial(_export, message, unchanged, resource))[0])
            everything.append(_timed(partial(_export, message, UnchangedFilter(), resource))[0])
    return taken, exported, everything


def _export(message: dict[str, Any], unchanged: UnchangedFilter, resource: Resource) -> bytes:
    measured = [
        one for device in message["devices"] for one in measure_device(device, "580", (), {})
    ]
    now_ns = time.time_ns()
    data = build_resource_metrics(resource, unchanged.choose(None, measured), now_ns, now_ns)
    return bytes(encode_metrics(MetricsData([data])).SerializeToString())


def play(folder: Path) -> None:
    """Put the stand-in before the driver's library, and start again: the loader looks at its path once."""
    scenario = Scenario(folder / "scenario", gpus=GPUS)
    for gpu in range(GPUS):
        scenario.add(gpu, "process", 1000 + gpu, 1 << 30)
        for key in ("violation.0", "field.197.0", "field.198.0"):
            scenario.add(gpu, "rate", key, 1e6)
    os.environ.update(scenario.write())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args()
    if "ROOTWALK_NVML_SCENARIO" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            play(Path(folder))
            return subprocess.run([sys.executable, *sys.argv], check=False).returncode
    print(json.dumps(measure(arguments.repeats), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
