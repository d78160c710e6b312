"""The receiver as users run it: a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# A cold start on a busy machine; normal is under one second.
READY_DEADLINE_S = 90.0


@dataclass(frozen=True, slots=True)
class ReceiverProcess:
    """A running receiver; `grpc`, `http` and `metrics`, where it has that, are HOST:PORT."""

    process: subprocess.Popen[str]
    store: Path
    grpc: str
    http: str
    metrics: str | None

    def wait_until_said(self, words: str, timeout_s: float = 30.0) -> str:
        """Return what it has said up to and with these words; `stop` returns the rest."""
        stderr, said = self.process.stderr, ""
        assert stderr is not None
        deadline = time.monotonic() + timeout_s
        while words not in said:
            ready, _, _ = select.select([stderr], [], [], max(0.0, deadline - time.monotonic()))
            # Past the buffer of the text stream, in which `communicate` does not look.
            heard = os.read(stderr.fileno(), 65536) if ready else b""
            assert heard, said
            said += heard.decode(errors="replace")
        return said

    def stop(self, timeout_s: float = 90.0) -> str:
        """Stop it cleanly, which stores all that it acknowledged, and return what it said."""
        self.process.send_signal(signal.SIGTERM)
        _, stderr = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, stderr
        return stderr

    def kill(self) -> None:
        """End it as a power cut would, as far as the process sees."""
        self.process.kill()
        self.process.communicate(timeout=30)


def run_command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a rootwalk command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "rootwalk.graph", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def start_receiver(
    store: Path, *options: str, http: str = "127.0.0.1:0", enter: Sequence[str] = ()
) -> ReceiverProcess:
    """Start a receiver and wait until it listens.

    Args:
        store: Store to write.
        options: More options of `rootwalk receive`.
        http: HOST:PORT for OTLP/HTTP; port 0 takes a free one.
        enter: Command that enters another machine.
    """
    command = [*enter, sys.executable, "-m", "rootwalk.graph", "receive", "--store", str(store)]
    command += ["--grpc", "127.0.0.1:0", "--http", http]
    # Not beside the store, whose disk may be full.
    with tempfile.TemporaryDirectory() as folder:
        ready_file = Path(folder, "ready.json")
        command += ["--ready-file", str(ready_file), *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + READY_DEADLINE_S
        while not ready_file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise AssertionError(process.communicate()[1])
            time.sleep(0.01)
        ready = json.loads(ready_file.read_text())
    return ReceiverProcess(process, store, ready["grpc"], ready["http"], ready.get("metrics"))


@contextlib.contextmanager
def running_receiver(
    store: Path, *options: str, http: str = "127.0.0.1:0", enter: Sequence[str] = ()
) -> Iterator[ReceiverProcess]:
    """Run a receiver for the length of a block; it is killed if the block has not stopped it."""
    receiver = start_receiver(store, *options, http=http, enter=enter)
    try:
        yield receiver
    finally:
        if receiver.process.poll() is None:
            receiver.kill()
