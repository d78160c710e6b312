"""A store whose writer is killed in the middle of a write, in each of them in turn."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from rootwalk.instrumentation.errors import StoreError
from rootwalk.otel_receiver.double_write import SUFFIX, DoubleWrite
from rootwalk.otel_receiver.store import create_store, open_store, query_store, reading, writing

SOURCE = Path(__file__).parents[2] / "support" / "torn_writes.c"
# A session of a writer: rows, a commit, and the checkpoint when it closes the file.
SESSION = """
import sys
from pathlib import Path
from rootwalk.otel_receiver.store import writing

with writing(Path(sys.argv[1])) as connection:
    connection.execute("INSERT INTO numbers SELECT range, md5(range::VARCHAR) FROM range(3000)")
    connection.execute("DELETE FROM numbers WHERE number < 10")
"""
KEPT = 3000 - 10
# A session has some ten.
MOST_WRITES = 50


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that tears a write."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("torn writes: needs a C compiler")
    library = tmp_path_factory.mktemp("torn") / "torn_writes.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has been written a few times."""
    path = tmp_path_factory.mktemp("written") / "s.duckdb"
    create_store(path)
    with writing(path) as connection:
        connection.execute("CREATE TABLE numbers (number BIGINT, digest VARCHAR)")
    for _ in range(3):
        subprocess.run([sys.executable, "-c", SESSION, str(path)], check=True)
    return path


def write_until_killed(written: Path, preload: Path, write: int, folder: Path) -> tuple[Path, int]:
    """Copy a store and write to it once more, killed in its n-th write; return the copy and the exit code."""
    path = folder / str(write) / "s.duckdb"
    path.parent.mkdir()
    shutil.copy(written, path)
    environment = os.environ | {"LD_PRELOAD": str(preload), "TORN_WRITE": str(write)}
    done = subprocess.run([sys.executable, "-c", SESSION, str(path)], env=environment, check=False)
    return path, done.returncode


def is_whole(path: Path) -> bool:
    """Return whether a store can be opened without what lies beside it."""
    bare = path.with_name("bare.duckdb")
    shutil.copy(path, bare)
    try:
        count(bare)
    except StoreError as error:
        if "Corrupt database file" not in str(error):
            raise
        return False
    return True


def count(path: Path) -> int:
    ((number,),) = query_store(path, "SELECT count(digest) FROM numbers")[2]
    return int(number)


def test_killed_in_any_write_it_loses_nothing(written: Path, preload: Path, tmp_path: Path) -> None:
    needed = 0
    for write in range(1, MOST_WRITES):
        path, code = write_until_killed(written, preload, write, tmp_path)
        if code == 0:
            # Else DuckDB does not write over anything in place any more, and none of this is needed.
            assert needed >= 1
            return
        assert code == -signal.SIGKILL
        needed += not is_whole(path)
        # The commit came before the checkpoint that was cut short.
        assert count(path) == 4 * KEPT, write
        with writing(path) as connection:
            connection.execute("INSERT INTO numbers VALUES (1, 'one more')")
        assert count(path) == 4 * KEPT + 1
        assert not path.with_name(path.name + SUFFIX).exists()
    raise AssertionError(f"more than {MOST_WRITES} writes")


def tear(written: Path, preload: Path, folder: Path) -> Path:
    """Return a store that cannot be opened as it is."""
    for write in range(1, MOST_WRITES):
        path, code = write_until_killed(written, preload, write, folder)
        assert code != 0, "no write can be torn"
        if not is_whole(path):
            return path
    raise AssertionError(f"more than {MOST_WRITES} writes")


def _count_to(path: Path, start: multiprocessing.synchronize.Barrier, counts: object) -> None:
    start.wait()
    counts.put(count(path))  # type: ignore[attr-defined]


def test_many_readers_at_once_put_it_back_once(
    written: Path, preload: Path, tmp_path: Path
) -> None:
    path = tear(written, preload, tmp_path)
    context = multiprocessing.get_context("fork")
    start, counts = context.Barrier(4), context.Queue()
    readers = [context.Process(target=_count_to, args=(path, start, counts)) for _ in range(4)]
    for reader in readers:
        reader.start()
    assert [counts.get(timeout=60) for _ in readers] == [4 * KEPT] * 4
    for reader in readers:
        reader.join()


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "other"])
def test_a_copy_that_is_not_whole_or_not_of_it_is_left_alone(
    written: Path, preload: Path, tmp_path: Path, damage: str
) -> None:
    path = tear(written, preload, tmp_path)
    copy = path.with_name(path.name + SUFFIX)
    content = copy.read_bytes()
    if damage == "cut":
        copy.write_bytes(content[:-1])
    elif damage == "changed":
        copy.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "gone":
        copy.unlink()
    else:  # of a state that the file was in before
        older = tmp_path / "older.duckdb"
        create_store(older)
        with DoubleWrite(older) as double:
            double.save([0])
            shutil.copy(older.with_name(older.name + SUFFIX), copy)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="Corrupt database file"):
        count(path)
    assert path.read_bytes() == before


def test_who_may_not_write_is_told_what_is_wrong(
    written: Path, preload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tear(written, preload, tmp_path)

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rootwalk.otel_receiver.double_write.os.open", refuse)
    with pytest.raises(StoreError, match="Corrupt database file"), reading(path):
        pass
    monkeypatch.undo()
    assert count(path) == 4 * KEPT


def test_a_disk_that_refuses_the_copy_has_no_checkpoint(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.duckdb"
    shutil.copy(written, path)
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("rootwalk.otel_receiver.double_write.os.ftruncate", refuse)
        with writing(path) as connection:
            connection.execute("INSERT INTO numbers VALUES (1, 'one more')")
    assert "keeps its log: no space left on device" in caplog.text
    # Not told as a failure: who stores again what is stored has it twice.
    assert path.read_bytes() == before
    assert count(path) == 3 * KEPT + 1


def fail_after_a_commit(path: Path) -> None:
    """Store a row, then fail in another transaction."""
    with writing(path) as connection:
        connection.execute("INSERT INTO numbers VALUES (1, 'one more')")
        connection.begin()
        try:
            connection.execute("INSERT INTO numbers SELECT range, error('refused') FROM range(2)")
        except duckdb.Error as error:
            raise StoreError(str(error)) from error


def test_a_transaction_that_failed_does_not_leave_the_one_before_it_without_a_copy(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.duckdb"
    shutil.copy(written, path)
    saved: list[int] = []
    monkeypatch.setattr(DoubleWrite, "save", lambda self, blocks: saved.extend(blocks))
    with pytest.raises(StoreError, match="refused"):
        fail_after_a_commit(path)
    assert saved
    assert count(path) == 3 * KEPT + 1


def test_the_copy_may_be_put_back_by_who_may_write_the_store(written: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    shutil.copy(written, path)
    path.chmod(0o664)
    with DoubleWrite(path) as double:
        double.save([0])
        copy = path.with_name(path.name + SUFFIX)
        assert copy.stat().st_mode & 0o777 == 0o664
        assert copy.stat().st_size > 256 * 1024
    assert not copy.exists()


def test_what_is_closed_without_a_copy_has_no_checkpoint(written: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    shutil.copy(written, path)
    before = path.read_bytes()
    connection = open_store(path, read_only=False)
    connection.execute("INSERT INTO numbers VALUES (1, 'one more')")
    connection.close()
    assert path.read_bytes() == before
    assert count(path) == 3 * KEPT + 1
