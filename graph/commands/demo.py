"""`rootwalk demo`: a real training job, a real fault in a real process, and the verdict compared with the truth."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from rootwalk.graph.commands.agent import add_profile_argument, check_profile_rate
from rootwalk.graph.commands.demo_faults import FAULTS, Fault
from rootwalk.graph.commands.demo_hang import HANG, HANG_TEXT, show_hang
from rootwalk.graph.commands.demo_job import JobPlan, StepTimes, read_step_times, train
from rootwalk.graph.commands.demo_truth import describe_load, judge
from rootwalk.instrumentation.errors import ConfigError, RootwalkError, UnavailableError

logger = logging.getLogger(__name__)

HELP = "train a small model with an injected fault and diagnose it"
EXAMPLES = """examples:
  rootwalk demo
  rootwalk demo --fault python_gc --profile-hz 49
  rootwalk demo --fault cpu_quota --fault-rank 0 --json verdict.json
  rootwalk demo --fault hang

Exits with 1 when the injected fault is not among the causes found.
"""

DEFAULT_FAULT: Final = "cpu_contention"
# Name of every fault, and what `--list` says of it.
NAMES: Final = {name: text for name, (text, _) in FAULTS.items()} | {HANG: HANG_TEXT}
DEFAULT_STEPS = 150
MIN_STEPS = 60
MIN_RANKS, MAX_RANKS = 2, 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "--fault",
        default=DEFAULT_FAULT,
        metavar="NAME",
        help=f"one of {', '.join(NAMES)} (default {DEFAULT_FAULT})",
    )
    parser.add_argument("--list", action="store_true", help="list the faults and stop")
    parser.add_argument(
        "--fault-rank", type=int, metavar="N", help="rank to disturb (default: the last)"
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="ranks (default: the cores here, 2 to 8)"
    )
    parser.add_argument(
        "--steps", type=int, default=DEFAULT_STEPS, metavar="N", help="steps (default 150)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="loader processes a rank; with 0 a rank loads by itself (default 1)",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the verdict there too")
    add_profile_argument(parser)
    parser.add_argument("--store", type=Path, help="store to write (default rootwalk-demo.duckdb)")
    parser.add_argument("--force", action="store_true", help="overwrite the store")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; return 0 when the verdict is the truth."""
    if arguments.list:
        for name, text in NAMES.items():
            print(f"{name:16s} {text}")
        return 0
    ranks, fault_rank = _check(arguments)
    store = arguments.store or Path("rootwalk-demo.duckdb")
    # What ends this process ends the fault too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="rootwalk-demo-") as name:
        plan = JobPlan(
            ranks,
            arguments.steps,
            arguments.workers,
            fault_rank,
            store,
            folder=Path(name),
            profile_hz=arguments.profile_hz,
        )
        if arguments.fault == HANG:
            _clear(store, is_ours=arguments.store is None or arguments.force)
            return show_hang(plan, arguments.json)
        _, make_fault = FAULTS[arguments.fault]
        fault = None if make_fault is None else make_fault()
        verdict, times = _run_job(plan, fault, arguments)
        truth = None if fault is None else fault.truth()
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
    _tell_where_next(verdict, store)
    return judge(verdict, times, fault_rank, truth)


def _run_job(
    plan: JobPlan, fault: Fault | None, arguments: argparse.Namespace
) -> tuple[dict[str, Any], StepTimes]:
    """Train with the fault; return the verdict and the job's own step times."""
    try:
        if fault is not None:
            fault.prepare(plan.fault_rank, plan.folder)
        _clear(plan.store, is_ours=arguments.store is None or arguments.force)
        code, fault_step = train(plan, fault)
    finally:
        if fault is not None:
            fault.stop()
    if code != 0 or not plan.verdict.exists():
        raise RootwalkError(f"cannot judge the demo: the training job ended with {code}")
    if fault is not None and fault_step is None:
        raise RootwalkError("cannot judge the demo: the training job ended before its fault began")
    verdict = json.loads(plan.verdict.read_text(encoding="utf-8"))
    return verdict, read_step_times(plan.step_logs, fault_step)


def _check(arguments: argparse.Namespace) -> tuple[int, int]:
    """Return (ranks, fault rank) after checking that the demo can run here."""
    if arguments.fault not in NAMES:
        raise ConfigError(
            f'cannot run the demo: saw fault "{arguments.fault}"; needs one of {", ".join(NAMES)}'
        )
    check_profile_rate(arguments.profile_hz)
    cores = len(os.sched_getaffinity(0))
    ranks = arguments.ranks or min(max(cores, MIN_RANKS), MAX_RANKS)
    fault_rank = ranks - 1 if arguments.fault_rank is None else arguments.fault_rank
    if not 0 <= fault_rank < ranks:
        raise ConfigError(
            f"cannot disturb rank {fault_rank}: saw {ranks} ranks; needs 0 to {ranks - 1}"
        )
    if arguments.steps < MIN_STEPS:
        raise ConfigError(
            f"cannot run the demo: saw --steps {arguments.steps}; needs {MIN_STEPS} or more",
            hint="the verdict needs 20 healthy steps after the first ones, and some slow ones",
        )
    if arguments.workers < 0:
        raise ConfigError(
            f"cannot run the demo: saw --workers {arguments.workers}; needs 0 or more"
        )
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError(
            f"cannot run the demo: no PyTorch in {sys.prefix}; needs torch 2.15 or newer",
            reason="NO_TORCH",
            hint="pip install 'torch>=2.15', or `make setup` in a clone",
        )
    if cores < ranks:
        logger.warning("%d ranks share %d cores: they will slow each other down", ranks, cores)
    load = describe_load()
    if load is not None:
        logger.warning("%s", load)
    return ranks, fault_rank


def _clear(store: Path, *, is_ours: bool) -> None:
    journal = store.with_name(store.name + ".journal")
    if store.exists() or journal.exists():
        if not is_ours:
            raise ConfigError(
                f'cannot write "{store}": it exists; needs a new name', hint="use --force"
            )
        store.unlink(missing_ok=True)
        shutil.rmtree(journal, ignore_errors=True)


def _tell_where_next(verdict: dict[str, Any], store: Path) -> None:
    for trace_id in verdict["window"]["exemplar_trace_ids"][:1]:
        print(f"trace     {trace_id} in Jaeger or Tempo, or")
        query = f"FROM spans WHERE trace_id = '{trace_id}'"
        print(f'          rootwalk sql {store} "{query}"')
