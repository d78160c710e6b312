"""One cell of the matrix: a launcher, an end, and everything that must be true afterwards."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from rootwalk.instrumentation.shared_ring import ring_directory
from support.bpf_programs import list_bpf_programs
from support.ends import ENDS, End
from support.launchers import LAUNCHERS, SCRIPT
from support.memory_group import memory_group
from support.process_list import processes_below, processes_of_job
from support.small_disk import SmallDisk, small_disk
from support.terminal import Terminal, open_terminal
from support.verdicts import check_schema

RANKS = 2
STEPS = 120
# Enough for a verdict about the half of the job that was seen.
ACT_AT_STEP = 50
START_DEADLINE_S = 90.0
END_DEADLINE_S = 120.0
# Processes that were told to end may need a moment; ranks that outlive `rootwalk run` train to their last step.
LEFT_OVER_DEADLINE_S = 3.0
ORPHAN_DEADLINE_S = 40.0
DISK_BYTES = 14_000_000
SPREAD_LIMIT_S = 300.0
VERDICT = re.compile(
    r"^(healthy|not enough evidence|rank \d|all ranks|communicator )", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cell came to, for the table.

    Attributes:
        exit_code: Of `rootwalk run`, as a shell tells it; negative when it was killed itself.
        verdict: Its outcome, or the sentence that stood for it.
        steps: Rank-steps that the job logged as finished.
        missing: Those of them that are not in the store.
        wall_s: The cell's whole time, s.
    """

    exit_code: int
    verdict: str
    steps: int
    missing: int
    wall_s: float


@dataclass(slots=True)
class RunningCell:
    """What an end may do to a cell."""

    folder: Path
    attempt: int
    terminal: Terminal
    group: Path | None
    disk: SmallDisk | None

    @property
    def run_pid(self) -> int:
        return self.terminal.pid

    def press(self, key: bytes) -> None:
        self.terminal.press(key)

    def rank_pid(self, rank: int) -> int:
        return int(read_log(self.folder, rank, self.attempt)[-1]["pid"])

    def memory_group(self) -> Path | None:
        return self.group

    def fill_disk(self) -> None:
        assert self.disk is not None
        self.disk.fill()


def read_log(folder: Path, rank: int, attempt: int) -> list[dict[str, Any]]:
    """Return the finished steps of a rank, as the job itself logged them."""
    path = folder / "job" / f"rank{rank}.{attempt}.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def run_cell(launcher: str, end_name: str, folder: Path) -> Outcome:
    """Run one cell and check it; raises AssertionError with what is wrong."""
    started = time.monotonic()
    end = ENDS[end_name]
    job = f"cell-{launcher}-{end_name}-{os.getpid()}"
    training = [SCRIPT, str(folder / "job"), "--steps", str(STEPS), *end.options]
    launch = LAUNCHERS[launcher](training, folder / "job")
    (folder / "tmp").mkdir(parents=True)
    environment = launch.environment | end.environment | {"TMPDIR": str(folder / "tmp")}
    if "TINY_CLOCK" in environment:
        environment["TINY_CLOCK"] = str(folder / "clock")
    watch = [sys.executable, "-m", "rootwalk.graph", "run", "--job", job, "--json", "v.json"]
    with contextlib.ExitStack() as stack:
        disk = None
        if end.has_disk:
            disk = stack.enter_context(small_disk(folder / "disk", DISK_BYTES))
        group = stack.enter_context(memory_group(job)) if end_name == "oom" else None
        store = (disk.folder if disk is not None else folder) / "s.duckdb"
        terminal = stack.enter_context(
            open_terminal(
                [*watch, "--store", str(store), "--", *launch.command],
                cwd=folder,
                stdout=folder / "out",
                stderr=folder / "err",
                environment=environment,
            )
        )
        cell = RunningCell(folder, launch.attempt, terminal, group, disk)
        await_steps(cell)
        programs = loaded_programs(cell.run_pid)
        end.act(cell)
        code = terminal.wait(END_DEADLINE_S)
        check_left_overs(job, cell, end, programs)
        check_exit(cell, end, code)
        if "TINY_CUSTOMISED" in environment:
            assert (folder / "job" / "customised").exists(), "the user's sitecustomize did not run"
        verdict = check_verdict(cell, end, store, job)
        if end.has_disk:
            check_recovery(cell, store)
        steps, missing = check_store(cell, end, store)
    return Outcome(code, verdict, steps, missing, time.monotonic() - started)


def await_steps(cell: RunningCell) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while (
        min(len(read_log(cell.folder, rank, cell.attempt)) for rank in range(RANKS)) < ACT_AT_STEP
    ):
        assert time.monotonic() < deadline, tell(cell, "the job makes no progress")
        assert Path(f"/proc/{cell.run_pid}").exists(), tell(cell, "the run has ended")
        time.sleep(0.01)


def tell(cell: RunningCell, what: str) -> str:
    """Return a sentence with everything that the command has said."""
    out, err = (cell.folder / "out").read_text(), (cell.folder / "err").read_text()
    return f"{what}\n--- stdout\n{out}\n--- stderr\n{err}"


