"""What cases need beside their job: files that do not answer, groups with little memory, networks, a slow server."""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gauntlet.faults.borrowed import Borrowed
from gauntlet.faults.links import MASTER_PORT, drop_program, two_networks
from gauntlet.live.case import FAULT_RANK, Given, Scene
from gauntlet.live.outside import kill_pids
from rootwalk.instrumentation.errors import UnavailableError
from support.memory_group import memory_group
from support.namespaces import INTERFACE, Machine, list_members

SERVER = Path(__file__).parents[1] / "faults" / "slow_files.py"
READY = "ready"
FOR_EVER_S = "100000"
C_SOURCE = 'void search_without_end(void) { for (;;) __asm__ volatile(""); }\n'
# A data set of 4 MB that comes at 100 kB a second.
DOWNLOAD_BYTES, CHUNK_BYTES = 4_000_000, 20_000
DOWNLOAD_S = 40.0


@contextmanager
def silent_file(folder: Path) -> Iterator[Given]:
    """Mount a file system whose server stops to answer reads once a switch is there.

    Raises:
        UnavailableError: Without FUSE.
    """
    place, switch = folder / "fuse", folder / "silent.on"
    place.mkdir()
    command = [sys.executable, str(SERVER), str(place), FOR_EVER_S, str(switch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline().strip()
            if said != READY:
                raise UnavailableError(f"cannot mount a file system: {said}", reason="NO_FUSE")
            yield Given({"path": str(place / "file"), "switch": str(switch)})
        finally:
            server.kill()  # the kernel answers every read that waits with an error
            subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)


@contextmanager
def c_library(folder: Path) -> Iterator[Given]:
    """Compile a function in C that never returns.

    Raises:
        UnavailableError: Without a C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise UnavailableError("cannot compile a function: needs cc", reason="NO_TOOL")
    source, library = folder / "search.c", folder / "libsearch.so"
    source.write_text(C_SOURCE, encoding="utf-8")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    yield Given({"library": str(library)})


@contextmanager
def little_memory(folder: Path) -> Iterator[Given]:
    """Make a control group with little memory, into which the rank goes by itself.

    Raises:
        UnavailableError: Without the right to make groups.
    """
    with memory_group(f"rootwalk-live-{uuid.uuid4().hex[:8]}") as group:
        if group is None:
            raise UnavailableError("cannot limit memory: saw no group to make", reason="NO_CGROUP")
        yield Given({"group": str(group / "cgroup.procs")})


def network_environment(machines: tuple[Machine, ...]) -> dict[str, str]:
    """Return where the ranks are, and how they find each other."""
    return {
        "GAUNTLET_NETWORKS": ",".join(str(machine.holder) for machine in machines),
        "MASTER_ADDR": machines[0].address,
        "MASTER_PORT": str(MASTER_PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
    }


@contextmanager
def way_that_drops(_: Path) -> Iterator[Given]:
    """Put two ranks into networks of their own; the act drops every packet between them."""
    with Borrowed() as made:
        machines = made.borrow(two_networks())

        def drop_all(scene: Scene) -> None:
            scene.write_truth(None)
            # A bit below 1: the program compares a random word with it.
            words = drop_program(1 - 2**-32, None)
            queue = ["tc", "qdisc", "add", "dev", INTERFACE, "clsact"]
            rule = ["tc", "filter", "add", "dev", INTERFACE, "ingress", "bpf", "direct-action"]
            for machine in machines:
                subprocess.run(machine.command(*queue), check=True)
                subprocess.run(machine.command(*rule, "bytecode", words), check=True)

        yield Given({}, network_environment(machines), drop_all)


@contextmanager
def node_that_goes(_: Path) -> Iterator[Given]:
    """Put two ranks into networks of their own; the act takes one away with everything in it."""
    with Borrowed() as made:
        machines = made.borrow(two_networks())
        gone = machines[FAULT_RANK]

        def remove(scene: Scene) -> None:
            scene.write_truth(FAULT_RANK)
            subprocess.run(gone.command("ip", "link", "delete", INTERFACE), check=True)
            kill_pids([*list_members(gone.holder), gone.holder])

        yield Given({}, network_environment(machines), remove)


class _SlowAnswer(http.server.BaseHTTPRequestHandler):
    """Answers each request with a file that comes slowly."""

    def do_GET(self) -> None:
        """Send the file."""
        self.send_response(200)
        self.send_header("Content-Length", str(DOWNLOAD_BYTES))
        self.end_headers()
        pause_s = DOWNLOAD_S * CHUNK_BYTES / DOWNLOAD_BYTES
        try:
            for _ in range(DOWNLOAD_BYTES // CHUNK_BYTES):
                self.wfile.write(os.urandom(CHUNK_BYTES))
                time.sleep(pause_s)
        except OSError:
            return

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@contextmanager
def slow_server(_: Path) -> Iterator[Given]:
    """Serve a data set over HTTP that takes `DOWNLOAD_S` to come."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _SlowAnswer) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Given({"url": f"http://127.0.0.1:{server.server_address[1]}/data"})
        finally:
            server.shutdown()
