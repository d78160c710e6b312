"""Who leaves the cores to the ranks: questions to a store that is written, the helpers of a run, the watcher."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.graph import rations
from rootwalk.graph.own_process import AUTOGROUP, LOWEST_PRIORITY, YIELDING_NICENESS
from rootwalk.graph.supervisor import Helper, start_helper
from rootwalk.otel_receiver.journal import JournalLock, is_journal_held, journal_path
from rootwalk.otel_receiver.store import create_store

# Runs a command, then prints what the kernel makes of its process: niceness, and that of its session.
COMMAND = """
import json, os, pathlib, sys
from rootwalk.graph.cli import main

os.nice(int(sys.argv[1]))
assert main(sys.argv[2:]) == 0
autogroup = pathlib.Path("/proc/self/autogroup")
print()
print(json.dumps([
    os.getpriority(os.PRIO_PROCESS, 0),
    autogroup.read_text() if autogroup.exists() else "",
]))
"""


# Usually 0; of a test run that yields itself more.
OWN = os.getpriority(os.PRIO_PROCESS, 0)
YIELDING = max(OWN, YIELDING_NICENESS)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "s.duckdb"
    create_store(path)
    return path


@pytest.fixture
def receiver(store: Path) -> Iterator[None]:
    """What a live receiver has: the lock on the journal."""
    lock = JournalLock.try_take(journal_path(store), create=True)
    assert lock is not None
    yield
    lock.release()


def _ask(
    store: Path, *words: str, nicer: int = 0, new_session: bool = False
) -> tuple[int, int | None]:
    verb, *rest = words
    command = [sys.executable, "-c", COMMAND, str(nicer), verb, str(store), *rest]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, start_new_session=new_session
    )
    own, session = json.loads(done.stdout.splitlines()[-1])
    return own, _niceness_of_session(session)


def _niceness_of_session(autogroup: str) -> int | None:
    """Return what the kernel says of a session; None where it has no group, as what init starts has none."""
    return int(autogroup.split()[-1]) if autogroup else None


@pytest.fixture(params=[("diagnose",), ("sql", "FROM jobs")], ids=["diagnose", "sql"])
def question(request: pytest.FixtureRequest) -> tuple[str, ...]:
    words: tuple[str, ...] = request.param
    return words


@pytest.mark.usefixtures("receiver")
def test_beside_a_receiver_a_question_yields(store: Path, question: tuple[str, ...]) -> None:
    assert _ask(store, *question)[0] == YIELDING


def test_where_nobody_writes_it_does_not(store: Path, question: tuple[str, ...]) -> None:
    assert _ask(store, *question)[0] == OWN


def test_a_receiver_that_died_is_nobody(
    store: Path, receiver: None, question: tuple[str, ...]
) -> None:
    directory = journal_path(store)
    assert is_journal_held(directory)
    # Its process is gone, and with it the lock; the folder is still there.
    (directory / "lock").unlink()
    (directory / "lock").touch()
    assert not is_journal_held(directory)

    assert _ask(store, *question)[0] == OWN


@pytest.mark.usefixtures("receiver")
def test_who_was_nicer_stays_so(store: Path, question: tuple[str, ...]) -> None:
    nicer = YIELDING - OWN + 2
    assert _ask(store, *question, nicer=nicer)[0] == YIELDING + 2


@pytest.mark.skipif(
    not AUTOGROUP.exists(), reason="needs a kernel that shares cores between sessions"
)
@pytest.mark.usefixtures("receiver")
def test_a_session_yields_only_with_its_leader(store: Path, question: tuple[str, ...]) -> None:
    """What else runs in a terminal's session is not for a question to slow down."""
    before = _niceness_of_session(AUTOGROUP.read_text())
    assert _ask(store, *question)[1] == before
    assert _ask(store, *question, new_session=True)[1] == YIELDING


def _niceness(pid: int) -> tuple[set[int], int | None]:
    """Return the niceness of a process's threads, and that of its session."""
    threads = {
        os.getpriority(os.PRIO_PROCESS, int(task.name))
        for task in Path(f"/proc/{pid}/task").iterdir()
    }
    path = Path(f"/proc/{pid}/autogroup")
    return threads, _niceness_of_session(path.read_text()) if path.exists() else None


def test_a_helper_yields_with_its_session_while_the_job_runs(tmp_path: Path) -> None:
    """Where each session gets an equal part of a core first, a niceness of its own alone would mean nothing."""
    command = ["receive", "--store", str(tmp_path / "s.duckdb")]
    command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    helper = start_helper("receiver", command, tmp_path / "ready")
    try:
        # On a busy machine it would otherwise not be ready in time.
        assert _niceness(helper.process.pid) in (({OWN}, 0), ({OWN}, None))
        helper.give_way()
        yielding = (({LOWEST_PRIORITY}, LOWEST_PRIORITY), ({LOWEST_PRIORITY}, None))
        assert _niceness(helper.process.pid) in yielding
        helper.process.kill()
        helper.process.wait()
        helper.revive()
        assert helper.await_ready(20.0)
        assert _niceness(helper.process.pid) in yielding
        seen = []

        def pause(seconds: float) -> None:
            with contextlib.suppress(OSError):  # it has ended
                seen.append(_niceness(helper.process.pid))
            time.sleep(seconds)

        helper.stop(20.0, pause)
    finally:
        helper.end()
    # Without privileges a process only ever yields more, its session does not.
    own = {OWN} if os.geteuid() == 0 else {LOWEST_PRIORITY}
    assert seen[0] in ((own, OWN), (own, None))


@contextlib.contextmanager
def _burn(count: int, core: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that want a core all the time, each in a session of its own."""
    source = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    command = [sys.executable, "-c", source]
    with contextlib.ExitStack() as stack:
        processes = []
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen(command, start_new_session=True))
            stack.callback(process.kill)
            processes.append(process)
        yield processes


@pytest.mark.skipif(os.geteuid() != 0, reason="to raise a priority takes privileges")
def test_a_helper_is_not_starved_on_a_core_that_is_too_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rations, "LENT_S", 1.0)
    core = min(os.sched_getaffinity(0))
    with _burn(4, core) as (process, job, *_):
        helper = Helper("helper", [], tmp_path / "ready", process)
        helper.give_way()
        seen = [LOWEST_PRIORITY]
        deadline_s = time.monotonic() + 60.0
        while len(seen) < 3 and time.monotonic() < deadline_s:
            helper.feed(lambda: [job.pid])
            niceness, _ = _niceness(process.pid)
            seen += niceness - {seen[-1]}
            time.sleep(0.1)
    assert seen == [LOWEST_PRIORITY, OWN, LOWEST_PRIORITY]


@pytest.mark.skipif(
    not AUTOGROUP.exists(), reason="needs a kernel that shares cores between sessions"
)
def test_a_watcher_leaves_the_session_of_its_terminal_alone() -> None:
    before = _niceness_of_session(AUTOGROUP.read_text())
    yielding = "from rootwalk.graph.own_process import run_when_idle; run_when_idle()"
    subprocess.run([sys.executable, "-c", yielding], check=True)
    assert _niceness_of_session(AUTOGROUP.read_text()) == before
