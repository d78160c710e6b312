"""`rootwalk run`: receiver, agent and instrumentation around a command, and the verdict at the end.

The receiver runs live detection: findings are printed on stderr as they open and close.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rootwalk.graph.commands.agent import (
    add_budget_argument,
    add_finding_profile_argument,
    add_profile_argument,
    check_budget,
    check_profile_rate,
)
from rootwalk.graph.commands.far_receiver import (
    check_endpoint,
    tell_when_away,
    tell_where_verdict_is,
)
from rootwalk.graph.commands.final_verdict import tell_verdict
from rootwalk.graph.commands.forward_plan import plan_forward, tell_unsent
from rootwalk.graph.commands.prior_setting import check_priors
from rootwalk.graph.commands.run_end import send_run_end
from rootwalk.graph.commands.status_row import can_show_row, status_row
from rootwalk.graph.job_process import JobProcess, LeaveAtOnce
from rootwalk.graph.signal_queue import Interrupted, SignalQueue
from rootwalk.graph.standard_streams import let_go_of_full_streams
from rootwalk.graph.supervisor import Helper, Pause, start_helper
from rootwalk.instrumentation.errors import ConfigError, RootwalkError

logger = logging.getLogger(__name__)

HELP = "run a training command, watch it, and say at its end why it was slow"
EXAMPLES = """examples:
  rootwalk run -- torchrun --nproc-per-node=4 train.py
  rootwalk run --store night.duckdb --json verdict.json -- python train.py
  rootwalk run --endpoint http://10.0.0.1:4318 --job llama -- torchrun train.py
  rootwalk run --forward https://collector.example:4318 -- python train.py

The exit code is the command's own (128 + signal when it was killed). The verdict
goes to stdout after the command's own output, progress to stderr, and so does a
line for each finding as it opens and closes. Ctrl-C is the
command's: its end is awaited; the second ends it, the third leaves at once.
"""

# What the agent and the receiver may take to send and store what they still hold.
AGENT_STOP_S = 15.0
# Calls that PyTorch's Flight Recorder keeps: the ring is read while the job trains, at some 20 us an entry.
FLIGHT_ENTRIES = 512
RECEIVER_STOP_S = 60.0
# The same when there was no job yet: nothing is held.
NOTHING_STOP_S = 3.0
# Telemetry is durable in the journal at once; moving it into the store costs CPU that ranks may want. Live detection
# sees what is in the store; once it sees a slowdown, the receiver hurries.
FLUSH_INTERVAL = "7s"
# Beside the helpers' own files.
STATUS_FILE = "status"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What `run` was asked to do, checked.

    Attributes:
        command: The job's command line.
        job: Job id.
        store: Store to write and diagnose, or None when another host's receiver has it.
        endpoint: OTLP/HTTP base URL of another host's receiver, or None for one of our own.
        forward: Other receivers that ours sends everything on to.
        level: Detail of the telemetry, 0 to 2.
        budget_ratio: What the agent may cost over the time of the steps.
        without: Sensors to leave out.
        json_path: File for the verdict, or None.
        profile_hz: How often stacks are taken, 0 to 99 a second and CPU.
        finding_hz: The same, of the rank that a finding names and a peer, once it is open.
        has_status_row: Whether the bottom row of the terminal says how the job does.
    """

    command: tuple[str, ...]
    job: str
    store: Path | None
    endpoint: str | None
    forward: tuple[str, ...]
    level: int
    budget_ratio: float
    without: tuple[str, ...]
    json_path: Path | None
    profile_hz: int = 0
    finding_hz: int = 0
    has_status_row: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("--store", type=Path, help="store to write (default rootwalk-JOB.duckdb)")
    parser.add_argument(
        "--endpoint", metavar="URL", help="OTLP/HTTP receiver on another host; no receiver here"
    )
    parser.add_argument("--job", metavar="ID", help="job id (default: the command and the time)")
    parser.add_argument(
        "--forward",
        action="append",
        default=[],
        metavar="URL",
        help="send what is seen on to this OTLP receiver too; may be repeated "
        "(default: OTEL_EXPORTER_OTLP_ENDPOINT, if set)",
    )
    parser.add_argument(
        "--level", type=int, choices=(0, 1, 2), default=1, help="detail (default 1)"
    )
    add_budget_argument(parser)
    add_profile_argument(parser)
    add_finding_profile_argument(parser)
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="SENSOR",
        help="leave a sensor out: a name from `rootwalk check`, or bpf, or instrumentation",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the verdict there too")
    parser.add_argument(
        "--no-status-row",
        action="store_true",
        help="on a terminal: a line a minute on how the job does, instead of the bottom row",
    )
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
    if arguments.endpoint and arguments.profile_on_finding:
        raise ConfigError(
            "cannot use --profile-on-finding together with --endpoint: findings are where the receiver is"
        )
    if arguments.endpoint and arguments.json:
        raise ConfigError(
            "cannot use --json together with --endpoint: the verdict is where the receiver is"
        )
    check_priors()
    check_budget(arguments.budget_ratio)
    check_profile_rate(arguments.profile_hz)
    check_profile_rate(arguments.profile_on_finding)
    if arguments.endpoint:
        check_endpoint(arguments.endpoint)
    forward = plan_forward(arguments.forward, arguments.endpoint, os.environ)
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
        forward,
        arguments.level,
        arguments.budget_ratio,
        tuple(arguments.without),
        arguments.json,
        arguments.profile_hz,
        arguments.profile_on_finding,
        store is not None and not arguments.no_status_row and can_show_row(os.environ),
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
        # The agent finds the ranks by the environment alone, and follows those of this job.
        return child | {"ROOTWALK_DISABLED": "1", "ROOTWALK_JOB": plan.job}
    import rootwalk.instrumentation

    bootstrap = str(Path(rootwalk.instrumentation.__path__[0]).resolve() / "bootstrap")
    paths = [bootstrap, *filter(None, [environment.get("PYTHONPATH", "")])]
    return (
        child
        | _device_times(environment)
        | {
            "PYTHONPATH": os.pathsep.join(paths),
            "ROOTWALK_JOB": plan.job,
            "ROOTWALK_LEVEL": str(plan.level),
            "ROOTWALK_ENDPOINT": endpoint,
        }
    )


