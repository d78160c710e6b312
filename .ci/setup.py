"""Set up a development copy: system packages, virtual environment, kernel programs.

Called by `make setup` on a bare Debian or Ubuntu with python3 (3.11 or newer), make and git. System
packages are installed by name, only when missing, as root or through sudo; without either it goes
on and lists what will be missing. When nothing changed since the last run it returns at once:
`.setup/stamp.json` holds a hash of the inputs.

This file must parse on an old Python, so that such a user reads a sentence and not a syntax error.
"""

import ctypes
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

MIN_PYTHON = (3, 11)

if sys.version_info < MIN_PYTHON:
    sys.exit(
        "cannot set up Rootwalk: {} is Python {}.{}; needs Python 3.11 or newer\n"
        "hint: install one and name it, for example: make setup PYTHON=python3.12".format(
            sys.executable, *sys.version_info[:2]
        )
    )

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STATE = ROOT / ".setup"
STAMP = STATE / "stamp.json"
PIP_LOG = STATE / "pip.log"
APT_LOG = STATE / "apt.log"
PROGRAMS = ROOT / "ebpf" / "programs"
# Anything here that changes means that the environment may be out of date.
INPUTS = ("pyproject.toml", ".ci/setup.py", ".ci/build_bpf.py")
CLANG_NAMES = ("clang", *(f"clang-{version}" for version in range(19, 13, -1)))
# Download 2.5 GB, unpacked 5.4 GB (torch 2.15 with its CUDA libraries), and room for pip to unpack.
TORCH_NEEDS_BYTES = 9_000_000_000


class SetupError(Exception):
    """Set-up cannot go on; the text is for the user."""


def say(text: str) -> None:
    """Write one progress line to stderr."""
    sys.stderr.write(f"setup: {text}\n")
    sys.stderr.flush()


def wants_torch() -> bool:
    """Return whether PyTorch is to be installed (everything but TORCH=0)."""
    return os.environ.get("TORCH", "1") != "0"


def bpf_sources() -> list[Path]:
    """Return the C sources of the kernel programs."""
    return sorted(PROGRAMS.glob("*.bpf.c")) + sorted(PROGRAMS.glob("*.h"))


def fingerprint() -> str:
    """Return a hash of everything that decides what setup installs."""
    digest = hashlib.sha256()
    digest.update(f"{ROOT}|{sys.version}".encode())
    for path in [ROOT / name for name in INPUTS] + bpf_sources():
        if path.exists():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def missing_objects() -> list[Path]:
    """Return the kernel programs without a compiled object."""
    sources = PROGRAMS.glob("*.bpf.c")
    return [source for source in sources if not source.with_suffix(".o").exists()]


def is_done(wanted: str) -> bool:
    """Return whether the last run was complete and nothing has changed since."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(stamp, dict) or stamp.get("fingerprint") != wanted:
        return False
    if not (VENV / "bin" / "rootwalk").exists():
        return False
    if missing_objects() and not stamp.get("missing"):
        return False
    if wants_torch() and not stamp.get("torch"):
        return False
    if stamp.get("missing_packages") and apt_prefix()[0] and not stamp.get("apt"):
        return False
    for sentence in stamp.get("missing", []):
        say(f"missing: {sentence}")
    return True


def run(command: list[str]) -> bool:
    """Run a command with its output on stderr; return whether it exited with 0."""
    done = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
    return done.returncode == 0


def has_module(name: str) -> bool:
    """Return whether this interpreter can import a module of that name."""
    return importlib.util.find_spec(name) is not None


def has_library(name: str) -> bool:
    """Return whether the dynamic linker finds a shared library."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def find_clang() -> "str | None":
    """Return the path of a C compiler for BPF, or None."""
    return next((path for path in map(shutil.which, CLANG_NAMES) if path), None)


