"""Copy the libraries of the live page out of their npm packages: make page-libraries.

Versions are those of graph/serve/libraries/package.json; npm refuses a package that has not the integrity that the
lock beside it names. What was copied is written down in SHA256SUMS, against which a test holds the files.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ROOT / "graph" / "serve" / "libraries"
SUMS = LIBRARIES / "SHA256SUMS"
# Files by package, as the page asks for them; each with its licence. graphlib is inside dagre's file.
FILES = {
    "uplot": ("dist/uPlot.iife.min.js", "dist/uPlot.min.css", "LICENSE"),
    "cytoscape": ("dist/cytoscape.min.js", "LICENSE"),
    "@dagrejs/dagre": ("dist/dagre.min.js", "LICENSE"),
    "@dagrejs/graphlib": ("LICENSE",),
}


def copy_files(packages: Path) -> list[Path]:
    """Copy what is wanted out of a folder of installed packages; return where it lies now."""
    copied = []
    for package, names in FILES.items():
        folder = LIBRARIES / package.rpartition("/")[2]
        folder.mkdir(exist_ok=True)
        for name in names:
            target = folder / Path(name).name
            target.write_bytes((packages / package / name).read_bytes())
            copied.append(target)
    return copied


def main() -> int:
    """Install the packages elsewhere, and copy."""
    if shutil.which("npm") is None:
        sys.stderr.write("cannot fetch the page's libraries: no npm; needs Node.js\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(LIBRARIES / name, folder)
        subprocess.run(
            ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True
        )
        copied = copy_files(Path(folder) / "node_modules")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(LIBRARIES)}\n"
        for path in sorted(copied)
    ]
    SUMS.write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
