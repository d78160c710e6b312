"""A rank without PyTorch that uses a little of everything an agent follows, until it ends in the way it was told.

`python soak_rank.py exit|crash|stay SECONDS`: steps of 50 ms with phases and collectives into a real ring; two loader
workers that write files; a thread that computes, one that waits and is named as a collective library's; short-lived
threads; a connection of its own. `stay` goes on until somebody ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

from rootwalk.instrumentation.communicator import Communicator
from rootwalk.instrumentation.identity import read_identity
from rootwalk.instrumentation.shared_ring import RingWriter
from rootwalk.instrumentation.tracker import StepTracker

LOADER_WORKERS = 2
COLLECTIVES_A_STEP = 5
WRITES_A_SYNC = 25
PR_SET_NAME, PR_SET_PDEATHSIG = 15, 1
DATA = bytes(1_000_000)


def _start_worker() -> int:
    """Fork a loader worker; return the pipe that it writes its batches into."""
    first, (outlet, inlet) = os.getpid(), os.pipe()
    if os.fork():
        os.close(inlet)
        return outlet
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with tempfile.TemporaryFile() as file, contextlib.suppress(BrokenPipeError):
        for number in itertools.count():
            zlib.crc32(DATA)
            os.pwrite(file.fileno(), DATA[:4096], 0)
            if number % WRITES_A_SYNC == 0:
                os.fsync(file.fileno())
            os.write(inlet, b"batch")
            time.sleep(0.04)
            if os.getppid() != first:
                break
    os._exit(0)


def _start_threads() -> threading.Event:
    """Start the threads that live as long as the rank; return what wakes the one that waits."""
    turn = threading.Event()

    def progress() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"pt_nccl_progress", 0, 0, 0)
        while True:
            turn.wait()
            turn.clear()

    def autograd() -> None:
        while True:
            sum(range(20_000))  # holds the interpreter lock, so others wait for it
            time.sleep(0.01)

    for work in (progress, autograd):
        threading.Thread(target=work, daemon=True).start()
    return turn


def _connect() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


def main() -> None:
    """Run steps, then end."""
    end, seconds = sys.argv[1], float(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    batches = [_start_worker() for _ in range(LOADER_WORKERS)]
    turn, (near, far) = _start_threads(), _connect()
    ring = RingWriter(read_identity(os.environ), Path(os.environ["ROOTWALK_RING_DIRECTORY"]))
    tracker = StepTracker(ring)
    group = Communicator(tracker, "0|2|gloo|default_pg")
    numbers, stop_s = itertools.count(1), time.monotonic() + seconds
    while end == "stay" or time.monotonic() < stop_s:
        tracker.begin_phase("data_load")
        for batch in batches:
            os.read(batch, 5)
        tracker.end_phase()
        tracker.begin_phase("forward")
        helper = threading.Thread(target=zlib.crc32, args=(DATA,))
        helper.start()
        helper.join()
        tracker.end_phase()
        tracker.begin_phase("backward")
        for number in itertools.islice(numbers, COLLECTIVES_A_STEP):
            group.begin(number, "all_reduce", 4096, is_p2p=False)
            turn.set()
            near.sendall(DATA[:4096])
            far.recv(4096, socket.MSG_WAITALL)
            group.end(number, is_known=True)
        tracker.end_phase()
        tracker.begin_phase("optimizer")
        time.sleep(0.02)
        tracker.end_optimizer()
    if end == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    tracker.close()
    os._exit(0)  # threads and workers go with it


if __name__ == "__main__":
    main()
