"""One run of a live case: `rootwalk run` with the job, what it says and when, and how it is ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gauntlet.live.case import (
    CTRL_C,
    HANG,
    SIGTERM,
    TORCHRUN,
    Choice,
    Given,
    LiveCase,
    Scene,
)
from gauntlet.live.outside import kill_pids, read_command
from rootwalk.graph.process_tree import find_descendants
from rootwalk.instrumentation.errors import RootwalkError

SCRIPT = Path(__file__).with_name("training.py")
PLAIN_LAUNCHER = Path(__file__).parents[1] / "launch_ranks.py"
ROOTWALK = (sys.executable, "-m", "rootwalk.graph")
LAUNCHER_WORDS = ("torch.distributed.run", PLAIN_LAUNCHER.name)
MARK = "GAUNTLET_LIVE_RUN"
POLL_S = 0.1
# A job that hangs is watched for so long after its fault, s: what is said within 30 s is seen, and what comes too late.
WATCH_S = 45.0
# What is said again or taken back after the first word is to be seen too.
SETTLE_S = 4.0
# Until the fault is reached, imports on a busy machine included; and until a job that ends by itself has ended.
REACH_DEADLINE_S, END_DEADLINE_S = 240.0, 300.0
# A user who sees nothing happen presses Ctrl-C again, and in the end a third time; torchrun gives ranks 30 s to end.
AGAIN_S, LEAVE_S, LAST_S = 8.0, 60.0, 30.0
SAID = "rootwalk"
HANG_WORDS = re.compile(r"\b(stuck|hangs?|hung|no progress|not called|waits? (in|for))\b")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of standard error.

    Attributes:
        unix_s: When it was read.
        text: The line.
    """

    unix_s: float
    text: str


@dataclass(slots=True)
class Watched:
    """What one run did and what was said, before any of it is judged.

    Attributes:
        truth: What was written down at the beginning of each fault, the first first.
        steps: Of each rank: number and Unix time of the end of each step, 0 for its start.
        ending_unix_s: When the user began to end the job; None when it ended by itself.
        exit_code: Of `rootwalk run`; None when it had to be killed.
        lines: Its standard error.
        output: Its standard output.
        verdict: The final verdict; None without one.
        verdict_from: `run`, or `diagnose` where `run` had to be left by a third Ctrl-C.
        run_s: From start to end, s.
    """

    truth: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    ending_unix_s: float | None = None
    exit_code: int | None = None
    lines: list[Line] = field(default_factory=list)
    output: str = ""
    verdict: dict[str, Any] | None = None
    verdict_from: str = "run"
    run_s: float = 0.0

    @property
    def begun_unix_s(self) -> float | None:
        """When the first fault began; None when none did."""
        return float(self.truth[0]["unix_s"]) if self.truth else None


def run_live(
    case: LiveCase,
    choice: Choice,
    folder: Path,
    options: Sequence[str] = (),
    watch_s: float = WATCH_S,
) -> Watched:
    """Run a case once, to the end of `rootwalk run`; leave no process behind.

    Args:
        case: The case.
        choice: What this run takes.
        folder: Empty, for everything.
        options: Of `rootwalk run`.
        watch_s: How long a job that hangs is watched after its fault, if nothing is said, s.

    Raises:
        UnavailableError: If what the case needs cannot be had here.
        RootwalkError: If the job does not come as far as its fault.
    """
    with case.given(folder) as given:
        session = _Session(case, choice, given, folder, options, watch_s)
        try:
            return session.run()
        finally:
            session.end_all()


