"""`rootwalk check`: what can be read on this machine, what cannot, why, and what to do."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rootwalk.ebpf.availability import Sensor

__all__ = ["EXAMPLES", "HELP", "add_arguments", "render_agent", "render_sensors", "run"]

HELP: Final = "show what can be read on this machine, what cannot, and what to do about it"
EXAMPLES: Final = """examples:
  rootwalk check
  sudo rootwalk check
  rootwalk check --json

With running agents (as root: of every user) it also shows what they cost."""

SCHEMA: Final = "rootwalk.check/1"
WIDTH: Final = 80
INDENT: Final = " " * 17


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--json", action="store_true", help=f"print one JSON object ({SCHEMA})")


def run(arguments: argparse.Namespace) -> int:
    """Probe and print; always 0, since a missing sensor is an answer and not a failure."""
    from rootwalk.ebpf.control import ask_agents
    from rootwalk.ebpf.sensors import probe_sensors
    from rootwalk.instrumentation.start_notes import describe_notes

    answers = ask_agents({})
    agents = [answer for answer in answers if "error" not in answer]
    sensors = probe_sensors()
    text, _ = describe_notes()
    if arguments.json:
        entries = [sensor.as_json() for sensor in sensors]
        answer = {"schema": SCHEMA, "sensors": entries, "agents": agents}
        print(json.dumps(answer | ({"not_instrumented": text} if text else {})))
        return 0
    print(render_sensors(sensors))
    if text:
        print(f"\n{text}")
    for agent in agents:
        print(f"\n{render_agent(agent)}")
    for answer in answers:
        if "error" in answer:
            print(f"\n{answer['error']}")
    return 0


def render_sensors(sensors: list[Sensor]) -> str:
    """Return a table of at most 80 columns: sensor, status, backend, reason, and below it what there is to add."""
    lines = [f"{'SENSOR':<17}{'STATUS':<13}{'BACKEND':<9}REASON"]
    for sensor in sensors:
        reason = sensor.reason.value if sensor.reason else "-"
        lines.append(
            f"{sensor.sensor:<17}{sensor.status.value:<13}{sensor.backend or '-':<9}{reason}"
        )
        text = sensor.detail or ""
        if sensor.reason is not None:
            text = f"{sensor.reason.sentence}; {sensor.reason.hint}"
        lines += textwrap.wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    return "\n".join(lines)


def render_agent(agent: dict[str, Any]) -> str:
    """Return what a running agent costs, for people; empty parts are those that nobody has measured yet."""
    cost = agent["cost"]
    lines = [f"agent {agent['pid']} watches {len(agent['ranks'])} ranks"]
    if agent["limits"]:
        lines[0] += f"; with less detail to keep its budget: {agent['limits']}"
    if not cost:
        return lines[0]
    if cost["cost_ratio"] is not None:
        limit = agent["budget_ratio"]
        budget = "none" if limit is None else f"{limit:.2%}"
        lines.append(f"  of the steps' time {cost['cost_ratio']:.2%} (budget {budget})")
    lines.append(f"  agent            {cost['cpu_s']:.1f} s CPU{_memory(cost['resident_bytes'])}")
    for program, seconds in sorted(cost["program_s"].items()):
        if seconds:
            lines.append(f"  {program:<17}{seconds:.3f} s CPU in the kernel")
    lines.append(f"  events           {cost['events']}")
    lines.append(f"  sent             {cost['sent_bytes'] / 1e6:.1f} MB of spans")
    dropped = ", ".join(f"{count} {why}" for why, count in sorted(cost["dropped"].items()) if count)
    lines.append(f"  dropped          {dropped or 'nothing'}")
    return "\n".join(lines)


def _memory(resident_bytes: int | None) -> str:
    return "" if resident_bytes is None else f", {resident_bytes / 1e6:.0f} MB of memory"
