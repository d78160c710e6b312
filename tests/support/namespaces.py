"""Machines made of namespaces: each has a network, a host name and a /dev/shm of its own; the kernel is shared.

Nothing of it has a name on the system outside: the namespaces and the cable between them live as long as the processes
inside, and the process that holds them ends with its pipe, also when the tests are killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

INTERFACE = "eth0"
READY = "ready"
# The host name first: everything that starts later sees it. `cat` ends when nobody holds its standard input.
HOLD = f"""
set -e
hostname "$1"
mount -t tmpfs -o size=64m rootwalk-test /dev/shm
ip link set lo up
echo {READY}
exec cat
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine.

    Attributes:
        name: Host name.
        address: IPv4 address, reachable from the other machines.
        holder: Process id of the process that holds the namespaces.
    """

    name: str
    address: str
    holder: int

    def command(self, *words: str, cwd: Path | None = None) -> list[str]:
        """Return a command line that runs there; it keeps the process id of whoever starts it."""
        enter = ["nsenter", f"--target={self.holder}", "--net", "--uts", "--mount"]
        # Entering a mount namespace changes the working directory to its root.
        return [*enter, "env", f"--chdir={cwd or Path.cwd()}", *words]

    def start(
        self,
        *words: str,
        cwd: Path,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command there, both of its outputs in one file."""
        with log.open("wb") as output:
            return subprocess.Popen(
                self.command(*words, cwd=cwd),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )


def require_namespaces() -> None:
    """Skip the test where this user cannot make namespaces, or the tools are missing."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "hostname") if not shutil.which(tool)]
    if missing:
        pytest.skip(f"namespaces: needs {', '.join(missing)}")
    probe = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip("namespaces: needs root")


@contextlib.contextmanager
def _machine(name: str, address: str) -> Iterator[Machine]:
    holder = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", "sh", "-c", HOLD, "sh", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        line = holder.stdout.readline().strip()
        assert line == READY, f"no machine {name}: saw {line!r}"
        yield Machine(name, address, holder.pid)
    finally:
        holder.kill()
        holder.communicate()


def plug_in(ends: dict[Machine, str], interface: str) -> None:
    """Put a cable between two machines; it is gone with them.

    Args:
        ends: The two, each with its address on this cable.
        interface: Its name on both.
    """
    first, second = (str(machine.holder) for machine in ends)
    cable = ["ip", "link", "add", interface, "netns", first, "type", "veth"]
    subprocess.run([*cable, "peer", "name", interface, "netns", second], check=True)
    for machine, address in ends.items():
        for words in (
            ["ip", "address", "add", f"{address}/24", "dev", interface],
            ["ip", "link", "set", interface, "up"],
        ):
            subprocess.run(machine.command(*words), check=True)


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two machines with a cable between them, for the length of a block."""
    with _machine("host-a", "10.77.0.1") as one, _machine("host-b", "10.77.0.2") as other:
        plug_in({one: one.address, other: other.address}, INTERFACE)
        yield one, other


def list_members(holder: int) -> list[int]:
    """Return the processes that share a process's network namespace, itself left out."""
    wanted = Path(f"/proc/{holder}/ns/net").stat().st_ino
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != holder:
            with contextlib.suppress(OSError):
                if (entry / "ns/net").stat().st_ino == wanted:
                    members.append(int(entry.name))
    return members
