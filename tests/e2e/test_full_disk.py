"""`rootwalk run` while a disk fills up: the job goes on, its exit code stays its own, and there is a verdict."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

from support.command import SMALL, query, run_rootwalk
from support.small_disk import SmallDisk, small_disk

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.side_by_side]

DISK_BYTES = 16 * 1024 * 1024
EXIT_CODE = 7
# The job waits in its middle for a word, and says that it waits, so that the disk fills at the same step every time.
PAUSE_STEPS, STEPS = 150, 300
# Of those before the pause, so many may be under way still.
LAST_STEPS = 10
# The agent sends every half second; what has been stored by now is in the journal no more.
ARRIVES_S = 10
SCRIPT = f"""
import sys, time
from pathlib import Path
import rootwalk.examples.train_ddp as example

here = Path(sys.argv.pop(1))
plain = example.functional.cross_entropy
calls = 0

def loss_with_pauses(*arguments):
    global calls
    calls += 1
    if calls == {PAUSE_STEPS}:
        (here / "waits").touch()
        while not (here / "go").exists():
            time.sleep(0.01)
    return plain(*arguments)

example.functional.cross_entropy = loss_with_pauses
sys.argv += ["--steps", "{STEPS}", "--workers", "0"]
example.main()
sys.exit({EXIT_CODE})
"""
DEADLINE_S = 120


@dataclass(frozen=True, slots=True)
class PausedJob:
    """`rootwalk run` around a job that waits in its middle."""

    process: subprocess.Popen[str]
    folder: Path

    def go_on(self) -> tuple[str, str]:
        """Let the job go on; return both outputs at the end."""
        (self.folder / "go").touch()
        return self.process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


def start_job(folder: Path, store: Path, *options: str, **environment: str) -> PausedJob:
    """Start the job and return when it waits and nearly all of its telemetry is with the receiver."""
    script = folder / "job.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--job", "full", "--store"]
    command += [str(store), *options, "--", sys.executable, str(script), str(folder), *SMALL]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline_s = time.monotonic() + DEADLINE_S
    while not (folder / "waits").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    deadline_s = time.monotonic() + ARRIVES_S
    while count_received(store) < PAUSE_STEPS - LAST_STEPS and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return PausedJob(process, folder)


def count_received(store: Path) -> int:
    """Return how many steps the receiver has acknowledged and not stored yet."""
    journal = store.with_name(f"{store.name}.journal")
    count = 0
    for path in journal.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # stored meanwhile
            count += path.read_bytes().count(b"training.rank_step")
    return count


def count_steps(store: Path) -> int:
    (row,) = query(store, "SELECT count(*) AS n FROM steps WHERE is_complete", cwd=store.parent)
    return int(row["n"])


@pytest.mark.long
def test_disk_of_the_store_stays_full(tmp_path: Path, disk: SmallDisk) -> None:
    """What was acknowledged before is judged, though it is only in the journal; it is stored when there is space."""
    store = disk.folder / "s.duckdb"
    # What a receiver could not write whole it takes back, and a verdict is small: it gets a full disk of its own.
    with small_disk(tmp_path / "other", DISK_BYTES) as other:
        job = start_job(tmp_path, store, "--json", str(other.folder / "verdict.json"))
        disk.fill()
        other.fill()
        stdout, stderr = job.go_on()
        assert not (other.folder / "verdict.json").exists()
    assert job.process.returncode == EXIT_CODE, stderr
    assert "healthy" in stdout, stdout + stderr
    assert "no space left on device" in stderr
    assert "that were acknowledged are not in it: this answer counts them" in stderr
    assert "cannot write the verdict to" in stderr
    assert "bug" not in stderr
    with duckdb.connect(str(store), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM steps").fetchall() == [(0,)]
    disk.free()
    assert PAUSE_STEPS - 20 <= count_steps(store) < STEPS
    assert not (disk.folder / "s.duckdb.journal").exists()


@pytest.mark.long
def test_disk_of_the_store_has_room_again(tmp_path: Path, disk: SmallDisk) -> None:
    store = disk.folder / "s.duckdb"
    job = start_job(tmp_path, store)
    disk.fill()
    (tmp_path / "go").touch()
    time.sleep(3)
    disk.free()
    stdout, stderr = job.go_on()
    assert job.process.returncode == EXIT_CODE, stderr
    assert "healthy" in stdout
    assert count_steps(store) == STEPS, stderr


@pytest.mark.variant
def test_temporary_folder_is_full(tmp_path: Path, disk: SmallDisk) -> None:
    store = tmp_path / "s.duckdb"
    job = start_job(tmp_path, store, TMPDIR=str(disk.folder))
    disk.fill()
    stdout, stderr = job.go_on()
    assert job.process.returncode == EXIT_CODE, stderr
    assert "healthy" in stdout, stdout + stderr
    assert count_steps(store) == STEPS


def test_no_room_for_the_verdict_itself(tmp_path: Path) -> None:
    """Both outputs go to a file on a full disk: the exit code is all that can be told, and it is the job's."""
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--store", str(tmp_path / "s.duckdb")]
    with open("/dev/full", "w") as full:  # noqa: PTH123  (a device, not a path)
        done = subprocess.run(
            [*command, "--", "sh", "-c", f"exit {EXIT_CODE}"],
            stdout=full,
            stderr=full,
            stdin=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == EXIT_CODE


@pytest.mark.variant
def test_shared_memory_is_full(tmp_path: Path) -> None:
    """Ranks have nowhere to write to: the job runs unwatched, and the verdict does not call that healthy."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "go").touch()
    command = [sys.executable, "-m", "rootwalk.graph", "run", "--json", "v.json", "--store"]
    command += ["s.duckdb", "--", sys.executable, str(script), str(tmp_path), *SMALL]
    with small_disk(tmp_path / "probe", DISK_BYTES):
        pass  # skips where mounting is not allowed
    mount = 'mount -t tmpfs -o size=64k rootwalk-test /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", *command],
        cwd=tmp_path,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == EXIT_CODE, done.stderr
    verdict = json.loads((tmp_path / "v.json").read_text())
    assert verdict["outcome"] == "insufficient_evidence"
    assert "No space left on device" in done.stderr, done.stderr


def test_a_store_that_cannot_be_made_is_refused_before_the_job(
    tmp_path: Path, disk: SmallDisk
) -> None:
    disk.fill()
    done = run_rootwalk(
        "run", "--store", str(disk.folder / "s.duckdb"), "--", "touch", "ran", cwd=tmp_path
    )
    assert done.returncode == 1
    assert "cannot create the store" in done.stderr
    assert "no space left on device" in done.stderr.lower()
    assert not (tmp_path / "ran").exists()
