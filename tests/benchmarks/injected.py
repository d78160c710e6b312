"""Slower workers put into a public trace: whether the verdict names them, how much, and nobody else.

    python tests/benchmarks/injected.py [--scenario one|two|stage|all ...] [--output FILE]

The trace is ST of tests/data/straggleranalysis, 8 workers of 4 stages and 32 steps, whose last stage has more work: it
is a cause all along. Computations of the chosen workers take some per cent longer, and all that waits for them moves.

    one     every worker, seen over 1, 4, 16 and 32 steps
    two     pairs of workers of different stages, the uneven split taken out before, so that there are two causes and no
            third: what each costs is its fair share in replays of the trace with none, one and both
    stage   both workers of a stage: nobody is bad
    all     all workers: only their own history, which a trace does not have, could tell
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import json
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.importers.formats import BrokenPart, ImportOptions, load_importer
from rootwalk.graph.importers.importing import import_files
from rootwalk.graph.job_choice import choose_job, last_steps
from rootwalk.graph.model import Verdict
from rootwalk.graph.operations.arrays import align_operations
from rootwalk.graph.operations.causes import CauseKind, find_costs
from rootwalk.graph.operations.graph import OperationGraph, build_operations
from rootwalk.graph.operations.store import read_operations
from rootwalk.otel_receiver.store import reading
from support.trace_injection import even_stages, step_seconds, write_slower

DATA = Path(__file__).parents[1] / "data" / "straggleranalysis"
DOSES_PERCENT = (2, 5, 10, 20, 40)
WINDOWS = (1, 4, 16, 32)
# Every third of the 24 pairs of workers of different stages.
PAIR_STRIDE = 3
# What a cause must cost to be named at all: of a step without it, and of the slowdown (graph/operations/case.py).
NOISE_RATIO, LISTED_RATIO = 0.04, 0.10


def fail(path: Path, part: BrokenPart) -> None:
    """Stop at a part that cannot be read: the traces are whole."""
    raise SystemExit(f"{path}, {part.place}: {part.error}")


def put(store: Path, trace: Path) -> None:
    """Import a trace."""
    import_files(
        load_importer("oplog", ImportOptions(meta=DATA / "meta-ST.yaml")),
        [trace],
        store,
        job=None,
        is_strict=False,
        on_broken=fail,
        on_progress=lambda path, summary: None,
    )


def load(store: Path, steps: tuple[int, int] | None = None) -> OperationGraph:
    """Return some steps of a store's trace as their graph."""
    with reading(store) as connection:
        key = choose_job(connection, None)
        assert key is not None
        chosen = steps or last_steps(connection, key, 9999)
        operations, _ = read_operations(connection, key, chosen)
    return build_operations(align_operations(operations)[0])


class Trace:
    """The trace as recorded, and stores of it with slower workers."""

    def __init__(self, folder: Path, *, is_even: bool = False) -> None:
        self.folder = folder
        recorded = folder / "recorded.duckdb"
        put(recorded, DATA / "trace-ST.parquet")
        self.graph = even_stages(load(recorded)) if is_even else load(recorded)
        rows = self.graph.operations
        self.stage = {
            int(rank): int(stage) for rank, stage in zip(rows.rank, rows.stage, strict=True)
        }
        self.ranks = sorted(self.stage)
        self.step_s = float(step_seconds(self.graph, {}).mean())

    def slower(self, ranks: tuple[int, ...], dose: int) -> Path:
        """Return a store in which some workers take so many per cent longer."""
        name = "-".join(str(rank) for rank in ranks)
        trace, store = self.folder / "slower.parquet", self.folder / f"{name}-{dose}.duckdb"
        write_slower(self.graph, dict.fromkeys(ranks, 1.0 + dose / 100.0), trace)
        put(store, trace)
        return store

    def costs(self, ranks: tuple[int, ...], dose: int) -> float:
        """Return by how much steps are longer with some workers slower, in seconds."""
        factors = dict.fromkeys(ranks, 1.0 + dose / 100.0)
        return float(step_seconds(self.graph, factors).mean()) - self.step_s


def accused(verdict: Verdict) -> set[int]:
    """Return the ranks that a verdict blames."""
    return {f.subject.rank for f in verdict.findings if f.subject.rank is not None}


def worst_worker(graph: OperationGraph) -> int | None:
    """Return the worker that costs most, whether that is enough for a finding or not."""
    costs = find_costs(graph)
    shares_s = costs.shares_s.mean(axis=0)
    workers = [
        (float(shares_s[i]), cause.rank)
        for i, cause in enumerate(costs.causes)
        if cause.kind is CauseKind.WORKER
    ]
    return max(workers)[1] if workers else None


