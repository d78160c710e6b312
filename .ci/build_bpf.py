"""Compile the BPF programs: ebpf/programs/*.bpf.c to *.bpf.o, with the first compiler that is there.

Plain script, standard library only, run before the package is installed: `python3 .ci/build_bpf.py [--force]`.
Compilers in order: $BPF_CLANG, clang, clang-19 to clang-14, then `python -m ziglang cc` (of this interpreter or of
.venv). Builds only what is older than a source. Exits 1 when something was to be built and nothing could build it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "ebpf" / "programs"
CLANGS = ("clang", *(f"clang-{version}" for version in range(19, 13, -1)))
FLAGS = ["-g", "-O2", "-Wall", "-Werror", "-mcpu=v3"]
# Zig puts its own library's directory first and warns of flags that it does not pass on.
ZIG_FLAGS = ["-g", "-O2", "-Wall", "-fno-stack-protector", "-fno-sanitize=undefined", "-mcpu=v3"]


def find_compiler() -> list[str] | None:
    """Return the command that compiles for BPF, without files; None when there is none."""
    for name in filter(None, (os.environ.get("BPF_CLANG"), *CLANGS)):
        path = shutil.which(name)
        if (
            path
            and subprocess.run([path, "-print-targets"], capture_output=True).stdout.find(b"bpf")
            >= 0
        ):
            return [path, "-target", "bpf", *FLAGS]
    for python in (ROOT / ".venv" / "bin" / "python", Path(sys.executable)):
        if (
            python.exists()
            and not subprocess.run([python, "-c", "import ziglang"], capture_output=True).returncode
        ):
            return [str(python), "-m", "ziglang", "cc", "-target", "bpfel-freestanding", *ZIG_FLAGS]
    return None


def is_stale(target: Path) -> bool:
    """Return whether the object is missing or older than a source or this script; sources include each other."""
    if not target.exists():
        return True
    inputs = [Path(__file__), *PROGRAMS.glob("*.h"), *PROGRAMS.glob("*.c")]
    return max(path.stat().st_mtime_ns for path in inputs) > target.stat().st_mtime_ns


def build(compiler: list[str], source: Path, target: Path) -> None:
    """Compile one program; a failed build leaves no object behind."""
    draft = target.with_suffix(".draft")
    subprocess.run([*compiler, "-c", source.name, "-o", draft.name], cwd=PROGRAMS, check=True)
    strip = shutil.which("llvm-strip") or next(
        filter(None, map(shutil.which, (f"llvm-strip-{v}" for v in range(19, 13, -1)))), None
    )
    if strip:
        subprocess.run(
            [strip, "-g", draft.name], cwd=PROGRAMS, check=True
        )  # keeps BTF, drops DWARF
    draft.replace(target)


def main() -> int:
    """Build what is stale and say with what."""
    sources = sorted(PROGRAMS.glob("*.bpf.c"))
    targets = {source: source.with_suffix(".o") for source in sources}
    stale = [s for s in sources if "--force" in sys.argv or is_stale(targets[s])]
    if not stale:
        sys.stdout.write(f"bpf: {len(sources)} object(s) up to date\n")
        return 0
    compiler = find_compiler()
    if compiler is None:
        sys.stderr.write(
            "cannot compile BPF programs: saw neither clang with a BPF target nor ziglang; needs one of them\n"
            "hint: apt-get install clang, or pip install ziglang==0.15.1\n"
        )
        return 1
    for source in stale:
        try:
            build(compiler, source, targets[source])
        except (subprocess.CalledProcessError, OSError) as error:
            sys.stderr.write(f'cannot compile "{source.name}": saw {error}\n')
            return 1
        size = targets[source].stat().st_size
        sys.stdout.write(f"bpf: {targets[source].name} {size} bytes, by {' '.join(compiler[:4])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
