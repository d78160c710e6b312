"""Refuse trailing whitespace, conflict marks, missing last newlines, large files, and links that lead nowhere.

For pre-commit and `make lint`. Without arguments it checks every file that git tracks or would track.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Recorded inputs of tests are small; anything larger is a mistake or belongs elsewhere.
MAX_FILE_BYTES = 500_000
# Recorded inputs and the page's libraries stay byte for byte as others made them.
AS_MADE = (ROOT / "tests" / "data", ROOT / "graph" / "serve" / "libraries")
CONFLICT_MARKS = ("<" * 7 + " ", ">" * 7 + " ")


def find_problems(path: Path) -> list[str]:
    """Return a sentence for each thing wrong with a file; binary files and what others made are only weighed."""
    content = path.read_bytes()
    if len(content) > MAX_FILE_BYTES:
        return [f"{len(content)} bytes; needs at most {MAX_FILE_BYTES}"]
    if b"\0" in content or not content or any(map(path.is_relative_to, AS_MADE)):
        return []
    problems = []
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), start=1):
        if line != line.rstrip() and path.suffix != ".txt":
            problems.append(f"line {number}: trailing whitespace")
        if line.startswith(CONFLICT_MARKS):
            problems.append(f"line {number}: conflict mark")
    if not content.endswith(b"\n"):
        problems.append("no newline at the end")
    return problems


def list_files() -> list[Path]:
    """Return the files of this copy that git does not ignore, and links that lead nowhere."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_symlink() != path.exists()]


def main() -> int:
    """Check the named files, or all; return 1 when something is wrong."""
    paths = [Path(name).resolve() for name in sys.argv[1:]] or list_files()
    found = 0
    for path in paths:
        if path.is_symlink() and not path.exists():
            found += 1
            sys.stderr.write(f"{path}: a link that leads nowhere\n")
        if path.is_symlink() or not path.is_file():
            continue
        for problem in find_problems(path):
            found += 1
            sys.stderr.write(f"{path}: {problem}\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
