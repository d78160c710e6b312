"""Keys and signals around `rootwalk run`: who gets them, how often, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.command import run_rootwalk
from support.process_list import processes_of_job
from support.terminal import CTRL_C, CTRL_Z, open_terminal
from support.workloads import wait_until

pytestmark = pytest.mark.slow

RUN = (sys.executable, "-m", "rootwalk.graph", "run", "--without", "bpf")
# Counts the interrupts that reach it, says so in a file, and ends at the given number of them.
COUNTS = """
import pathlib, signal, sys, time
seen = []
def note(number, frame):
    seen.append(number)
    pathlib.Path("seen").write_text(str(len(seen)))
signal.signal(signal.SIGINT, note)
pathlib.Path("ready").touch()
while len(seen) < int(sys.argv[1]):
    time.sleep(0.02)
time.sleep(0.5)
sys.exit(40 + len(seen))
"""
DEAF = """
import pathlib, signal, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
pathlib.Path('ready').touch()
time.sleep(100)
"""


def unique(name: str) -> str:
    """Return a job id that no earlier test run has used: what that left would be found here."""
    return f"{name}-{os.getpid()}"


def command(name: str, *words: str) -> list[str]:
    return [*RUN, "--job", unique(name), "--store", "s.duckdb", "--", *words]


def await_file(path: Path) -> None:
    wait_until(path.exists, 60.0)


def test_one_ctrl_c_reaches_the_job_once_and_its_own_end_counts(tmp_path: Path) -> None:
    python = command("key", sys.executable, "-c", COUNTS, "1")
    with open_terminal(
        python, cwd=tmp_path, stdout=tmp_path / "out", stderr=tmp_path / "err"
    ) as terminal:
        await_file(tmp_path / "ready")
        terminal.press(CTRL_C)
        assert terminal.wait(60) == 41
    assert (tmp_path / "seen").read_text() == "1"
    err = (tmp_path / "err").read_text()
    assert "Ctrl-C again ends it" in err
    assert "the command ended: exit code 41" in err
    assert "not enough evidence" in (tmp_path / "out").read_text()


def test_interrupt_by_kill_is_passed_on_once(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("kill", sys.executable, "-c", COUNTS, "1"),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    await_file(tmp_path / "ready")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 41


@pytest.mark.long
def test_second_ctrl_c_ends_a_job_that_does_not_listen(tmp_path: Path) -> None:
    python = command("deaf", sys.executable, "-c", DEAF)
    with open_terminal(
        python, cwd=tmp_path, stdout=tmp_path / "out", stderr=tmp_path / "err"
    ) as terminal:
        await_file(tmp_path / "ready")
        terminal.press(CTRL_C)
        wait_until(lambda: "Ctrl-C again" in (tmp_path / "err").read_text())
        terminal.press(CTRL_C)
        assert terminal.wait(60) == 137  # it was deaf to SIGTERM too
    assert "killed by SIGKILL" in (tmp_path / "err").read_text()
    assert "not enough evidence" in (tmp_path / "out").read_text()


def test_third_ctrl_c_leaves_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    python = command("leave", "sh", "-c", f'trap "" INT TERM; {sys.executable} -c "{DEAF}" & wait')
    with open_terminal(
        python, cwd=tmp_path, stdout=tmp_path / "out", stderr=tmp_path / "err"
    ) as terminal:
        await_file(tmp_path / "ready")
        for said in ("Ctrl-C again ends it", "Ctrl-C again leaves at once"):
            terminal.press(CTRL_C)
            wait_until(lambda said=said: said in (tmp_path / "err").read_text())  # type: ignore[misc]
        pressed = time.monotonic()
        terminal.press(CTRL_C)
        code = terminal.wait(60)
        assert time.monotonic() - pressed < 4.0, "less than the grace of the second"
        assert code in (130, 137, 143)
        left = [p for p in processes_of_job(unique("leave")) if p.pid != terminal.leader_pid]
        assert left == []
    assert "rootwalk diagnose s.duckdb" in (tmp_path / "err").read_text()
    done = run_rootwalk("diagnose", "s.duckdb", cwd=tmp_path)
    assert "not enough evidence" in done.stdout, done.stderr
    assert not (tmp_path / "s.duckdb.journal").exists()


def test_terminal_that_is_closed_ends_the_job_and_keeps_the_verdict(tmp_path: Path) -> None:
    python = [*RUN, "--job", unique("closed"), "--store", "s.duckdb", "--json", "v.json"]
    screen = Path("/dev/tty")
    with open_terminal(
        [*python, "--", "sh", "-c", "touch ready; sleep 100; true"],
        cwd=tmp_path,
        stdout=screen,
        stderr=screen,
    ) as terminal:
        await_file(tmp_path / "ready")
        terminal.close()
        wait_until(lambda: not processes_of_job(unique("closed")), 60.0)
    assert json.loads((tmp_path / "v.json").read_text())["outcome"] == "insufficient_evidence"
    assert not (tmp_path / "s.duckdb.journal").exists()


def test_ctrl_z_stops_the_job_and_fg_continues_it(tmp_path: Path) -> None:
    ticks = (
        "import pathlib, time\n"
        "for tick in range(10_000):\n"
        "    pathlib.Path('ticks').write_text(str(tick)); time.sleep(0.01)\n"
        "    if pathlib.Path('enough').exists(): break\n"
    )

    def count() -> str:
        path = tmp_path / "ticks"
        return path.read_text() if path.exists() else ""

    python = command("stop", sys.executable, "-c", ticks)
    with open_terminal(
        python, cwd=tmp_path, stdout=tmp_path / "out", stderr=tmp_path / "err"
    ) as terminal:
        wait_until(lambda: count() not in ("", "0"), 60.0)
        terminal.press(CTRL_Z)
        assert terminal.read_line() == "stopped"
        stopped_at = count()
        time.sleep(0.3)
        assert count() == stopped_at
        terminal.resume()
        wait_until(lambda: count() not in ("", stopped_at))
        (tmp_path / "enough").touch()
        assert terminal.wait(60) == 0


def test_standard_input_is_the_command_s(tmp_path: Path) -> None:
    done = subprocess.run(
        command("input", "wc", "-c"),
        cwd=tmp_path,
        input=b"12345",
        capture_output=True,
        check=True,
    )
    assert done.stdout.splitlines()[0] == b"5"


def test_signal_before_the_command_is_started(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("early", "touch", "started"), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    # The receiver makes the store; the agent and the command come after it.
    wait_until(
        lambda: bool(processes_of_job(unique("early"))) and (tmp_path / "s.duckdb").exists(), 60.0
    )
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    if not (tmp_path / "started").exists():
        assert process.returncode == 143
        assert "SIGTERM before the command was started" in err
    assert processes_of_job(unique("early")) == []


def test_hangup_that_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["nohup", *command("nohup", sys.executable, "-c", COUNTS, "0")],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: bool(processes_of_job(unique("nohup"))), 60.0)
    wait_until((tmp_path / "s.duckdb").exists, 60.0)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 40


def test_what_a_finished_command_leaves_behind_is_the_user_s(tmp_path: Path) -> None:
    upload = "sleep 3; touch uploaded"
    started = time.monotonic()
    done = run_rootwalk(
        "run", "--without", "bpf", "--store", "s.duckdb", "--",
        "sh", "-c", f"({upload}) </dev/null >/dev/null 2>&1 & echo $! > pid",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pid = int((tmp_path / "pid").read_text())
    if time.monotonic() - started < 3.0:
        assert Path(f"/proc/{pid}").exists()
    wait_until((tmp_path / "uploaded").exists, 10.0)


def test_script_without_a_first_line(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"\x00\x01\x02")
    script.chmod(0o755)
    done = run_rootwalk("run", "--store", "s.duckdb", "--", str(script), cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot run" in done.stderr
    assert "format" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_orphans_of_a_command_are_reaped(tmp_path: Path) -> None:
    """A launcher that double-forks must not fill the process table with what waits to be reaped."""
    script = "for i in 1 2 3 4 5; do (sleep 0.1 &) ; done; sleep 1.5; touch now; sleep 1"
    process = subprocess.Popen(
        command("reap", "sh", "-c", script),
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    await_file(tmp_path / "now")
    zombies = [pid for pid in children_of(process.pid) if state_of(pid) == "Z"]
    assert process.wait(60) == 0
    assert zombies == []


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