def check_exit(cell: RunningCell, end: End, code: int) -> None:
    codes = end.codes if not end.is_survived or not end.is_watched else (0,)
    assert code in codes, tell(cell, f"exit code {code}, which is not among {sorted(codes)[:5]}")
    err = (cell.folder / "err").read_text()
    assert "rootwalk/graph" not in err, tell(cell, "a traceback of ours")
    if code > 0:
        assert "the command ended: " in err, tell(cell, "its exit is not told")
    if end.is_survived:
        finished = Counter(
            rank for rank in range(RANKS) for _ in read_log(cell.folder, rank, cell.attempt)
        )
        assert finished == dict.fromkeys(range(RANKS), STEPS), tell(cell, "the job was cut short")


def loaded_programs(run_pid: int) -> set[int]:
    """Return the ids of the BPF programs that the run's agent holds; none where it may not load any."""
    found: set[int] = set()
    for process in processes_below(run_pid):
        if "rootwalk.graph agent" in process.line:
            for entry in Path(f"/proc/{process.pid}/fdinfo").iterdir():
                with contextlib.suppress(OSError):
                    found.update(
                        map(int, re.findall(r"^prog_id:\s*(\d+)", entry.read_text(), re.MULTILINE))
                    )
    return found


def check_left_overs(job: str, cell: RunningCell, end: End, programs: set[int]) -> None:
    """Assert that nothing of the job is left: processes, rings, BPF programs, temporary folders."""
    limit_s = LEFT_OVER_DEADLINE_S if end.is_watched else ORPHAN_DEADLINE_S
    deadline = time.monotonic() + limit_s
    while (
        left := left_overs(job, cell.terminal.leader_pid, programs)
    ) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == [], tell(cell, f"left over: {left}")
    if end.is_watched:
        assert list((cell.folder / "tmp").glob("rootwalk-*")) == []


def left_overs(job: str, terminal_pid: int, programs: set[int]) -> list[str]:
    left = programs & list_bpf_programs() if programs else set()
    found = [f"BPF program {number}" for number in sorted(left)]
    found += [
        f"process {process.pid}: {process.line}"
        for process in processes_of_job(job)
        if process.pid != terminal_pid
    ]
    own = ring_directory()
    for ring in sorted(path for path in own.glob("*") if path.suffix in {".ring", ".new"}):
        try:
            with ring.open("rb") as file:
                header = file.read(4096)
        except OSError as error:
            if error.errno == errno.ENOENT:
                continue
            raise
        if f'"{job}"'.encode() in header:
            found.append(f"ring {ring}")
    return found


def check_verdict(cell: RunningCell, end: End, store: Path, job: str) -> str:
    """Assert that text and JSON are there and right in form; return the outcome."""
    if not end.is_watched:
        command = [sys.executable, "-m", "rootwalk.graph", "diagnose", str(store), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        verdict = json.loads(done.stdout)
    else:
        text = (cell.folder / "out").read_text()
        assert VERDICT.search(text), tell(cell, "no verdict")
        verdict = json.loads((cell.folder / "v.json").read_text())
    check_schema(verdict)
    assert verdict["job"]["id"] == job
    assert verdict["job"]["attempt"] == cell.attempt, "the latest attempt is the one to judge"
    assert verdict["window"]["last_step"] is not None, "steps were seen"
    return str(verdict["outcome"])


def check_recovery(cell: RunningCell, store: Path) -> None:
    """Assert that the store is whole, give the space back, and let the next reader store what was acknowledged."""
    duckdb.connect(str(store), read_only=True).close()
    assert cell.disk is not None
    cell.disk.free()
    command = [sys.executable, "-m", "rootwalk.graph", "diagnose", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert VERDICT.search(done.stdout), done.stdout


def check_store(cell: RunningCell, end: End, store: Path) -> tuple[int, int]:
    """Assert that plain DuckDB opens the store and every step that the job finished is in it."""
    logged = {
        (rank, attempt, entry["step"])
        for rank in range(RANKS)
        for attempt in range(cell.attempt + 1)
        for entry in read_log(cell.folder, rank, attempt)
    }
    with duckdb.connect(str(store), read_only=True) as connection:
        stored = set(
            connection.execute("SELECT rank, attempt, step FROM steps WHERE is_complete").fetchall()
        )
        spread = connection.execute(
            "SELECT (max(start_unix_ns) - min(start_unix_ns)) / 1e9 FROM steps"
        ).fetchall()[0][0]
    missing = logged - stored
    assert not Path(f"{store}.journal").exists(), "acknowledged telemetry was not stored"
    if end.is_watched and not end.has_disk:
        assert not missing, tell(cell, f"not in the store: {sorted(missing)}")
    if missing and end.is_watched:
        assert "are lost" in (cell.folder / "err").read_text(), tell(cell, "losses are not told")
    # A rank may be ended between a step's end and its line in the log, but not twice.
    assert len(stored - logged) <= RANKS, f"never finished: {sorted(stored - logged)}"
    assert spread is not None, "no step is stored"
    assert spread < SPREAD_LIMIT_S, f"the job's steps lie {spread:g} s apart"
    return len(logged), len(missing)
