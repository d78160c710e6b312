"""Boot Debian's newest kernel in an emulated machine, and try the kernel programs there.

    python .ci/kernels.py amd64      the files of this machine, this copy and its .venv: the integration tests
    python .ci/kernels.py arm64      Debian's own files for arm64, and this copy
    python .ci/kernels.py amd64 --package linux-image-5.15.0-*.deb linux-modules-5.15.0-*.deb      another kernel

Downloads QEMU and the kernel from this machine's package sources (or Debian's backports, where its QEMU is too old) and
unpacks them below .setup. Installs cpio and kmod where they are missing and apt-get may be called. Exits with 0 when
all is well, 1 when something failed, 77 with a line that begins with `skip:` when it could not be tried here. Results
are left in .setup/kernels/ARCHITECTURE/results.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import setup
from debian import PackageError, Packages
from machine import KINDS, End, Kernel, boot, pack_first_files, prepare_emulator

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".setup" / "kernels"
SKIPPED = 77
LIMIT_S = 600.0  # twice what a machine takes beside another one, nearly
# An emulator that freezes says nothing about the kernel programs, unless it does it again.
MOST_BOOTS = 2
TOOLS = {"cpio": "cpio", "depmod": "kmod"}
# What a machine of another architecture has of its own.
OWN_FILES = ("python3", "libbpf1", "busybox-static")
# What must not be in the way of a sensor for root on a kernel with BTF. NO_HOOK may: a kernel is older than a hook.
FAULTS = frozenset(
    {"LOAD_REFUSED", "NO_OBJECT", "NO_LIBBPF", "NO_PRIVILEGE", "NO_BTF", "NO_BPF", "PID_NAMESPACE"}
)


def say(text: str) -> None:
    """Write one line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def install_tools() -> None:
    """Install what is missing of the tools that make a first file system.

    Raises:
        PackageError: When something is missing still, or where the files of this machine are no use to it.
    """
    if platform.machine() != "x86_64":
        raise PackageError(f"needs a machine with x86-64, saw {platform.machine()}")
    setup.STATE.mkdir(exist_ok=True)
    with (setup.STATE / "tools.lock").open("w") as lock:
        # The machine of another architecture may be in the making beside this one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for program, package in TOOLS.items():
            if not find_tool(program):
                install_tool(program, package)


def install_tool(program: str, package: str) -> None:
    """Install a system package for a program.

    Raises:
        PackageError: When it cannot be had.
    """
    prefix, obstacle = setup.apt_prefix()
    if prefix is None:
        raise PackageError(f"needs {program} (package {package}): {obstacle}")
    say(f"kernels: installing the system package {package}: {program} is missing")
    setup.apt(prefix, "update")
    if not setup.apt(prefix, "install", "--no-install-recommends", package):
        raise PackageError(f"needs {program}: apt-get could not install {package}")


def find_tool(program: str) -> str | None:
    """Return where a program is; system folders are not on every user's PATH."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def find_kernel(packages: Packages, files: Sequence[Path]) -> Kernel:
    """Return a kernel, unpacked: the one in these package files, or Debian's newest.

    Raises:
        PackageError: When it cannot be had.
    """
    if files:
        unpacked = packages.unpack_files("given", files)
        releases = [
            image.name.removeprefix("vmlinuz-") for image in unpacked.glob("boot/vmlinuz-*")
        ]
        if len(releases) != 1:
            raise PackageError(f"needs the packages of one kernel, saw {len(releases)}")
        return Kernel(packages.architecture, releases[0], unpacked)
    release = packages.newest_kernel()
    unpacked = packages.unpack(release, f"linux-image-{release}")
    return Kernel(packages.architecture, release, unpacked)


def run_machine(architecture: str, script: str, files: Sequence[Path]) -> int:
    """Boot a machine that runs a script, and judge what it leaves; return the exit code."""
    install_tools()
    emulator = prepare_emulator(architecture, STATE / f"emulator-{architecture}")
    packages = Packages(architecture, STATE / architecture)
    kernel = find_kernel(packages, files)
    release = kernel.release
    say(f"kernels: Linux {release} for {architecture}, emulated")
    kernel.prepare()
    busybox = packages.unpack("busybox", "busybox-static") / "bin" / "busybox"
    folder = STATE / architecture
    results = folder / "results"
    init = ROOT / "tests" / "kernels" / "init.sh"
    first_files = pack_first_files(kernel, busybox, init, (ROOT, script), folder)
    shares = {"root": Path("/"), "modules": kernel.modules, "results": results}
    if architecture == "arm64":
        shares["root"] = packages.unpack("root", *OWN_FILES, with_dependencies=True)
        shares["repository"] = ROOT
    for _ in range(MOST_BOOTS):
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir()
        end = boot(kernel, first_files, emulator, shares, LIMIT_S, folder / "console.log")
        if end is End.OFF:
            return judge(results, release)
        say(f"kernels: the machine did not end well: {end.value}")
        if end is End.LATE:
            break
    return 1


def judge(results: Path, release: str) -> int:
    """Print what the sensors said, and return 0 when they and the tests are well."""
    check, code = results / "check.json", results / "exit-code"
    if not check.exists() or not code.exists():
        say("kernels: the machine left no results")
        return 1
    sensors = json.loads(check.read_text(encoding="utf-8"))["sensors"]
    wrong = []
    for sensor in sensors:
        reason = sensor["reason"]
        say(f"  {sensor['sensor']:<20}{sensor['status']:<13}{sensor['backend'] or reason}")
        if reason in FAULTS:
            wrong.append(f"{sensor['sensor']}: {reason}: {sensor['detail']}")
    for sentence in wrong:
        say(f"kernels: wrong on Linux {release}: {sentence}")
    junit = results / "junit.xml"
    if junit.exists():
        # Where the check of skipped tests looks.
        shutil.copy(junit, ROOT / ".setup" / f"junit-kernel-{release}.xml")
    said = code.read_text().strip()
    if said != "0":
        say(f"kernels: the tests ended with {said} on Linux {release}")
    return 1 if wrong or said != "0" else 0


def main() -> int:
    """Run the machines that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("architecture", choices=sorted(KINDS))
    parser.add_argument(
        "--package",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="Debian or Ubuntu packages of a kernel and its modules, in place of Debian's newest",
    )
    arguments = parser.parse_args()
    architecture = arguments.architecture
    try:
        script = "own_files.sh" if architecture == "arm64" else "host_files.sh"
        return run_machine(architecture, f"tests/kernels/{script}", arguments.package)
    except PackageError as error:
        say(f"skip: {error}")
        return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
