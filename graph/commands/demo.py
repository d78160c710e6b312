"""`rootwalk demo`: a real training job, a real fault in a real process, and the verdict held against the truth."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rootwalk.instrumentation.errors import ConfigError, RootwalkError, UnavailableError

logger = logging.getLogger(__name__)

HELP = "train a small model here, put a real fault into it, and diagnose it"
EXAMPLES = """examples:
  rootwalk demo
  rootwalk demo --fault none
  rootwalk demo --fault cpu_contention --fault-rank 0 --json verdict.json

Exits with 1 when the verdict differs from the fault that was put in.
"""

FAULTS: Final = {
    "cpu_contention": "another process, not a child of the job, on one rank's core",
    "none": "no fault: the verdict must be that the job is healthy",
}
# The first steps of a process are slow (imports, first touch of memory); they are no truth about anything.
COLD_STEPS = 10
DEFAULT_STEPS = 150
# The fault begins here: enough history before it, enough steps with it.
HEALTHY_SHARE = 0.6
MIN_STEPS = 60
MIN_RANKS, MAX_RANKS = 2, 8
POLL_S = 0.05
# A process that only burns CPU, named so that one can tell that the name was found and not guessed.
HOG_NAME = "noisy-neighbour"
HOG_SOURCE = """
import ctypes, os, signal, sys
name, core, parent = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3])
libc = ctypes.CDLL(None)
libc.prctl(15, name, 0, 0, 0)             # PR_SET_NAME
libc.prctl(1, signal.SIGKILL, 0, 0, 0)    # PR_SET_PDEATHSIG: never outlives the demo
os.sched_setaffinity(0, {core})
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@dataclass(frozen=True, slots=True)
class Truth:
    """What the job's own step clock says, apart from everything that Rootwalk measured.

    Attributes:
        healthy_s: Median step before the fault, s.
        faulty_s: Mean step while the fault was on, s; None without a fault.
        onset_step: First step that began after the fault did; None without a fault.
    """

    healthy_s: float
    faulty_s: float | None
    onset_step: int | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument(
        "--fault", default="cpu_contention", metavar="NAME", help="fault (default cpu_contention)"
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
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the verdict there too")
    parser.add_argument("--store", type=Path, help="store to write (default rootwalk-demo.duckdb)")
    parser.add_argument("--force", action="store_true", help="overwrite the store")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; return 0 when the verdict is the truth."""
    if arguments.list:
        for name, text in FAULTS.items():
            print(f"{name:16s} {text}")
        return 0
    ranks, fault_rank = _check(arguments)
    store = arguments.store or Path("rootwalk-demo.duckdb")
    _clear(store, is_ours=arguments.store is None or arguments.force)
    with tempfile.TemporaryDirectory(prefix="rootwalk-demo-") as name:
        folder = Path(name)
        verdict_path = folder / "verdict.json"
        code, hog_pid, fault_step = _train(arguments, ranks, fault_rank, store, folder)
        if code != 0 or not verdict_path.exists():
            raise RootwalkError(f"cannot judge the demo: the training job ended with {code}")
        verdict = json.loads(verdict_path.read_text(encoding="utf-8"))
        truth = read_truth(folder / "steps", fault_step)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
    _tell_where_next(verdict, store)
    return _judge(arguments.fault, verdict, truth, fault_rank, hog_pid)


def _check(arguments: argparse.Namespace) -> tuple[int, int]:
    """Return (ranks, fault rank) after checking that the demo can run here."""
    if arguments.fault not in FAULTS:
        raise ConfigError(
            f'cannot run the demo: saw fault "{arguments.fault}"; needs one of {", ".join(FAULTS)}'
        )
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
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError(
            f"cannot run the demo: no PyTorch in {sys.prefix}; needs torch 2.15 or newer",
            reason="NO_TORCH",
            hint="pip install 'torch>=2.15', or `make setup` in a clone",
        )
    if cores < ranks:
        logger.warning("%d ranks share %d cores: they will slow each other down", ranks, cores)
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


def _train(
    arguments: argparse.Namespace, ranks: int, fault_rank: int, store: Path, folder: Path
) -> tuple[int, int | None, int | None]:
    """Run the job with the fault in it; return (exit code, the hog's pid, the step at which it began)."""
    import rootwalk.examples

    script = Path(next(iter(rootwalk.examples.__path__))).resolve() / "train_ddp.py"
    healthy_steps = int(arguments.steps * HEALTHY_SHARE)
    steps = folder / "steps"
    options = ["--step-log", str(steps), "--bind-cores", "--steps", str(arguments.steps)]
    command = [
        sys.executable,
        "-m",
        "rootwalk.graph",
        "run",
        "--job",
        "demo",
        "--store",
        str(store),
    ]
    command += ["--json", str(folder / "verdict.json"), "--"]
    command += [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += ["--master-port", str(_free_port()), str(script), *options]
    logger.info("training on %d ranks for %d steps", ranks, arguments.steps)
    # The faults are on cores: on a GPU the host would run ahead of them. A machine with GPUs trains on its CPUs here.
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    job = subprocess.Popen(command, env=environment)  # noqa: S603  (our own command)
    hog: subprocess.Popen[bytes] | None = None
    fault_step: int | None = None
    try:
        while job.poll() is None:
            time.sleep(POLL_S)
            if arguments.fault == "none" or hog is not None:
                continue
            done = _logged_steps(steps / "rank0.jsonl")
            if done >= healthy_steps:
                fault_step = done
                cores = sorted(os.sched_getaffinity(0))
                core = cores[fault_rank % len(cores)]
                hog = _start_hog(core)
                logger.info(
                    "step %d: '%s' (pid %d) begins to run on core %d, which rank %d runs on",
                    done,
                    HOG_NAME,
                    hog.pid,
                    core,
                    fault_rank,
                )
    except KeyboardInterrupt:
        job.terminate()  # the job's own Ctrl-C may not have reached it; `run` passes this on
    finally:
        code = job.wait()
        if hog is not None:
            hog.kill()
            hog.wait()
    return code, None if hog is None else hog.pid, fault_step


def _start_hog(core: int) -> subprocess.Popen[bytes]:
    """Start a process that burns CPU on one core; it belongs to the demo, not to the job."""
    return subprocess.Popen(  # noqa: S603  (our own source)
        [sys.executable, "-c", HOG_SOURCE, HOG_NAME, str(core), str(os.getpid())],
        stdout=subprocess.DEVNULL,
    )


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _logged_steps(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def read_truth(folder: Path, fault_step: int | None) -> Truth:
    """Return what the ranks' own step logs say; a step lasts as long as its slowest rank says.

    Args:
        folder: Holds `rank<N>.jsonl`, a line a step with `step` and `seconds`.
        fault_step: Number of the step that ran when the fault began, or None.
    """
    seconds: dict[int, float] = {}
    for path in folder.glob("rank*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            seconds[entry["step"]] = max(seconds.get(entry["step"], 0.0), entry["seconds"])
    end = max(seconds) + 1 if fault_step is None else fault_step
    healthy = [seconds[step] for step in range(COLD_STEPS, end) if step in seconds]
    if fault_step is None:
        return Truth(statistics.median(healthy), None, None)
    faulty = [value for step, value in seconds.items() if step > fault_step]
    return Truth(statistics.median(healthy), statistics.fmean(faulty), fault_step + 1)


def _tell_where_next(verdict: dict[str, Any], store: Path) -> None:
    print("look next")
    print(f'  rootwalk sql {store} "FROM findings"')
    if verdict["findings"]:
        print(f'  rootwalk sql {store} "{PATH_QUERY}"')
        for trace_id in verdict["window"]["exemplar_trace_ids"][:1]:
            print(f"  trace {trace_id} in Jaeger or Tempo; here:")
            query = f"FROM spans WHERE trace_id = '{trace_id}'"
            print(f'  rootwalk sql {store} "{query}"')


PATH_QUERY: Final = "SELECT source_id, kind, target_id, seconds FROM edges WHERE seconds > 0"


def _judge(
    fault: str, verdict: dict[str, Any], truth: Truth, fault_rank: int, hog_pid: int | None
) -> int:
    """Print the truth beside the verdict; return 0 when they agree."""
    print("truth")
    if truth.faulty_s is None:
        is_right = verdict["outcome"] == "healthy"
        print(f"  no fault was put in; the job's own clock: {truth.healthy_s:.3f} s a step")
        print(f"  the verdict is {'right' if is_right else 'WRONG'}: {verdict['outcome']}")
        return 0 if is_right else 1
    added_s = truth.faulty_s - truth.healthy_s
    print(
        f"  the job's own clock: {truth.healthy_s:.3f} s a step before the fault,"
        f" {truth.faulty_s:.3f} s with it (+{added_s:.3f} s)"
    )
    wrong = _differences(fault, verdict, fault_rank, hog_pid)
    if wrong:
        print(f"  the verdict is WRONG: {'; '.join(wrong)}")
        return 1
    share_s = verdict["findings"][0]["seconds"]["share"]
    predicted_s = verdict["predicted_step_s"]
    print(
        f"  the verdict is right: rank {fault_rank}, {fault.upper()}, pid {hog_pid};"
        f" share {share_s / added_s:.0%} of that,"
    )
    print(f"  predicted step {predicted_s:.3f} s ({predicted_s / truth.healthy_s - 1:+.1%})")
    return 0


def _differences(
    fault: str, verdict: dict[str, Any], fault_rank: int, hog_pid: int | None
) -> list[str]:
    """Return where the first finding differs from the fault that was put in."""
    if not verdict["findings"]:
        return [f"outcome {verdict['outcome']}"]
    finding = verdict["findings"][0]
    subject = finding["subject"]
    aggressor = subject["aggressor"] or {}
    pairs = [
        ("reason", finding["reason"], fault.upper()),
        ("rank", subject["rank"], fault_rank),
        ("pid", aggressor.get("pid"), hog_pid),
        ("name", aggressor.get("name"), HOG_NAME),
    ]
    return [f"{what} {saw}, not {truth}" for what, saw, truth in pairs if saw != truth]
