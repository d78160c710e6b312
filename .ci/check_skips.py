"""Compare the skipped tests of a run with the committed allow-list, and print them all.

    python .ci/check_skips.py .setup/junit-test.xml [...]

`.ci/allowed-skips.txt` has one rule a line: a regular expression for the test's id, two spaces or
more, a regular expression for the reason. Both must match from the start. A skip without a rule
fails; a rule that matches nothing is fine, because which skips occur depends on the machine.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ALLOWED = Path(__file__).resolve().parent / "allowed-skips.txt"


@dataclass(frozen=True, slots=True)
class Skip:
    """One skipped test.

    Args:
        node_id: Dotted module and test name, as pytest writes it to JUnit files.
        reason: The text that the test gave.
    """

    node_id: str
    reason: str


def read_skips(path: Path) -> list[Skip]:
    """Return the skipped tests of one JUnit file; expected failures are not skips."""
    skips = []
    # Our own pytest has just written this file.
    for case in ET.parse(path).iter("testcase"):  # noqa: S314
        for skipped in case.iter("skipped"):
            if skipped.get("type") == "pytest.xfail":
                continue
            node_id = f"{case.get('classname', '')}::{case.get('name', '')}"
            reason = skipped.get("message", "")
            if reason == "collection skipped":
                # A whole module: the text is a tuple of path, line and "Skipped: reason".
                reason = (skipped.text or "").rpartition("Skipped: ")[2].rstrip("')\"")
            skips.append(Skip(node_id, reason))
    return skips


def read_rules(path: Path) -> list[tuple[re.Pattern[str], re.Pattern[str]]]:
    """Return the allow-list as pairs of patterns (test id, reason)."""
    rules = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        node_id, separator, reason = line.partition("  ")
        if not separator:
            raise ValueError(
                f"cannot read the rule {line!r}: needs a test id, two spaces, a reason"
            )
        rules.append((re.compile(node_id.strip()), re.compile(reason.strip())))
    return rules


def main() -> int:
    """Print every skip with its reason; return 1 when one is not on the allow-list."""
    rules = read_rules(ALLOWED)
    unlisted = 0
    for name in sys.argv[1:]:
        skips = read_skips(Path(name))
        sys.stdout.write(f"{Path(name).name}: {len(skips)} skipped\n")
        for skip in skips:
            is_allowed = any(
                node_id.match(skip.node_id) and reason.match(skip.reason)
                for node_id, reason in rules
            )
            unlisted += not is_allowed
            mark = "allowed " if is_allowed else "UNLISTED"
            sys.stdout.write(f"  {mark} {skip.node_id}: {skip.reason}\n")
    if unlisted:
        sys.stdout.write(f"{unlisted} skips are not on .ci/allowed-skips.txt\n")
    return 1 if unlisted else 0


if __name__ == "__main__":
    raise SystemExit(main())
