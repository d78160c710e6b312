"""Verdicts about public dumps of hangs and profiles of one rank, beside what simple rules say of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rootwalk.graph.cli import main
from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.importers.flight_recorder_format import parse_dump
from rootwalk.graph.model import Verdict
from support.dump_rules import DUMP_RULES
from support.kineto_rules import PROFILE_RULES, read_pieces

__all__ = ["DUMPS", "PROFILES", "measure_dumps", "measure_profile"]

DATA = Path(__file__).parents[1] / "data"
# Layers of which a slow loader is not.
DEVICE_LAYERS = frozenset(("device", "network", "collective"))


@dataclass(frozen=True)
class Dumps:
    """A recorded hang: its folder, the ranks into which the fault was put, and the layer of it."""

    name: str
    ranks: tuple[int, ...]
    layer: str

    def is_right(self, verdict: Verdict) -> bool:
        """Whether the verdict names all faulty ranks in one finding of the right layer, and nobody else."""
        found = [(f.subject.ranks, f.layer) for f in verdict.findings]
        return verdict.kind == "hang" and found == [(self.ranks, self.layer)]


@dataclass(frozen=True)
class Profile:
    """A recorded profile: its name, its file, and the part that makes it slow, None if nothing does."""

    name: str
    file: str
    part: str | None

    def is_right(self, verdict: Verdict) -> bool:
        """Whether the verdict accuses the host's input and nothing else, or nobody."""
        if self.part is None:
            return not verdict.findings
        reasons = {(f.reason, f.layer) for f in verdict.findings}
        return reasons == {("DATALOADER_CPU", "application")}


DUMPS = (
    Dumps("gpu_error_1st", (12, 14), "device"),
    Dumps("lock_gil_1st", (9, 14), "application"),
)
PROFILES = (
    Profile("num_workers_0", "num_workers_0-worker0.pt.trace.json.gz", "input"),
    Profile("num_workers_4", "num_workers_4-worker0.pt.trace.json.gz", None),
)


def _solve(kind: str, paths: list[Path], store: Path) -> Verdict:
    names = [str(path) for path in paths]
    if main(["import", kind, *names, "--store", str(store), "--quiet"]) != 0:
        raise SystemExit(f"cannot import {paths[0]}")
    return diagnose(store)


def _answer(verdict: Verdict) -> str:
    if not verdict.findings:
        return "nobody"
    first = verdict.findings[0]
    ranks = ", ".join(str(rank) for rank in first.subject.ranks)
    return f"{first.reason} rank{'s' if len(first.subject.ranks) > 1 else ''} {ranks}"


def _listed(ranks: tuple[int, ...]) -> str:
    return " and ".join(str(rank) for rank in ranks)


def measure_dumps(case: Dumps, folder: Path) -> dict[str, Any]:
    """Return what the verdict and the rules say of a hang."""
    files = DATA / "nvrx_flight_recorder" / "fr_traces" / case.name
    paths = sorted(files.glob("_dump_*"), key=lambda path: int(path.name[6:]))
    verdict = _solve("flight-recorder", paths, folder / f"{case.name}.duckdb")
    records = [parse_dump(path.read_bytes(), int(path.name[6:])) for path in paths]
    rules = {}
    for name, rule in DUMP_RULES.items():
        rank = rule(records)
        said = "nobody" if rank is None else f"rank {rank}"
        rules[name] = {"answer": said, "right": False, "is_victim": rank not in (None, *case.ranks)}
    accused = {rank for finding in verdict.findings for rank in finding.subject.ranks}
    return {
        "cause": f"{case.layer}, ranks {_listed(case.ranks)}",
        "right": case.is_right(verdict),
        "accused_others": len(accused - set(case.ranks)),
        "answer": _answer(verdict),
        "layer": verdict.findings[0].layer if verdict.findings else None,
        "diagnose_s": verdict.cost.diagnose_s,
        "rules": rules,
    }


def measure_profile(case: Profile, folder: Path) -> dict[str, Any]:
    """Return what the verdict and the rules say of a profile."""
    path = DATA / "kineto" / case.file
    verdict = _solve("kineto", [path], folder / f"{case.name}.duckdb")
    pieces = read_pieces(path)
    rules = {}
    for name, rule in PROFILE_RULES.items():
        part = rule(pieces)
        rules[name] = {"answer": part or "nobody", "right": part == case.part, "is_victim": False}
    layers = [finding.layer for finding in verdict.findings]
    return {
        "cause": "input on the host" if case.part else "nothing wrong",
        "right": case.is_right(verdict),
        "accused_others": sum(layer in DEVICE_LAYERS or case.part is None for layer in layers),
        "answer": _answer(verdict),
        "layer": layers[0] if layers else None,
        "share_s": verdict.findings[0].seconds.share if verdict.findings else None,
        "step_s": verdict.step_s,
        "diagnose_s": verdict.cost.diagnose_s,
        "rules": rules,
    }
