"""`rootwalk run`: receiver, agent and instrumentation around a command, and the verdict at the end."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rootwalk.graph.supervisor import Helper, start_helper, tell_exit_code
from rootwalk.instrumentation.errors import ConfigError, RootwalkError

logger = logging.getLogger(__name__)

HELP = "run a training command, watch it, and say at its end why it was slow"
EXAMPLES = """examples:
  rootwalk run -- torchrun --nproc-per-node=4 train.py
  rootwalk run --store night.duckdb --json verdict.json -- python train.py
  rootwalk run --endpoint http://10.0.0.1:4318 --job llama -- torchrun train.py

The exit code is the command's own (128 + signal when it was killed). The verdict
goes to stdout after the command's own output, progress to stderr.
"""

POLL_S = 0.2
# What the agent and the receiver may take to send and store what they still hold.
AGENT_STOP_S = 15.0
RECEIVER_STOP_S = 60.0
# Telemetry is durable in the journal at once; moving it into the store costs CPU that ranks may want.
FLUSH_INTERVAL = "60s"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What `run` was asked to do, checked.

    Attributes:
        command: The job's command line.
        job: Job id.
        store: Store to write and diagnose, or None when another host's receiver has it.
        endpoint: OTLP/HTTP base URL of another host's receiver, or None for one of our own.
        level: Detail of the telemetry, 0 to 2.
        without: Sensors to leave out.
        json_path: File for the verdict, or None.
    """

    command: tuple[str, ...]
    job: str
    store: Path | None
    endpoint: str | None
    level: int
    without: tuple[str, ...]
    json_path: Path | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("--store", type=Path, help="store to write (default rootwalk-JOB.duckdb)")
    parser.add_argument(
        "--endpoint", metavar="URL", help="OTLP/HTTP receiver on another host; no receiver here"
    )
    parser.add_argument("--job", metavar="ID", help="job id (default: the command and the time)")
    parser.add_argument(
        "--level", type=int, choices=(0, 1, 2), default=1, help="detail (default 1)"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="SENSOR",
        help="leave a sensor out: a name from `rootwalk check`, or bpf, or instrumentation",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the verdict there too")
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND")


def plan_run(arguments: argparse.Namespace) -> RunPlan:
    """Return what to do.

    Raises:
        ConfigError: If the command is missing or cannot be found, or options contradict each other.
    """
    command = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not command:
        raise ConfigError(
            "cannot run: saw no command; needs one after --",
            hint="rootwalk run -- torchrun --nproc-per-node=4 train.py",
        )
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f'cannot run "{command[0]}": no such command; needs an executable on PATH',
            hint="activate the training environment first, or give its full path",
        )
    if arguments.endpoint and arguments.store:
        raise ConfigError(
            "cannot use --store together with --endpoint: the store is where the receiver is"
        )
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise ConfigError(
            f'cannot write the verdict to "{arguments.json}": its folder does not exist; needs one'
        )
    stamp = time.strftime("%Y%m%d-%H%M%S")
    job = arguments.job or f"{_script_name(command)}-{stamp}"
    store = None if arguments.endpoint else arguments.store or Path(f"rootwalk-{job}.duckdb")
    return RunPlan(
        tuple(command),
        job,
        store,
        arguments.endpoint,
        arguments.level,
        tuple(arguments.without),
        arguments.json,
    )


def _script_name(command: list[str]) -> str:
    """Return a word for the job: the script's name, without its folder."""
    for argument in command[1:]:
        if argument.endswith(".py"):
            return re.sub(r"[^A-Za-z0-9_.-]", "-", Path(argument).stem)
    return re.sub(r"[^A-Za-z0-9_.-]", "-", Path(command[0]).name)