def measure_one(trace: Trace) -> dict[str, Any]:
    """Return for each dose and number of steps how often the worker is the worst, named, and another named."""
    numbers = trace.graph.step_numbers.tolist()
    result: dict[str, Any] = {}
    for dose in DOSES_PERCENT:
        longer, counts = [], {str(n): {"worst": 0, "right": 0, "wrong": 0} for n in WINDOWS}
        for rank in trace.ranks:
            store = trace.slower((rank,), dose)
            longer.append(round(trace.costs((rank,), dose) / trace.step_s, 4))
            for window in WINDOWS:
                # Not always the same steps: each rank begins elsewhere.
                first = (5 * rank) % (len(numbers) - window + 1)
                steps = (numbers[first], numbers[first + window - 1])
                named = accused(diagnose(store, steps=steps))
                found = counts[str(window)]
                found["worst"] += worst_worker(load(store, steps)) == rank
                found["right"] += rank in named
                found["wrong"] += bool(named - {rank})
        result[str(dose)] = {"workers": len(trace.ranks), "longer": longer, "steps": counts}
        print(dose, counts, flush=True)
    return result


def measure_two(trace: Trace) -> dict[str, Any]:
    """Return for each dose how often both of a pair are named, and how far their seconds are off."""
    pairs = [
        pair
        for pair in itertools.combinations(trace.ranks, 2)
        if trace.stage[pair[0]] != trace.stage[pair[1]]
    ][::PAIR_STRIDE]
    result: dict[str, Any] = {}
    for dose in DOSES_PERCENT:
        found: dict[str, Any] = {
            "pairs": len(pairs),
            "told": 0,
            "both": 0,
            "wrong": 0,
            "errors": [],
        }
        found["missed"] = []
        for pair in pairs:
            verdict = diagnose(trace.slower(pair, dose))
            assert verdict.step_s is not None
            first_s, second_s = (trace.costs((rank,), dose) for rank in pair)
            both_s = trace.costs(pair, dose)
            true_s = {
                pair[0]: (first_s + both_s - second_s) / 2.0,
                pair[1]: (second_s + both_s - first_s) / 2.0,
            }
            healthy_s = verdict.healthy_step_s or trace.step_s
            least_s = max(NOISE_RATIO * healthy_s, LISTED_RATIO * (verdict.step_s - healthy_s))
            is_told = min(true_s.values()) >= least_s
            named = accused(verdict)
            found["told"] += is_told
            found["both"] += is_told and named >= set(pair)
            found["wrong"] += bool(named - set(pair))
            if is_told and not named >= set(pair):
                found["missed"].append([list(pair), sorted(named)])
            found["errors"] += [
                round((f.seconds.share or 0.0) / true_s[f.subject.rank] - 1.0, 4)
                for f in verdict.findings
                if f.subject.rank in true_s and named >= set(pair)
            ]
        result[str(dose)] = found
        print(dose, found, flush=True)
    return result


def measure_stage(trace: Trace) -> dict[str, Any]:
    """Return for each dose how often a slow stage is named, and how often a worker is."""
    result: dict[str, Any] = {}
    for dose in DOSES_PERCENT:
        found = {"stages": 0, "named": 0, "workers": 0}
        for stage in sorted(set(trace.stage.values())):
            ranks = tuple(rank for rank in trace.ranks if trace.stage[rank] == stage)
            verdict = diagnose(trace.slower(ranks, dose))
            found["stages"] += 1
            found["named"] += any(f.reason == "STAGE_IMBALANCE" for f in verdict.findings)
            found["workers"] += bool(accused(verdict))
        result[str(dose)] = found
        print(dose, found, flush=True)
    return result


def measure_all(trace: Trace) -> dict[str, Any]:
    """Return for each dose what is said when all are slower: the cause that was there before, and no worker."""
    result: dict[str, Any] = {}
    for dose in DOSES_PERCENT:
        verdict = diagnose(trace.slower(tuple(trace.ranks), dose))
        said = [(f.reason, f.subject.rank, f.subject.stage) for f in verdict.findings]
        result[str(dose)] = {
            "same": said == [("STAGE_IMBALANCE", None, 3)],
            "workers": len(accused(verdict)),
        }
        print(dose, result[str(dose)], flush=True)
    return result


SCENARIOS: dict[str, Callable[[Trace], dict[str, Any]]] = {
    "one": measure_one,
    "two": measure_two,
    "stage": measure_stage,
    "all": measure_all,
}


def main() -> int:
    """Measure some scenarios; return 1 when a worker is named that was not made slower."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--output", type=Path, help="JSON file to write, or to add to")
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    if arguments.output is not None and arguments.output.exists():
        report = json.loads(arguments.output.read_text("utf-8"))
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.scenario:
            place = Path(folder) / name
            place.mkdir()
            report[name] = found = SCENARIOS[name](Trace(place, is_even=name == "two"))
            wrong += count_wrong(name, found)
    report["date"] = dt.datetime.now(dt.UTC).date().isoformat()
    report["machine"] = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def count_wrong(name: str, found: dict[str, Any]) -> int:
    """Return how often a worker was named that was not made slower."""
    if name == "one":
        return sum(int(c["wrong"]) for dose in found.values() for c in dose["steps"].values())
    key = "wrong" if name == "two" else "workers"
    return sum(int(dose[key]) for dose in found.values())


if __name__ == "__main__":
    raise SystemExit(main())