def _device_times(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what lets NCCL's process groups time their operations on the device, unless the user has decided."""
    from rootwalk.instrumentation.runtime import FALSE_VALUES

    chosen: dict[str, str] = {}
    if environment.get("ROOTWALK_DEVICE_TIMES", "").strip().lower() in FALSE_VALUES:
        return chosen
    if not any(
        environment.get(name) for name in ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING")
    ):
        chosen["TORCH_NCCL_ENABLE_TIMING"] = "1"
    if not any(
        environment.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    ):
        chosen["TORCH_FR_BUFFER_SIZE"] = str(FLIGHT_ENTRIES)
    return chosen


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


def start_receiver(
    store: Path,
    folder: Path,
    pause: Pause = time.sleep,
    forward: Sequence[str] = (),
    *,
    finding_hz: int = 0,
    status: Sequence[str] = (),
) -> Helper:
    """Start the receiver on two free loopback ports, and pin those for a restart."""
    command = ["receive", "--store", str(store), "--flush-interval", FLUSH_INTERVAL, "--diagnose"]
    if finding_hz:
        command += ["--profile-on-finding", str(finding_hz)]
    command += status
    for url in forward:
        command += ["--forward", url]
    address = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    helper = start_helper("receiver", [*command, *address], folder / "receiver.json", pause)
    pinned = ["--grpc", helper.ready["grpc"], "--http", helper.ready["http"]]
    helper.command = [*command, *pinned, "--ready-file", str(helper.ready_file)]
    return helper


def start_agent(
    plan: RunPlan, endpoint: str, folder: Path, pause: Pause = time.sleep
) -> Helper | None:
    """Start the host agent; without it the job is watched from inside only."""
    command = ["agent", "--endpoint", endpoint, "--job", plan.job, "--level", str(plan.level)]
    command += ["--budget-ratio", str(plan.budget_ratio)]
    if plan.profile_hz:
        command += ["--profile-hz", str(plan.profile_hz)]
    for sensor in plan.without:
        command += ["--without", sensor]
    try:
        return start_helper("agent", command, folder / "agent.json", pause)
    except RootwalkError as error:
        logger.warning("%s; going on without host sensors", error)
        return None


def run(arguments: argparse.Namespace) -> int:
    """Run the command under observation; return its exit code."""
    plan = plan_run(arguments)
    with SignalQueue() as signals:
        if plan.store is not None:
            _refuse_second_run(plan.store, plan.job)
        with tempfile.TemporaryDirectory(prefix="rootwalk-") as folder:
            code, is_complete = _watch(plan, Path(folder), signals)
    if plan.store is not None:
        if is_complete:
            with contextlib.suppress(OSError):  # neither output can be written: nowhere to say it
                tell_verdict(plan.store, plan.job, plan.json_path)
        else:
            print(f"hint: rootwalk diagnose {plan.store} tells what was seen", file=sys.stderr)
        with contextlib.suppress(OSError):
            tell_unsent(plan.store)
    if plan.endpoint is not None:
        tell_where_verdict_is(plan.endpoint, plan.job)
    let_go_of_full_streams()
    return code


def _watch(plan: RunPlan, folder: Path, signals: SignalQueue) -> tuple[int, bool]:
    """Run the command between its helpers; return its exit code and whether all that was seen is stored."""
    helpers: list[Helper] = []
    try:
        endpoint = _start_helpers(plan, folder, signals, helpers)
        for helper in helpers:
            helper.give_way()
        status = folder / STATUS_FILE if plan.has_status_row else None
        job = _start_job(plan, endpoint, signals)
        try:
            with status_row(status) as tick:
                code = job.wait(helpers, tick)
            send_run_end(endpoint, plan.job, job, job.pause)
            while helpers:
                is_agent = helpers[-1].name == "agent"
                helpers[-1].stop(AGENT_STOP_S if is_agent else RECEIVER_STOP_S, job.pause)
                helpers.pop()
        except LeaveAtOnce:
            code = job.exit_code
            job.kill()
            return code, False
    except Interrupted as interruption:
        logger.warning("%s before the command was started", interruption)
        for helper in reversed(helpers):
            helper.stop(NOTHING_STOP_S)
        return 128 + interruption.number, False
    finally:
        for helper in helpers:
            helper.end()
        _remove_rings(plan.job)
    return code, True


def _start_helpers(plan: RunPlan, folder: Path, signals: SignalQueue, helpers: list[Helper]) -> str:
    """Start what is wanted, add it to the list, and return the endpoint for telemetry."""
    endpoint = plan.endpoint
    if endpoint is not None:
        tell_when_away(endpoint)
    if endpoint is None and plan.store is not None:
        status = ["--status-file", str(folder / STATUS_FILE), "--status-job", plan.job]
        receiver = start_receiver(
            plan.store,
            folder,
            signals.pause,
            plan.forward,
            finding_hz=plan.finding_hz,
            status=status if plan.has_status_row else (),
        )
        helpers.append(receiver)
        endpoint = f"http://{helpers[0].ready['http']}"
    agent = start_agent(plan, endpoint or "", folder, signals.pause)
    if agent is not None:
        helpers.append(agent)
    return endpoint or ""


def _start_job(plan: RunPlan, endpoint: str, signals: SignalQueue) -> JobProcess:
    from rootwalk.graph.commands.job_rings import find_ranks

    environment = job_environment(plan, endpoint, os.environ)
    return JobProcess(plan.command, environment, signals, partial(find_ranks, plan.job))


def _remove_rings(job: str) -> None:
    from rootwalk.graph.commands.job_rings import remove_rings

    unread = remove_rings(job)
    if unread:
        logger.warning("the last records of %d ranks could not be sent and are lost", unread)
