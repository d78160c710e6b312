"""`rootwalk level`: ask the agents that run on this host for another level of detail, without a restart."""

from __future__ import annotations

import argparse
import re
from typing import Any, Final

from rootwalk.graph.commands.agent import check_profile_rate
from rootwalk.graph.commands.units import parse_seconds
from rootwalk.instrumentation.errors import ConfigError, RootwalkError

__all__ = ["EXAMPLES", "HELP", "add_arguments", "parse_ranks", "run"]

HELP: Final = "ask the agents on this host for more or less detail, without a restart"
EXAMPLES: Final = """examples:
  rootwalk level 0
  rootwalk level 2 --ranks 3,8-15 --for 60s
  rootwalk level 2 --ranks 3 --for 60s --profile-hz 49
  rootwalk level 2 --ranks 3 --for 60s --trace-steps 5
  sudo rootwalk level 1

Level 0 tells steps, phases and sums; 1 collectives and every stall too; 2 every
wait of a thread. --profile-hz takes stacks too; --trace-steps lets the ranks run
PyTorch's profiler for so many steps, which slows them, and write a file each for
`rootwalk import kineto`. --for takes it back by itself. Root asks every user's agents."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("level", type=int, choices=(0, 1, 2), metavar="LEVEL", help="0, 1 or 2")
    parser.add_argument(
        "--ranks", metavar="LIST", help="these ranks only, such as 0,3,8-15 (default: all)"
    )
    parser.add_argument(
        "--for",
        dest="duration",
        metavar="TIME",
        help="take it back after this time, such as 60s or 10m (default: for good)",
    )

    parser.add_argument(
        "--profile-hz",
        type=int,
        metavar="HZ",
        help="take stacks so often a second and CPU meanwhile, 0 to 99 (default: as the agent was started)",
    )
    parser.add_argument(
        "--trace-steps",
        type=int,
        metavar="N",
        help="with level 2 and --ranks: PyTorch's profiler in these ranks for their next N steps, once",
    )


def run(arguments: argparse.Namespace) -> int:
    """Ask, and print who has taken it; returns 1 when nobody has."""
    from rootwalk.ebpf.control import ask_agents

    ranks = None if arguments.ranks is None else parse_ranks(arguments.ranks)
    for_s = None if arguments.duration is None else parse_seconds(arguments.duration, "--for")
    if for_s == 0.0:
        raise ConfigError(
            f'cannot use "{arguments.duration}" for --for: needs more than no time at all',
            hint="use a time such as 60s",
        )
    hz = arguments.profile_hz
    if hz is not None:
        check_profile_rate(hz)
    request = {"level": arguments.level, "ranks": ranks, "for_s": for_s, "profile_hz": hz}
    if arguments.trace_steps is not None:
        request["trace_steps"] = _check_trace_steps(arguments.trace_steps, arguments.level, ranks)
    answers = [answer for answer in ask_agents(request) if "error" in answer or _is_whole(answer)]
    refused = [str(answer["error"]) for answer in answers if "error" in answer]
    taken = [answer for answer in answers if "error" not in answer]
    if ranks is not None:
        taken = [answer for answer in taken if _matching(answer, ranks)]
    if not taken:
        hint = _BUSY_HINT if refused else _HINT
        raise RootwalkError(_why_nobody(refused, has_answers=bool(answers)), hint=hint)
    for answer in taken:
        lines = _lines(answer, arguments.level, ranks, for_s)
        print("\n".join(lines + _trace_lines(answer, arguments.trace_steps)))
    return 0


_HINT: Final = "start `rootwalk agent` or `rootwalk run`; as root it asks every user's agents"
_BUSY_HINT: Final = "`rootwalk check` shows the agents; one that gets no CPU answers later"


def _why_nobody(refused: list[str], *, has_answers: bool) -> str:
    if refused:
        return f"cannot set the level: {refused[0]}"
    saw = "none of these ranks" if has_answers else "no agent that this user may ask"
    return f"cannot set the level: saw {saw} on this host; needs one"


def _is_whole(answer: dict[str, Any]) -> bool:
    """Return whether an answer has what is printed: a socket of another user may answer anything."""
    ranks = answer.get("ranks")
    return (
        isinstance(ranks, list)
        and {"pid", "host", "limits"} <= answer.keys()
        and all(
            isinstance(one, dict)
            and "job" in one
            and all(type(one.get(name)) is int for name in ("rank", "level", "asked"))
            for one in ranks
        )
    )


def _matching(answer: dict[str, Any], ranks: list[int] | None) -> list[dict[str, Any]]:
    return [one for one in answer["ranks"] if ranks is None or one["rank"] in ranks]


def _lines(
    answer: dict[str, Any], level: int, ranks: list[int] | None, for_s: float | None
) -> list[str]:
    """Return what one agent has answered, for people."""
    until = "" if for_s is None else f", for {for_s:g} s"
    lines = [f"agent {answer['pid']} on {answer['host']}: level {level} from now on{until}"]
    matching = _matching(answer, ranks)
    lines += [
        f"  rank {one['rank']} of job {one['job']}: level {one['level']}{_stacks(one)}"
        for one in matching
    ]
    if not matching:
        lines.append("  no rank yet")
    if answer["limits"] and any(one["level"] < one["asked"] for one in matching):
        lines.append(f"  less than asked, to keep its budget: {answer['limits']}")
    return lines


def _check_trace_steps(steps: int, level: int, ranks: list[int] | None) -> int:
    """Return the steps to trace.

    Raises:
        ConfigError: If they cannot be traced.
    """
    from rootwalk.instrumentation.ring_layout import MAX_TRACE_STEPS

    if level != 2 or ranks is None:
        raise ConfigError(
            "cannot trace steps: needs level 2 and the ranks by number",
            hint="rootwalk level 2 --ranks 3 --for 60s --trace-steps 5",
        )
    if not 0 < steps <= MAX_TRACE_STEPS:
        raise ConfigError(f"cannot trace {steps} steps: needs 1 to {MAX_TRACE_STEPS}")
    return steps


def _trace_lines(answer: dict[str, Any], steps: int | None) -> list[str]:
    """Return where the traces will be, for people."""
    traced = answer.get("traced")
    if steps is None:
        return []
    if not traced:
        return ["  no rank can be asked for a trace"]
    listed = ", ".join(str(rank) for rank in traced)
    return [
        f"  ranks that trace their next {steps} steps: {listed}",
        "  their files: $ROOTWALK_TRACE_DIRECTORY of the job, else /tmp/rootwalk-traces-UID",
        "  read them: rootwalk import kineto FILE... --job NAME-trace --store trace.duckdb",
    ]


def _stacks(rank: dict[str, Any]) -> str:
    hz = rank.get("profile_hz")
    return f", stacks {hz} times a second and CPU" if hz else ""


def parse_ranks(text: str) -> list[int]:
    """Return the ranks of a list such as 0,3,8-15.

    Raises:
        ConfigError: If it is none.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", part)
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        if last < first or last - first > 100_000:
            raise ConfigError(
                f'cannot use "{text}" for --ranks: saw "{part}"; needs numbers and ranges',
                hint="use a list such as 0,3,8-15",
            )
        ranks.update(range(first, last + 1))
    return sorted(ranks)
