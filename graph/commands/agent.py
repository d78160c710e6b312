"""`rootwalk agent`: the host's readers, in the foreground until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Final
from urllib.parse import urlsplit

from rootwalk.graph.own_process import name_process
from rootwalk.instrumentation.errors import ConfigError

__all__ = [
    "DEFAULT_BUDGET_RATIO",
    "EXAMPLES",
    "HELP",
    "add_arguments",
    "add_budget_argument",
    "add_profile_argument",
    "check_budget",
    "check_profile_rate",
    "run",
]

HELP: Final = "watch the ranks on this host and send what the kernel tells about them"
EXAMPLES: Final = """examples:
  rootwalk agent --endpoint http://127.0.0.1:4318
  rootwalk agent --endpoint http://10.0.0.5:4318 --job llama-7b
  rootwalk agent --endpoint http://127.0.0.1:4318 --without bpf --level 0"""

logger = logging.getLogger(__name__)

DEFAULT_ENDPOINT: Final = "http://127.0.0.1:4318"
# The contract's; `rootwalk.ebpf` is loaded later.
DEFAULT_BUDGET_RATIO: Final = 0.003
# As `rootwalk.ebpf.stacks.program` has it.
MAX_PROFILE_HZ: Final = 99


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--endpoint",
        default=DEFAULT_ENDPOINT,
        metavar="URL",
        help=f"OTLP/HTTP receiver (default: {DEFAULT_ENDPOINT})",
    )
    parser.add_argument("--job", metavar="ID", help="follow this job only (default: all jobs)")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="SENSOR",
        help="leave a sensor out: a name from `rootwalk check`, or bpf; may be repeated",
    )
    parser.add_argument(
        "--level",
        type=int,
        choices=(0, 1, 2),
        default=1,
        help="detail: 0 steps and sums, 1 every stall too, 2 every wait (default: 1)",
    )
    add_budget_argument(parser)
    add_profile_argument(parser)
    parser.add_argument(
        "--ready-file",
        type=Path,
        metavar="PATH",
        help="write process id and sensors there as JSON once watching",
    )
    parser.add_argument(
        "--exit-with-parent",
        action="store_true",
        help="stop cleanly when the process that started this one ends",
    )


def add_budget_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option of what watching may cost."""
    parser.add_argument(
        "--budget-ratio",
        type=float,
        default=DEFAULT_BUDGET_RATIO,
        metavar="RATIO",
        help="what watching may cost over the time of the steps, a step being 1 s at least; "
        f"with more the agent lowers its detail (default: {DEFAULT_BUDGET_RATIO})",
    )


def check_budget(ratio: float) -> None:
    """Check the value of that option.

    Raises:
        ConfigError: If it is no budget.
    """
    if not ratio > 0.0:
        raise ConfigError(
            f"cannot keep a budget of {ratio:g}: needs a ratio above 0",
            hint=f"use --budget-ratio {DEFAULT_BUDGET_RATIO}",
        )


def add_profile_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option of how often stacks are taken."""
    parser.add_argument(
        "--profile-hz",
        type=int,
        default=0,
        metavar="HZ",
        help="take the stacks of ranks' threads so often a second and CPU, Python functions included, "
        f"1 to {MAX_PROFILE_HZ} (default: 0, never)",
    )


def add_finding_profile_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option of how often stacks are taken once a finding has named a rank."""
    parser.add_argument(
        "--profile-on-finding",
        type=int,
        default=0,
        metavar="HZ",
        help="when a finding names a rank of this host, take its stacks and a peer's for 30 s, so often a second "
        f"and CPU, 1 to {MAX_PROFILE_HZ} (default: 0, never)",
    )


def check_profile_rate(hz: int) -> None:
    """Check the value of that option.

    Raises:
        ConfigError: If it is no rate.
    """
    if not 0 <= hz <= MAX_PROFILE_HZ:
        raise ConfigError(
            f"cannot take stacks {hz} times a second: needs 0 to {MAX_PROFILE_HZ}",
            hint="19 tells what takes most of the time, 99 what takes a hundredth of a second",
        )


def run(arguments: argparse.Namespace) -> int:
    """Watch until told to stop; returns 0 after the last records were sent or given up."""
    if urlsplit(arguments.endpoint).scheme not in ("http", "https"):
        raise ConfigError(
            f'cannot send to "{arguments.endpoint}": saw no http:// or https://; needs an OTLP/HTTP URL',
            hint=f"use --endpoint {DEFAULT_ENDPOINT}",
        )
    check_budget(arguments.budget_ratio)
    check_profile_rate(arguments.profile_hz)
    from rootwalk.ebpf.agent import Agent, AgentConfig
    from rootwalk.ebpf.garbage import collect_seldom

    # An endpoint that is away is normal, is retried, and shows in the counters; the exporter would log every try.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    parent_pid = os.getppid() if arguments.exit_with_parent else None
    _check_sensor_names(arguments.without)
    name_process("rootwalk-agent")
    agent = Agent(
        AgentConfig(
            endpoint=arguments.endpoint,
            job=arguments.job,
            without=frozenset(arguments.without),
            level=arguments.level,
            budget_ratio=arguments.budget_ratio,
            parent_pid=parent_pid,
            profile_hz=arguments.profile_hz,
        )
    )

    collect_seldom()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        agent.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    whose = "all jobs" if arguments.job is None else f"job {arguments.job}"
    logger.info(
        "watching the ranks of %s on this host, scheduler by %s, sending to %s; stop with Ctrl-C",
        whose,
        agent.scheduler_name,
        arguments.endpoint,
    )
    if arguments.ready_file is not None:
        _write_ready(arguments.ready_file, agent.scheduler_name)
    agent.run()
    return 0


def _check_sensor_names(names: list[str]) -> None:
    from rootwalk.ebpf.sensors import SENSOR_NAMES

    known = [*SENSOR_NAMES, "bpf"]
    for name in names:
        if name not in known:
            raise ConfigError(
                f'cannot leave out "{name}": saw an unknown sensor; needs one of {", ".join(known)}',
                hint="`rootwalk check` lists them",
            )


def _write_ready(path: Path, scheduler: str) -> None:
    draft = path.with_suffix(path.suffix + ".new")
    try:
        draft.write_text(json.dumps({"pid": os.getpid(), "scheduler": scheduler}) + "\n")
        draft.replace(path)
    except OSError as error:
        raise ConfigError(
            f'cannot write ready file "{path}": saw {error.strerror}; needs a writable folder'
        ) from error
