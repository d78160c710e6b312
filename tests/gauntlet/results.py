"""Results of runs: a line of JSON a run, in a file a case; and what they say together."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pynvml

from rootwalk.instrumentation.errors import UnavailableError

RESULTS = Path(__file__).with_name("results")
DEVICE_RESULTS = RESULTS / "devices"
GPU_RESULTS = RESULTS / "gpu"
HERE = Path(__file__).parent


def describe_machine() -> dict[str, str]:
    """Return when, where and of which state of the repository a run is made."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=7"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{len(os.sched_getaffinity(0))} cores, Linux {platform.release()}",
        "commit": told.stdout.strip() or "unknown",
    }


def describe_gpus() -> str:
    """Return what GPUs there are, and their driver.

    Raises:
        UnavailableError: Without any.
    """
    try:
        pynvml.nvmlInit()
        try:
            count = pynvml.nvmlDeviceGetCount()
            names = [
                str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(number)))
                for number in range(count)
            ]
            driver = pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        text = f"cannot use a GPU: saw {error}; needs an NVIDIA GPU and its driver"
        raise UnavailableError(text, reason="NO_DRIVER") from error
    if not names:
        raise UnavailableError("cannot use a GPU: saw none; needs one", reason="NO_DEVICE")
    counted = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
    return f"{counted}, driver {driver}"


def read_runs(name: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the runs of a case in the order in which they were made."""
    path = folder / f"{name}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]


def add_run(name: str, row: dict[str, Any], folder: Path = RESULTS) -> None:
    """Add one run."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def counts(run: dict[str, Any]) -> bool:
    """Whether a run was made and is valid."""
    return run.get("invalid") is None and run.get("not_run") is None


def newest(runs: list[dict[str, Any]], wanted: int) -> list[dict[str, Any]]:
    """Return the last runs of each variant, as many as are wanted of those that count, and what lies between them.

    Args:
        runs: Of one case, in the order in which they were made.
        wanted: How many that count, of each variant.
    """
    left: dict[str, int] = {}
    kept = []
    for run in reversed(runs):
        if left.setdefault(run["variant"], wanted) > 0:
            kept.append(run)
            left[run["variant"]] -= counts(run)
    return kept[::-1]


def count_done(runs: Iterable[dict[str, Any]], variant: str) -> int:
    """Return how many runs of a variant count."""
    return sum(run["variant"] == variant and counts(run) for run in runs)


def is_refused_today(runs: Iterable[dict[str, Any]], variant: str) -> bool:
    """Whether a variant could not be run on this machine today; on another day it may be had."""
    here = describe_machine()
    return any(
        run["variant"] == variant
        and run.get("not_run") is not None
        and all(run.get(key) == here[key] for key in ("date", "machine"))
        for run in runs
    )


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the runs of one variant of a case say together.

    Returns:
        `runs` that count, `invalid` ones, `not_run` (why it could not be had, the last time), `top1`, `top3`,
        `blamed` (runs in which somebody else was accused), `share_error` and `predicted_error` (absolute, a value a
        right run), `named_s`, and the wrong runs' `found`.
    """
    counted = [run for run in runs if counts(run)]
    wrong = [run for run in counted if not run["top1"]]
    return {
        "runs": len(counted),
        "invalid": sum(run.get("invalid") is not None for run in runs),
        "not_run": next((run["not_run"] for run in reversed(runs) if run.get("not_run")), None),
        "top1": sum(run["top1"] for run in counted),
        "top3": sum(run["top3"] for run in counted),
        "blamed": sum(run["blamed"] > 0 for run in counted),
        "share_error": [abs(run["share_error"]) for run in counted if "share_error" in run],
        "predicted_error": [
            abs(run["predicted_error"]) for run in counted if "predicted_error" in run
        ],
        "named_s": [run["named_s"] for run in counted if "named_s" in run],
        "wrong": [run["found"] or run["outcome"] for run in wrong],
        "naive": count_naive(counted),
    }


def count_naive(runs: list[dict[str, Any]]) -> dict[str, int]:
    """Return in how many runs each simple rule names the right rank."""
    rules = sorted({rule for run in runs for rule in run.get("naive", {})})
    return {rule: sum(run.get("naive", {}).get(rule) is True for run in runs) for rule in rules}


def tell_errors(errors: list[float]) -> str:
    """Return median and 90th percentile of errors in words; a dash without any."""
    if not errors:
        return "-"
    return f"{tell_share(statistics.median(errors))}, {tell_share(find_ninth(errors))}"


def find_ninth(values: list[float]) -> float:
    """Return the 90th percentile of values, which is one of them."""
    return sorted(values)[min(int(0.9 * len(values)), len(values) - 1)]


def tell_share(share: float) -> str:
    """Return a part in per cent."""
    return f"{share:.0%}".replace("%", " %")
