"""`rootwalk check`: what can be read on this machine, what cannot, why, and what to do."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rootwalk.ebpf.availability import Sensor

__all__ = ["EXAMPLES", "HELP", "add_arguments", "render_sensors", "run"]

HELP: Final = "show what can be read on this machine, what cannot, and what to do about it"
EXAMPLES: Final = """examples:
  rootwalk check
  sudo rootwalk check
  rootwalk check --json"""

SCHEMA: Final = "rootwalk.check/1"
WIDTH: Final = 80
INDENT: Final = " " * 17


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--json", action="store_true", help=f"print one JSON object ({SCHEMA})")


def run(arguments: argparse.Namespace) -> int:
    """Probe and print; always 0, since a missing sensor is an answer and not a failure."""
    from rootwalk.ebpf.sensors import probe_sensors

    sensors = probe_sensors()
    if arguments.json:
        entries = [sensor.as_json() for sensor in sensors]
        print(json.dumps({"schema": SCHEMA, "sensors": entries}))
    else:
        print(render_sensors(sensors))
    return 0


def render_sensors(sensors: list[Sensor]) -> str:
    """Return a table of at most 80 columns: sensor, status, backend, reason, and a hint where there is one."""
    lines = [f"{'SENSOR':<17}{'STATUS':<13}{'BACKEND':<9}REASON"]
    for sensor in sensors:
        reason = sensor.reason.value if sensor.reason else "-"
        lines.append(
            f"{sensor.sensor:<17}{sensor.status.value:<13}{sensor.backend or '-':<9}{reason}"
        )
        if sensor.reason is not None:
            text = f"{sensor.reason.sentence}; {sensor.reason.hint}"
            lines += textwrap.wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    return "\n".join(lines)
