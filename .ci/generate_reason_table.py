"""Generate the table of how the rule of each reason code is tested.

    python .ci/generate_reason_table.py [--check]

The codes are the contract's (graph/reasons/contract.py). How each is tested is tests/reason_codes.yaml's, or what the
gauntlet's committed runs have shown, whichever is stronger.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml
from documents import ROOT, Documents
from generate_result_tables import COMMAND

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / ".editable"))
from gauntlet.case import load_cases
from gauntlet.device_cases import DEVICE_CASES
from gauntlet.gpu_cases import GPU_CASES
from gauntlet.judge import is_right
from gauntlet.results import DEVICE_RESULTS, GPU_RESULTS, RESULTS, read_runs
from rootwalk.graph.reasons.contract import CONTRACT

ROWS = ROOT / "tests" / "reason_codes.yaml"
WAYS = ("live", "public trace", "stand-in", "generated", "not given yet")


def read_ways(path: Path = ROWS) -> dict[str, str]:
    """Return how each code is tested, by code.

    Raises:
        ValueError: If a code of the contract has no row or two, or a row says something else.
    """
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))["codes"]
    ways = {row["code"]: row["tested"] for row in listed}
    if len(ways) != len(listed) or ways.keys() != CONTRACT.keys():
        wrong = sorted(ways.keys() ^ CONTRACT.keys()) or "a code twice"
        raise ValueError(
            f"cannot list reason codes: {path.name} differs from the contract in {wrong}"
        )
    unknown = sorted({way for way in ways.values() if way not in WAYS})
    if unknown:
        raise ValueError(f"cannot list reason codes: saw {unknown}; needs one of {WAYS}")
    return ways


def find_shown() -> dict[str, str]:
    """Return how the codes that a right run of the gauntlet named first were shown, by code: the strongest way."""
    shown: dict[str, str] = {}
    for way, cases, folder in (
        ("stand-in", DEVICE_CASES, DEVICE_RESULTS),
        ("live", GPU_CASES, GPU_RESULTS),
        ("live", load_cases(), RESULTS),
    ):
        for name, case in cases.items():
            for run in read_runs(name, folder) if case.is_fault else ():
                if is_right(run):
                    shown[run["found"][0][0]] = way
    return shown


def find_ways() -> dict[str, str]:
    """Return the strongest way in which each code is tested, by code."""
    shown = find_shown()
    return {
        code: min(way, shown.get(code, way), key=WAYS.index) for code, way in read_ways().items()
    }


def generate(ways: dict[str, str]) -> str:
    """Return the table: a row a layer, a column a way, each code once."""
    layers = dict.fromkeys(layer for layer, _ in CONTRACT.values())
    lines = [f"| layer | {' | '.join(WAYS)} |", f"|---|{'---|' * len(WAYS)}"]
    for layer in layers:
        cells = [
            ", ".join(
                f"`{code}`"
                for code, (of_layer, _) in CONTRACT.items()
                if of_layer == layer and ways[code] == way
            )
            for way in WAYS
        ]
        lines.append(f"| {(layer or 'none').replace('_', ' ')} | {' | '.join(cells)} |")
    given = sum(way != "not given yet" for way in ways.values())
    where = "the tests are in `tests/reason_codes.yaml`, the runs in `tests/gauntlet/results`."
    lines += ["", f"{given} of {len(ways)} codes; {where}"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the table, or with ``--check`` return 1 when it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when stale")
    arguments = parser.parse_args()
    documents = Documents(COMMAND)
    documents.place("reasons", generate(find_ways()))
    return documents.settle(check=arguments.check)


if __name__ == "__main__":
    raise SystemExit(main())
