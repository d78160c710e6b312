"""A test machine: an emulated computer that boots one of Debian's kernels to a script and ends.

It sees folders of this machine by 9p, read-only but for one in which it leaves its results. Emulated in software (TCG):
that works in every container, and takes three to ten times as long as the processor would.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from debian import PackageError, Packages

# What the first file system needs to mount the others.
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
APPLETS = ("sh", "mount", "mkdir", "insmod", "ip", "cp", "uname", "poweroff", "switch_root")
FOLDERS = ("bin", "dev", "modules", "proc", "sys")
MEMORY_MIB = 3072
CPUS = 2
# A console without a word for so long: nothing that a machine is asked to do takes half of it in silence.
SILENT_S = 90.0
# Before 8.1 QEMU translated code without holding the page that it read: a CPU may go on running a breakpoint that the
# guest has replaced by its new instruction long ago (seen: one CPU in `exc_int3` at a jump label
# whose memory is a no-op, for ever).
OLDEST_QEMU = (8, 1)
FIRMWARE = ("share/qemu", "share/seabios", "lib/ipxe/qemu")
# What Linux says of a CPU that has run nothing else for tens of seconds.
HUNG = b"watchdog: BUG: soft lockup"


@dataclass(frozen=True, slots=True)
class Kind:
    """An architecture.

    Attributes:
        emulator: QEMU's program.
        package: Debian's package of it.
        options: What it needs to know of the machine.
        words: On the kernel's command line: its name of the first serial port, and what this machine needs.
    """

    emulator: str
    package: str
    options: tuple[str, ...]
    words: str


KINDS = {
    # With two processors the kernel would not trust the counter of cycles: every look at the clock would be one at an
    # emulated timer, on which all processors wait for each other.
    "amd64": Kind(
        "qemu-system-x86_64",
        "qemu-system-x86",
        ("-cpu", "max"),
        "console=ttyS0 tsc=reliable",
    ),
    # A plain core: `max` spends most of its time on emulating pointer authentication.
    "arm64": Kind(
        "qemu-system-aarch64",
        "qemu-system-arm",
        ("-machine", "virt", "-cpu", "cortex-a72"),
        "console=ttyAMA0",
    ),
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that was unpacked.

    Attributes:
        architecture: Debian's name.
        release: As `uname -r` says it.
        folder: Where the package is unpacked.
    """

    architecture: str
    release: str
    folder: Path

    @property
    def image(self) -> Path:
        """Return what QEMU boots."""
        return self.folder / "boot" / f"vmlinuz-{self.release}"

    @property
    def modules(self) -> Path:
        """Return the folder of its modules."""
        return self.folder / "lib" / "modules" / self.release

    def prepare(self) -> None:
        """Write the table of what each module needs, as the package does when it is installed."""
        if not (self.modules / "modules.dep").exists():
            subprocess.run(["depmod", "--basedir", self.folder, self.release], check=True)

    def list_needed(self, name: str) -> list[Path]:
        """Return the files of a module and of those that it needs, in order; nothing for one that is built in."""
        command = ["modprobe", "--dirname", str(self.folder), "--set-version", self.release]
        done = subprocess.run(
            [*command, "--show-depends", name], capture_output=True, text=True, check=True
        )
        lines = (line.split() for line in done.stdout.splitlines())
        return [Path(words[1]) for words in lines if words[0] == "insmod"]


def prepare_emulator(architecture: str, folder: Path) -> tuple[str, ...]:
    """Return what calls a QEMU with all that it needs, from this machine's package sources; installs nothing.

    Raises:
        PackageError: When there is none that is new enough.
    """
    kind = KINDS[architecture]
    packages = Packages("amd64", folder)
    if _qemu_version(packages, kind) < OLDEST_QEMU:
        packages.add_backports()
        if (saw := _qemu_version(packages, kind)) < OLDEST_QEMU:
            wanted = ".".join(str(part) for part in OLDEST_QEMU)
            seen = ".".join(str(part) for part in saw)
            raise PackageError(f"needs QEMU {wanted} or newer, saw {seen} in the package sources")
    root = packages.unpack("root", kind.package, with_dependencies=True)
    libraries = ":".join(
        str(root / name) for name in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
    )
    # Its own C library too: it may be newer than that of this machine.
    loader = (str(root / "lib64" / "ld-linux-x86-64.so.2"), "--library-path", libraries)
    firmware = [word for name in FIRMWARE for word in ("-L", str(root / "usr" / name))]
    return (*loader, str(root / "usr" / "bin" / kind.emulator), *firmware)


