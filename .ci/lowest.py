"""Print the lowest allowed versions as pip requirements: every ``>=`` becomes ``==``.

    python .ci/lowest.py base > training-image.txt
    python .ci/lowest.py all > host.txt

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


def build_pins(install: str) -> list[str]:
    """Return the pins of an install.

    Args:
        install: base for the training image, all for the host side. There the OpenTelemetry packages of the base are
            as new as the exporter of the host side asks for, and pip finds them.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"]
    if install == "all":
        wanted = [name for name in wanted if not name.startswith("opentelemetry-")]
        wanted += project["optional-dependencies"]["all"]
    return sorted({pin(requirement) for requirement in wanted})


def main() -> int:
    """Write the pins to stdout."""
    if sys.argv[1:] not in (["base"], ["all"]):
        sys.stderr.write("cannot list versions: needs base or all\n")
        return 2
    sys.stdout.write("\n".join(build_pins(sys.argv[1])) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