def job_environment(plan: RunPlan, endpoint: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the command's environment: the user's, and what switches the instrumentation on."""
    child = dict(environment)
    if "instrumentation" in plan.without:
        return child | {"ROOTWALK_DISABLED": "1"}
    import rootwalk.instrumentation

    bootstrap = str(Path(rootwalk.instrumentation.__path__[0]).resolve() / "bootstrap")
    paths = [bootstrap, *filter(None, [environment.get("PYTHONPATH", "")])]
    return child | {
        "PYTHONPATH": os.pathsep.join(paths),
        "ROOTWALK_JOB": plan.job,
        "ROOTWALK_LEVEL": str(plan.level),
        "ROOTWALK_ENDPOINT": endpoint,
    }


def _refuse_second_run(store: Path, job: str) -> None:
    """Raise ConfigError when the store has this job: its steps would be taken for the same steps sent again."""
    if not store.exists():
        return
    from rootwalk.otel_receiver.store import query_store

    _, _, rows = query_store(store, "SELECT DISTINCT job FROM jobs")
    if (job,) in [tuple(row) for row in rows]:
        raise ConfigError(
            f'cannot record job "{job}" in "{store}": the store has a job of that name; needs another name',
            hint="leave --job out, or give another --job or --store",
        )


def start_receiver(store: Path, folder: Path) -> Helper:
    """Start the receiver on two free loopback ports, and pin those for a restart."""
    command = ["receive", "--store", str(store), "--flush-interval", FLUSH_INTERVAL]
    address = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    helper = start_helper("receiver", [*command, *address], folder / "receiver.json")
    pinned = ["--grpc", helper.ready["grpc"], "--http", helper.ready["http"]]
    helper.command = [*command, *pinned, "--ready-file", str(helper.ready_file)]
    return helper


def start_agent(plan: RunPlan, endpoint: str, folder: Path) -> Helper | None:
    """Start the host agent; without it the job is watched from inside only."""
    command = ["agent", "--endpoint", endpoint, "--job", plan.job, "--level", str(plan.level)]
    for sensor in plan.without:
        command += ["--without", sensor]
    try:
        return start_helper("agent", command, folder / "agent.json")
    except RootwalkError as error:
        logger.warning("%s; going on without host sensors", error)
        return None


class _Job:
    """The command as a child process, with the signals that are meant for it."""

    def __init__(self, plan: RunPlan, endpoint: str) -> None:
        environment = job_environment(plan, endpoint, os.environ)
        self._process: subprocess.Popen[bytes] | None = None
        # What a scheduler or a user sends to this process is meant for the job, which may save a checkpoint on it.
        # Ctrl-C at a terminal reaches the job by itself.
        self._handlers = {
            number: signal.signal(number, self._pass_on)
            for number in (
                signal.SIGINT,
                signal.SIGTERM,
                signal.SIGHUP,
                signal.SIGUSR1,
                signal.SIGUSR2,
            )
        }
        self._process = subprocess.Popen(plan.command, env=environment)  # noqa: S603  (the user's command)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if self._process is not None and not (number == signal.SIGINT and sys.stdin.isatty()):
            self._process.send_signal(number)

    def wait(self, helpers: list[Helper]) -> int:
        """Wait for the end, keeping the helpers alive; return the exit code as a shell would."""
        code = None
        while code is None and self._process is not None:
            try:
                code = self._process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                for helper in helpers:
                    helper.revive()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if code is None:
            return 1
        if code != 0:
            logger.warning("the command ended: %s", tell_exit_code(code))
        return 128 - code if code < 0 else code


def run(arguments: argparse.Namespace) -> int:
    """Run the command under observation; return its exit code."""
    plan = plan_run(arguments)
    if plan.store is not None:
        _refuse_second_run(plan.store, plan.job)
    with tempfile.TemporaryDirectory(prefix="rootwalk-") as name:
        folder = Path(name)
        receiver = None if plan.store is None else start_receiver(plan.store, folder)
        endpoint = plan.endpoint or f"http://{receiver.ready['http'] if receiver else ''}"
        agent = None
        try:
            agent = start_agent(plan, endpoint, folder)
            job = _Job(plan, endpoint)
            code = job.wait([helper for helper in (receiver, agent) if helper is not None])
        finally:
            if agent is not None:
                agent.stop(AGENT_STOP_S)
            if receiver is not None:
                receiver.stop(RECEIVER_STOP_S)
    if plan.store is not None:
        tell_verdict(plan, plan.store)
    return code


def tell_verdict(plan: RunPlan, store: Path) -> None:
    """Diagnose the store and print the verdict; trouble here is told and never changes the job's exit code."""
    from rootwalk.graph.diagnosis import diagnose
    from rootwalk.graph.render import render_text
    from rootwalk.graph.verdict import to_json

    try:
        verdict = diagnose(store, job=plan.job)
        print(render_text(verdict))
        print(f"store     {store}", flush=True)
        if plan.json_path is not None:
            plan.json_path.write_text(to_json(verdict), encoding="utf-8")
            logger.info("verdict written to %s", plan.json_path)
    except RootwalkError as error:
        print(f"no verdict: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
    except Exception as error:
        # The job has ended: whatever is wrong here, its exit code must still be passed on.
        logger.debug("no verdict", exc_info=True)
        print(f"no verdict: {error!r} is a bug in Rootwalk; the store is complete", file=sys.stderr)
        print(f"hint: rootwalk diagnose {store} shows where", file=sys.stderr)