def _qemu_version(packages: Packages, kind: Kind) -> tuple[int, ...]:
    found = re.match(r"(?:\d+:)?(\d+)\.(\d+)", packages.version(kind.package))
    return tuple(int(part) for part in found.groups()) if found else (0, 0)


def pack_first_files(
    kernel: Kernel, busybox: Path, init: Path, job: tuple[Path, str], folder: Path
) -> Path:
    """Write the file system that the kernel starts with, and return its file.

    Args:
        kernel: Whose modules it needs.
        busybox: A static one of the kernel's architecture.
        init: The script that the kernel runs.
        job: The repository, and the script in it that `init` runs at its end.
        folder: Where to work.
    """
    tree = folder / "first-files"
    shutil.rmtree(tree, ignore_errors=True)
    for name in FOLDERS:
        (tree / name).mkdir(parents=True)
    shutil.copy(busybox, tree / "bin")
    for applet in APPLETS:
        (tree / "bin" / applet).symlink_to("busybox")
    shutil.copy(init, tree / "init")
    (tree / "init").chmod(0o755)
    (tree / "job").write_text("".join(f"{part}\n" for part in job), encoding="utf-8")
    order: list[str] = []
    for path in (path for name in MODULES for path in kernel.list_needed(name)):
        if path.stem not in order:
            order.append(path.stem)
            content = path.read_bytes()
            is_packed = path.suffix == ".xz"
            (tree / "modules" / path.stem).write_bytes(
                lzma.decompress(content) if is_packed else content
            )
    (tree / "modules" / "order").write_text("".join(f"{name}\n" for name in order))
    names = "".join(f"{path.relative_to(tree)}\n" for path in sorted(tree.rglob("*")))
    packed = subprocess.run(
        ["cpio", "--create", "--format=newc", "--quiet"],
        cwd=tree,
        input=names.encode(),
        capture_output=True,
        check=True,
    )
    image = folder / "first-files.gz"
    image.write_bytes(gzip.compress(packed.stdout, 1))
    return image


class End(Enum):
    """How a machine ended."""

    OFF = "it switched itself off"
    LATE = "it took too long"
    FROZEN = "its console fell silent, or a CPU hung"


def boot(
    kernel: Kernel,
    first_files: Path,
    emulator: Sequence[str],
    shares: Mapping[str, Path],
    limit_s: float,
    log: Path,
) -> End:
    """Run a machine until it switches itself off, its console on stdout; return how it ended.

    Args:
        kernel: What to boot.
        first_files: What `pack_first_files` wrote.
        emulator: What calls QEMU: see `prepare_emulator`.
        shares: 9p tag to folder; `results` can be written.
        limit_s: How long it may take.
        log: Gets the console too.
    """
    kind = KINDS[kernel.architecture]
    command = [*emulator, "-accel", "tcg,thread=multi", *kind.options]
    command += ["-smp", str(CPUS), "-m", str(MEMORY_MIB), "-no-reboot", "-nic", "none"]
    command += ["-display", "none", "-monitor", "none", "-serial", "stdio"]
    command += ["-kernel", str(kernel.image), "-initrd", str(first_files)]
    command += ["-append", f"{kind.words} quiet panic=-1 nokaslr mitigations=off"]
    for tag, folder in shares.items():
        readonly = "" if tag == "results" else ",readonly=on"
        share = f"local,id={tag},path={folder},security_model=none,multidevs=remap{readonly}"
        command += ["-fsdev", share, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    begun_s = time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as machine:
        assert machine.stdout is not None  # noqa: S101
        end, said = End.OFF, b""
        with log.open("wb") as console, selectors.DefaultSelector() as selector:
            selector.register(machine.stdout, selectors.EVENT_READ)
            while end is End.OFF:
                if not selector.select(SILENT_S):
                    end = End.FROZEN
                elif not (piece := os.read(machine.stdout.fileno(), 4096)):
                    break
                elif HUNG in (said := said[-len(HUNG) :] + piece):
                    end = End.FROZEN
                elif time.monotonic() - begun_s > limit_s:
                    end = End.LATE
                else:
                    console.write(piece)
                    sys.stdout.write(piece.decode("utf-8", "replace").replace("\r", ""))
                    sys.stdout.flush()
        if end is not End.OFF:
            machine.kill()
    sys.stdout.write(f"machine: {end.value}, after {time.monotonic() - begun_s:.0f} s\n")
    return end