def system_packages() -> list[tuple[str, str]]:
    """Return the missing system packages, each with the reason for it."""
    wanted = []
    major, minor = sys.version_info[:2]
    if not (has_module("ensurepip") and has_module("venv")) and not VENV.exists():
        wanted.append((f"python{major}.{minor}-venv", "creates the virtual environment"))
    if not has_library("libbpf.so.1"):
        wanted.append(("libbpf1", "loads the kernel programs"))
    if not has_library("libbcc.so.0"):
        wanted.append(("python3-bpfcc", "the other way to load them, for its tests"))
    if missing_objects() and find_clang() is None:
        wanted.append(("clang", "compiles the kernel programs"))
    return wanted


def apt_prefix() -> "tuple[list[str] | None, str]":
    """Return how to call apt-get, or None and the reason why it cannot be called."""
    if shutil.which("apt-get") is None:
        return None, "no apt-get on this system"
    if os.geteuid() == 0:
        return ["apt-get"], ""
    sudo = shutil.which("sudo")
    if sudo is None:
        return None, f"no sudo and not root (uid {os.geteuid()})"
    if sys.stdin.isatty():
        return [sudo, "apt-get"], ""
    if subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0:
        return [sudo, "-n", "apt-get"], ""
    return None, "sudo asks for a password and there is no terminal"