class _Session:
    def __init__(
        self,
        case: LiveCase,
        choice: Choice,
        given: Given,
        folder: Path,
        options: Sequence[str],
        watch_s: float,
    ) -> None:
        self._case, self._choice, self._given, self._folder = case, choice, given, folder
        self._options, self._watch_s = options, watch_s
        self._mark = uuid.uuid4().hex
        self._watched = Watched()
        self._reader: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> Watched:
        began_s = time.monotonic()
        self._start()
        if self._case.kind == HANG or not self._case.ends_itself:
            self._await_fault()
            self._watch()
            self._end_job()
        elif self._given.act is not None:
            self._await_fault()
        self._await_end()
        self._watched.run_s = round(time.monotonic() - began_s, 1)
        self._read()
        return self._watched

    def _start(self) -> None:
        command = [
            *ROOTWALK,
            "run",
            "--store",
            str(self._folder / "store.duckdb"),
            "--no-status-row",
        ]
        command += ["--job", f"live-{self._mark[:8]}"]  # runs beside each other are not one job
        command += ["--json", str(self._folder / "verdict.json")]
        command += [*self._options, "--", *self._launch()]
        keeps = self._case.keeps_stdin
        with (self._folder / "stdout.txt").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.PIPE if keeps else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a process group of its own, as a shell gives it
            )
        assert self._process.stderr is not None
        arguments = (self._process.stderr, self._watched.lines)
        self._reader = threading.Thread(target=_read_lines, args=arguments, daemon=True)
        self._reader.start()

    def _environment(self) -> dict[str, str]:
        own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", MARK: self._mark}
        own["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # each run compiles anew
        if self._choice.launcher != TORCHRUN:
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_find_port())}
            ranks = str(self._choice.ranks)
            own |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        return os.environ | own | dict(self._given.environment)

    def _launch(self) -> list[str]:
        case, choice = self._case, self._choice
        command = [sys.executable, str(PLAIN_LAUNCHER), str(choice.ranks), sys.executable]
        if choice.launcher == TORCHRUN:
            command = [sys.executable, "-m", "torch.distributed.run"]
            command += [f"--nproc-per-node={choice.ranks}", "--master-port", str(_find_port())]
        if case.script:
            return [*command, case.script]
        settings = {"folder": str(self._folder)} | dict(case.settings) | dict(self._given.settings)
        command += [str(SCRIPT), "--folder", str(self._folder), "--steps", str(case.steps)]
        command += ["--step-s", str(choice.step_s), "--loop", case.loop]
        command += ["--fault", case.fault, "--fault-step", str(case.fault_step)]
        command += ["--fault-ranks", *map(str, case.fault_ranks)]
        for name, value in settings.items():
            command += ["--setting", f"{name}={value}"]
        return command

    def _await_fault(self) -> None:
        """Wait until the fault has begun; one from outside begins here."""
        deadline = time.monotonic() + REACH_DEADLINE_S
        while time.monotonic() < deadline and self._is_running():
            if self._given.act is None and read_lines(self._folder / "truth.jsonl"):
                return
            if self._given.act is not None and self._has_reached():
                self._given.act(self._scene())
                return
            time.sleep(POLL_S)
        if self._is_running():
            raise RootwalkError("cannot judge the run: the fault was not reached")

    def _has_reached(self) -> bool:
        steps = [read_steps(self._folder, rank) for rank in range(self._choice.ranks)]
        return all(one and one[-1]["step"] >= self._case.fault_step for one in steps)

    def _scene(self) -> Scene:
        assert self._process is not None
        ranks = {n: read_steps(self._folder, n)[-1]["pid"] for n in range(self._choice.ranks)}
        launcher = find_launcher(self._process.pid)
        return Scene(self._folder, self._process.pid, launcher, ranks, self._write_truth)

    def _write_truth(self, rank: int | None) -> None:
        truth = {"unix_s": time.time(), "rank": rank, "step": self._case.fault_step}
        with (self._folder / "truth.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(truth) + "\n")

    def _watch(self) -> None:
        """Wait until something is said about the fault and a little longer, or for `watch_s`."""
        truth = read_lines(self._folder / "truth.jsonl")
        begun = truth[0]["unix_s"] if truth else time.time()
        said: float | None = None
        while self._is_running():
            now = time.time()
            if said is None:
                said = find_first_word(self._watched.lines, begun)
            if now > begun + self._watch_s or (said is not None and now > said + SETTLE_S):
                return
            time.sleep(POLL_S)

    def _end_job(self) -> None:
        """End the job as its user does, if it still runs."""
        process = self._process
        assert process is not None
        if not self._is_running():
            return
        self._watched.ending_unix_s = time.time()
        if self._choice.ending == CTRL_C:
            os.killpg(process.pid, signal.SIGINT)
        elif self._choice.ending == SIGTERM:
            process.terminate()
        else:
            kill_pids([find_launcher(process.pid)])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(AGAIN_S)
            return
        if self._choice.ending == CTRL_C:
            os.killpg(process.pid, signal.SIGINT)

    def _await_end(self) -> None:
        assert self._process is not None
        is_ended = self._watched.ending_unix_s is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watched.exit_code = self._process.wait(LEAVE_S if is_ended else END_DEADLINE_S)
            return
        # A rank that cannot be killed, as one that waits for a file system, keeps `run` waiting.
        for _ in range(3):
            self._process.send_signal(signal.SIGINT)
            time.sleep(1.0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watched.exit_code = self._process.wait(LAST_S)

    def _read(self) -> None:
        """Read what was written down: first what the job did, then what was said."""
        watched = self._watched
        self.end_all()
        if self._reader is not None:
            self._reader.join(timeout=AGAIN_S)
        watched.truth = read_lines(self._folder / "truth.jsonl")
        for rank in range(self._choice.ranks):
            steps = read_steps(self._folder, rank)
            watched.steps[rank] = [(row["step"], row["unix_s"]) for row in steps]
        watched.output = (self._folder / "stdout.txt").read_text("utf-8", errors="replace")
        text = "".join(f"{line.unix_s:.3f} {line.text}\n" for line in watched.lines)
        (self._folder / "stderr.txt").write_text(text, encoding="utf-8")
        path, store = self._folder / "verdict.json", self._folder / "store.duckdb"
        if not path.exists() and store.exists():
            watched.verdict_from = "diagnose"
            watched.output = ask_rootwalk("diagnose", str(store))
            path.write_text(ask_rootwalk("diagnose", str(store), "--json"), encoding="utf-8")
        with contextlib.suppress(OSError, ValueError):
            watched.verdict = json.loads(path.read_text("utf-8"))

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end_all(self) -> None:
        """End every process of this run that is left, whoever its parent is now."""
        process = self._process
        left = set() if process is None else {*find_descendants(process.pid)}
        kill_pids({*left, *find_marked(self._mark)})
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def _read_lines(stream: IO[bytes], lines: list[Line]) -> None:
    for raw in stream:  # the list is read meanwhile
        lines.append(Line(time.time(), raw.decode("utf-8", errors="replace").rstrip("\n")))  # noqa: PERF401


def _find_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def ask_rootwalk(*words: str) -> str:
    """Return what a command of Rootwalk writes to its standard output."""
    done = subprocess.run([*ROOTWALK, *words], capture_output=True, text=True, check=False)
    return done.stdout


def find_launcher(run_pid: int) -> int:
    """Return the process of the launcher below `rootwalk run`.

    Raises:
        RootwalkError: If it has ended.
    """
    for pid in find_descendants(run_pid):
        if any(word in read_command(pid) for word in LAUNCHER_WORDS):
            return pid
    raise RootwalkError("cannot act on the launcher: it has ended")


def find_marked(mark: str) -> list[int]:
    """Return the processes that have this run's mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file of JSON lines; none without the file."""
    if not path.exists():
        return []
    whole = path.read_text("utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines() if line]


def read_steps(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Return what a rank has written about its steps."""
    return read_lines(folder / "steps" / f"rank{rank}.jsonl")


def find_first_word(lines: Sequence[Line], begun_unix_s: float) -> float | None:
    """Return when Rootwalk first said something about a hang; None when it has not.

    Args:
        lines: Of standard error.
        begun_unix_s: When the fault began.
    """
    for line in list(lines):
        if line.unix_s >= begun_unix_s and is_about_hang(line.text):
            return line.unix_s
    return None


def is_about_hang(text: str) -> bool:
    """Whether a line is Rootwalk's and speaks of a job that does not go on."""
    return text.startswith(SAID) and HANG_WORDS.search(text) is not None
