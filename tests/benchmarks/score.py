"""Verdicts about public jobs whose causes are known, beside what simple rules say of the same operations.

    python tests/benchmarks/score.py [--output FILE]

Every trace of tests/data/straggleranalysis is imported, and diagnosed as a whole and step by step, as a user would. A
step is right when the known cause is the first finding and no other rank, and no network, is accused. Two hangs are
right when all ranks into which the fault was put are named with its layer and no victim is; of two profiles the slow
one when the host's input is named and never the device, the healthy one when nobody is.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import resource
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootwalk.graph import job_choice
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.importers.formats import BrokenPart, ImportOptions, load_importer
from rootwalk.graph.importers.importing import import_files
from rootwalk.graph.model import Verdict
from rootwalk.graph.operations.arrays import align_operations, take
from rootwalk.graph.operations.graph import OperationGraph, build_operations
from rootwalk.graph.operations.store import read_operations
from rootwalk.otel_receiver.store import reading
from support.other_traces import DUMPS, PROFILES, measure_dumps, measure_profile
from support.trace_rules import RULES

DATA = Path(__file__).parents[1] / "data" / "straggleranalysis"


@dataclass(frozen=True)
class Case:
    """One public trace: its files, what its authors found, and their slowdown."""

    name: str
    files: tuple[str, ...]
    reason: str
    rank: int | None
    stage: int | None
    published: float

    def is_right(self, verdict: Verdict) -> bool:
        """Whether the verdict names the known cause first and accuses no other rank and no network."""
        if not verdict.findings:
            return False
        first = verdict.findings[0]
        accused = {f.subject.rank for f in verdict.findings if f.subject.rank is not None}
        return (
            first.reason == self.reason
            and accused == ({self.rank} if self.rank is not None else set())
            and (self.stage is None or first.subject.stage == self.stage)
            and all(f.reason != "UNKNOWN_NET" for f in verdict.findings)
        )


CASES = (
    Case("AR", ("trace-AR.parquet",), "SLOW_COMPUTE", 0, 0, 1.973),
    Case("ST", ("trace-ST.parquet",), "STAGE_IMBALANCE", None, 3, 1.179),
    Case("SE", ("trace-SE-1.parquet", "trace-SE-2.parquet"), "SEQ_IMBALANCE", None, None, 1.537),
)


def fail(path: Path, part: BrokenPart) -> None:
    """Stop at a part that cannot be read: the traces are whole."""
    raise SystemExit(f"{path}, {part.place}: {part.error}")


def put(store: Path, meta: Path, *traces: Path) -> None:
    """Import traces."""
    import_files(
        load_importer("oplog", ImportOptions(meta=meta)),
        list(traces),
        store,
        job=None,
        is_strict=False,
        on_broken=fail,
        on_progress=lambda path, summary: None,
    )


def name_answer(verdict: Verdict) -> str:
    """Return the first finding in a word or two."""
    if not verdict.findings:
        return "nobody"
    finding = verdict.findings[0]
    rank, stage = finding.subject.rank, finding.subject.stage
    where = f" rank {rank}" if rank is not None else f" stage {stage}" if stage is not None else ""
    return f"{finding.reason}{where}"


def load(store: Path) -> OperationGraph:
    """Return a trace as its step graph."""
    with reading(store) as connection:
        key = job_choice.choose_job(connection, None)
        assert key is not None
        operations, _ = read_operations(
            connection, key, job_choice.last_steps(connection, key, 9999)
        )
    return build_operations(align_operations(operations)[0])


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Return what the verdicts and the rules say of one trace."""
    store = folder / f"{case.name}.duckdb"
    put(store, DATA / f"meta-{case.name}.yaml", *(DATA / name for name in case.files))
    whole = diagnose(store)
    graph = load(store)
    answers: Counter[str] = Counter()
    accusing = right = 0
    rules = {name: Counter[str]() for name in RULES}
    for number in graph.step_numbers.tolist():
        verdict = diagnose(store, steps=(number, number))
        right += case.is_right(verdict)
        answers[name_answer(verdict)] += 1
        accusing += any(f.subject.rank not in (None, case.rank) for f in verdict.findings)
        step = take(graph.operations, graph.operations.step == number)
        for name, rule in RULES.items():
            rank = rule(step)
            rules[name]["nobody" if rank is None else f"rank {rank}"] += 1
    wanted = f"rank {case.rank}"
    what_if = whole.what_if
    assert what_if is not None
    assert what_if.slowdown is not None
    return {
        "steps": int(graph.step_numbers.size),
        "operations": int(graph.work_s.size),
        "cause": f"{case.reason}" + (f" {wanted}" if case.rank is not None else ""),
        "right": right,
        "accused_others": accusing,
        "answers": dict(answers.most_common()),
        "whole": [
            {
                "answer": name_answer(whole),
                "reason": f.reason,
                "share_s": f.seconds.share,
                "rank": f.subject.rank,
                "stage": f.subject.stage,
                "confidence": f.confidence.score,
            }
            for f in whole.findings
        ],
        "whole_right": case.is_right(whole),
        "step_s": whole.step_s,
        "healthy_step_s": whole.healthy_step_s,
        "unexplained_s": whole.unexplained_s,
        "slowdown": what_if.slowdown,
        "published": case.published,
        "diagnose_s": whole.cost.diagnose_s,
        "rules": {
            name: {
                "right": found[wanted] if case.rank is not None else 0,
                "answers": dict(found.most_common(3)),
            }
            for name, found in rules.items()
        },
    }


def main() -> int:
    """Measure all traces; return 1 when a verdict about AR, ST, a hang or a profile is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "traces": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in CASES:
            report["traces"][case.name] = found = measure(case, folder)
            print(
                f"{case.name}: {found['right']} of {found['steps']} steps right, others accused in "
                f"{found['accused_others']}; slowdown {found['slowdown']:.4f}, published {case.published}; "
                f"whole trace {'right' if found['whole_right'] else 'wrong'} in {found['diagnose_s']} s"
            )
            for rule, said in found["rules"].items():
                print(f"    {rule}: {said['right']} right; {said['answers']}")
        report["hangs"] = {case.name: measure_dumps(case, folder) for case in DUMPS}
        report["profiles"] = {case.name: measure_profile(case, folder) for case in PROFILES}
        others = report["hangs"] | report["profiles"]
        for one, said in others.items():
            print(f"{one}: {said['answer']}, {'right' if said['right'] else 'wrong'}")
            print(f"    { ({rule: item['answer'] for rule, item in said['rules'].items()}) }")
    report["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    wrong = [
        name
        for name, found in report["traces"].items()
        if name != "SE"
        and (
            found["right"] < found["steps"]
            or not found["whole_right"]
            or abs(found["slowdown"] / found["published"] - 1.0) > 0.005
        )
    ]
    wrong += [name for name, said in others.items() if not said["right"]]
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
