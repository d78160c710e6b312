"""Print the lowest allowed versions as pip requirements: every ``>=`` becomes ``==``.

    python .ci/lowest.py > lowest.txt

The development tools stay at their newest; only what users install beside us is pinned down.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pin(requirement: str) -> str:
    """Return a requirement fixed at its lower bound.

    Raises:
        ValueError: If it has no lower bound: then nobody can say which versions work.
    """
    name, bound, version = requirement.partition(">=")
    if not bound or "," in version:
        raise ValueError(f"cannot pin {requirement!r}: no plain lower bound; needs name>=version")
    return f"{name.strip()}=={version.strip()}"


def build_pins() -> list[str]:
    """Return the pins of the base install and of ``[all]``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["all"]]
    return sorted({pin(requirement) for requirement in wanted})


def main() -> int:
    """Write the pins to stdout."""
    sys.stdout.write("\n".join(build_pins()) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