def apt(prefix: list[str], *arguments: str) -> bool:
    """Run apt-get with its words in `.setup/apt.log`; show their end when it fails."""
    # A new machine may be upgrading itself: wait for its lock. sudo drops the environment, so env comes after it.
    options = ["-q", "-y", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=300"]
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=a"]
    command = [*prefix[:-1], *quiet, prefix[-1], *options, *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    with APT_LOG.open("a", encoding="utf-8") as log:
        log.write(done.stdout + done.stderr)
    if done.returncode != 0:
        sys.stderr.write("".join(f"  {line}\n" for line in done.stderr.splitlines()[-5:]))
    return done.returncode == 0


def install_system_packages() -> list[str]:
    """Install what is missing; return one sentence for each package that still is."""
    wanted = system_packages()
    if not wanted:
        return []
    prefix, obstacle = apt_prefix()
    if prefix is None:
        return [f"{name} ({why}): {obstacle}" for name, why in wanted]
    for name, why in wanted:
        say(f"installing the system package {name}: {why}")
    if not apt(prefix, "update"):
        say("apt-get update failed; trying with the lists that are there")
    missing = []
    for name, why in wanted:
        # One at a time: a release without one of them must not lose the others.
        if not apt(prefix, "install", "--no-install-recommends", name):
            missing.append(f"{name} ({why}): apt-get could not install it")
    return missing


def create_environment() -> list[str]:
    """Create `.venv` unless a working one of this Python version is there."""
    python = VENV / "bin" / "python"
    probe = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
    if python.exists():
        seen = subprocess.run(
            [str(python), "-c", probe], capture_output=True, text=True, check=False
        )
        if seen.stdout.strip() == "{}.{}".format(*sys.version_info[:2]):
            return []
        say("the virtual environment is broken or of another Python version; making a new one")
        shutil.rmtree(VENV)
    say(f"creating .venv with Python {sys.version.split()[0]} ({sys.executable})")
    if has_module("ensurepip") and run([sys.executable, "-m", "venv", str(VENV)]):
        return []
    shutil.rmtree(VENV, ignore_errors=True)
    # Debian splits ensurepip off; an installed pip or virtualenv can stand in for it.
    if (
        has_module("pip")
        and has_module("venv")
        and run([sys.executable, "-m", "venv", "--without-pip", str(VENV)])
        and run([sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "pip"])
    ):
        return []
    shutil.rmtree(VENV, ignore_errors=True)
    if has_module("virtualenv") and run([sys.executable, "-m", "virtualenv", "-q", str(VENV)]):
        return []
    raise SetupError(
        f"cannot create {VENV}: {sys.executable} has no ensurepip, pip or virtualenv; needs one\n"
        "hint: as root, apt-get install python{}.{}-venv".format(*sys.version_info[:2])
    )


def pip(*arguments: str) -> bool:
    """Run the environment's pip; return whether it succeeded. The full log is `.setup/pip.log`."""
    verbosity = [] if sys.stderr.isatty() else ["-q"]
    base = [str(VENV / "bin" / "python"), "-m", "pip", "--log", str(PIP_LOG)]
    return run([*base, "--disable-pip-version-check", *arguments[:1], *verbosity, *arguments[1:]])


def require_pip(what: str, *arguments: str) -> None:
    """Run pip and stop with a sentence when it fails."""
    if not pip(*arguments):
        raise SetupError(
            f"cannot install {what}: pip failed (its words are above)\n"
            f"hint: the full log is {PIP_LOG.relative_to(ROOT)}; check the network and try again"
        )


def install_python_packages() -> list[str]:
    """Install Rootwalk (editable), its tools and PyTorch; return what is missing."""
    PIP_LOG.unlink(missing_ok=True)
    require_pip("pip", "install", "--upgrade", "pip")
    say("installing rootwalk[all] and the development tools (650 MB on disk)")
    require_pip("rootwalk[all]", "install", "-e", ".[all]", "--group", "dev")
    if not wants_torch():
        return ["torch (the demo and the tests of the hooks): left out by TORCH=0"]
    if (
        VENV / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages/torch"
    ).exists():
        pip("install", "--group", "training")
        return []
    say("installing PyTorch for the demo and the tests; with its CUDA libraries 5.4 GB on disk")
    say("this takes minutes; TORCH=0 leaves it out")
    free_bytes = shutil.disk_usage(ROOT).free
    if free_bytes < TORCH_NEEDS_BYTES:
        return [
            f"torch: {free_bytes / 1e9:.1f} GB free on disk; needs {TORCH_NEEDS_BYTES / 1e9:.0f} GB"
        ]
    if not pip("install", "--group", "training"):
        return ["torch (the demo and the tests of the hooks): pip could not install it"]
    return []


def build_kernel_programs() -> list[str]:
    """Compile the BPF objects with clang, else with PyPI's ziglang; return what is missing."""
    script = ROOT / ".ci" / "build_bpf.py"
    if not script.exists() or not bpf_sources():
        return ["kernel programs: no sources in this copy"]
    if find_clang() is None and missing_objects():
        say("no clang: installing PyPI's ziglang (about 90 MB) to compile the kernel programs")
        if not pip("install", "--group", "compiler"):
            return ["kernel programs (who ran instead): neither clang nor ziglang"]
    if run([str(VENV / "bin" / "python"), str(script)]):
        return []
    return ["kernel programs (who ran instead): the compiler refused them; see above"]


def main() -> int:
    """Set everything up; return 0 also when only optional parts are missing."""
    wanted = fingerprint()
    if is_done(wanted):
        return 0
    started_s = time.monotonic()
    STATE.mkdir(exist_ok=True)
    missing: list[str] = []
    timings: dict[str, float] = {}
    try:
        for name, part in (
            ("system packages", install_system_packages),
            ("virtual environment", create_environment),
            ("python packages", install_python_packages),
            ("kernel programs", build_kernel_programs),
        ):
            begun_s = time.monotonic()
            missing += part()
            timings[name] = round(time.monotonic() - begun_s, 1)
    except SetupError as error:
        for sentence in missing:
            say(f"missing: {sentence}")
        sys.stderr.write(f"{error}\n")
        return 1
    if not missing_objects():
        # ziglang has done clang's work.
        missing = [sentence for sentence in missing if not sentence.startswith("clang ")]
    stamp = {
        "fingerprint": wanted,
        "torch": wants_torch(),
        "apt": apt_prefix()[0] is not None,
        "missing_packages": bool(system_packages()),
        "missing": missing,
        "seconds": timings,
    }
    STAMP.write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
    for sentence in missing:
        say(f"missing: {sentence}")
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in timings.items())
    say(
        f"done in {time.monotonic() - started_s:.0f} s ({spent}); the command is .venv/bin/rootwalk"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
