"""Check that a wheel holds an object for every kernel program: python .ci/check_wheel.py WHEEL."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent.parent / "ebpf" / "programs"


def find_missing(names: set[str]) -> list[str]:
    """Return the programs' objects that are not among the files of a wheel."""
    wanted = [source.with_suffix(".o").name for source in sorted(PROGRAMS.glob("*.bpf.c"))]
    return [name for name in wanted if f"rootwalk/ebpf/programs/{name}" not in names]


def main() -> int:
    """Name what is missing; return 1 when something is."""
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        missing = find_missing(set(wheel.namelist()))
    for name in missing:
        sys.stderr.write(f"cannot ship {sys.argv[1]}: saw no {name} in it; needs it compiled\n")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
