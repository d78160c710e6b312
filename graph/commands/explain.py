"""`rootwalk explain CODE`: what a reason code means, what it is confused with, and what to do."""

from __future__ import annotations

import argparse
import difflib
import json
from dataclasses import asdict
from typing import Final

from rootwalk.instrumentation.errors import ConfigError

__all__ = ["EXAMPLES", "HELP", "add_arguments", "run"]

HELP: Final = "explain a reason code: meaning, evidence, look-alikes, what to do"
EXAMPLES: Final = """examples:
  rootwalk explain CPU_CONTENTION
  rootwalk explain                      # list all codes
  rootwalk explain NOT_JOINED --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("code", nargs="?", metavar="CODE", help="reason code (default: list all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print what is known of one code, or one line for each.

    Raises:
        ConfigError: If there is no such code.
    """
    from rootwalk.graph.reasons.contract import CONTRACT
    from rootwalk.graph.render.reason import facts_of, render_reason

    if arguments.code is None:
        facts = [facts_of(code) for code in CONTRACT]
        if arguments.json:
            print(json.dumps([asdict(one) for one in facts], indent=1))
        else:
            width = max(map(len, CONTRACT))
            for one in facts:
                print(f"{one.code:<{width}}  {one.means.replace('`', '')}")
        return 0
    code = arguments.code.upper().replace("-", "_")
    if code not in CONTRACT:
        near = difflib.get_close_matches(code, CONTRACT, n=3)
        raise ConfigError(
            f'cannot explain "{arguments.code}": no such reason code; needs one of the contract',
            hint=f"did you mean {' or '.join(near)}?"
            if near
            else "rootwalk explain lists them all",
        )
    one = facts_of(code)
    print(json.dumps(asdict(one), indent=1) if arguments.json else render_reason(one))
    return 0
