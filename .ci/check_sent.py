"""Compare the registry with what real producers have sent in the tests: what no test sends is a promise without proof.

    python .ci/check_sent.py .setup/sent/test [.setup/sent/long ...]

`.ci/never-sent.txt` has one name a line, two spaces or more, and why no test here sends it. A name of the registry that
was not sent and has no line fails; so does a line for a name that the registry does not have. One that was sent after
all is fine: what a machine can send depends on its kernel.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rootwalk.instrumentation import semconv

ALLOWED = Path(__file__).resolve().parent / "never-sent.txt"


def list_registry() -> set[str]:
    """Return every name of the registry after its kind."""
    kinds = (
        ("span", semconv.SPANS),
        ("event", semconv.EVENTS),
        ("metric", semconv.METRICS),
        ("attribute", semconv.ATTRIBUTES),
    )
    return {f"{kind} {name}" for kind, names in kinds for name in names}


def read_sent(folders: list[Path]) -> set[str]:
    """Return the names that the tests of these folders have seen sent."""
    files = [path for folder in folders for path in folder.glob("*.json")]
    return {name for path in files for name in json.loads(path.read_text(encoding="utf-8"))}


def read_allowed(text: str) -> dict[str, str]:
    """Return the reasons by name.

    Raises:
        ValueError: If a line has no reason.
    """
    allowed = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, separator, reason = line.partition("  ")
        if not separator or not reason.strip():
            raise ValueError(f"cannot read {line!r}: needs a name, two spaces, a reason")
        allowed[name] = reason.strip()
    return allowed


def find_faults(registry: set[str], sent: set[str], allowed: set[str]) -> list[str]:
    """Return what is wrong, a line each."""
    unseen = sorted(registry - sent - allowed)
    unknown = sorted(allowed - registry)
    return [
        *(f"{name}: in the registry, and no test has seen it sent" for name in unseen),
        *(f"{name}: has a reason never to be sent, and is not in the registry" for name in unknown),
    ]


def main() -> int:
    """Print how much of the registry was sent and what is missing; return 1 when something is."""
    folders = [Path(text) for text in sys.argv[1:]]
    registry, sent = list_registry(), read_sent(folders)
    allowed = read_allowed(ALLOWED.read_text(encoding="utf-8"))
    faults = find_faults(registry, sent, set(allowed))
    for name in sorted((registry - sent) & set(allowed)):
        sys.stdout.write(f"  allowed  {name}: {allowed[name]}\n")
    for line in faults:
        sys.stdout.write(f"  {line}\n")
    sys.stdout.write(
        f"{len(registry & sent)} of {len(registry)} names of the registry were sent in tests\n"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
