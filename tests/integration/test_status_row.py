"""The bottom row of a terminal: a real one, as an emulator shows it, while somebody else writes above."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from rootwalk.graph.commands.status_row import arrange, can_show_row, read_words
from rootwalk.graph.render.cells import fit
from support.screen import COLUMNS, ROWS, open_screen
from support.terminal import CTRL_Z

# Lines that come in pieces, with colours, and one that is written over and over as bars of progress are.
JOB = """
import sys, time
for i in range(40):
    sys.stdout.write(f"\\033[3{i % 7}mline {i} be")
    sys.stdout.flush()
    time.sleep(0.02)
    sys.stdout.write(f"gins and ends {i}\\033[0m\\n")
    sys.stdout.flush()
for i in range(11):
    sys.stdout.write(f"\\rbar {i * 10} %")
    sys.stdout.flush()
    time.sleep(0.02)
print()
"""
# As `run` does, without all that is not the terminal.
DRIVER = """
import os, subprocess, sys, time
from rootwalk.graph.commands import status_row
from rootwalk.graph.render.cells import fit
status_row.REDRAW_S = 0.05
shown = [0]
def words(cells):
    shown[0] += 1
    return fit(f" rootwalk | words {shown[0]} " + "long " * 40, cells)
print("prompt$ command")
job = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
with status_row.StatusRow(2, words) as row:
    while job.poll() is None:
        row.tick()
        time.sleep(0.01)
    if len(sys.argv) > 2:
        raise RuntimeError(sys.argv[2])
print("the verdict")
"""
LINES = [f"line {i} begins and ends {i}" for i in range(40)]
NAP = "import time; print('job begins', flush=True); time.sleep(60)"


def driver(*arguments: str) -> list[str]:
    return [sys.executable, "-c", DRIVER, *arguments]


def test_lines_scroll_above_the_row_and_the_terminal_is_as_it_was(tmp_path: Path) -> None:
    with open_screen(driver(JOB), tmp_path) as screen:
        screen.look(lambda: "line 20 begins" in "\n".join(screen.lines))
        assert screen.region() == (0, ROWS - 2)
        assert screen.rows[-1].startswith(" rootwalk | words ")
        assert screen.rows[-1].endswith("…")
        assert len(screen.rows[-1]) == COLUMNS - 1
        assert screen.look_to_the_end() == 0
        assert screen.region() is None
        written = [line for line in screen.lines if line]
        assert written == ["prompt$ command", *LINES, "bar 100 %", "the verdict"]
        assert screen.cursor == (screen.rows.index("the verdict") + 1, 0)


def test_the_row_of_a_cursor_at_the_bottom_covers_nothing(tmp_path: Path) -> None:
    before = "print('\\n'.join(f'old {i}' for i in range(30)));"
    command = [sys.executable, "-c", before + DRIVER, JOB]
    with open_screen(command, tmp_path) as screen:
        assert screen.look_to_the_end() == 0
        written = [line for line in screen.lines if line]
        assert written[:31] == [*(f"old {i}" for i in range(30)), "prompt$ command"]
        assert written[31:] == [*LINES, "bar 100 %", "the verdict"]


def test_an_exception_gives_the_terminal_back(tmp_path: Path) -> None:
    with open_screen(driver("print('done')", "of ours"), tmp_path) as screen:
        assert screen.look_to_the_end() == 1
        assert screen.region() is None
        assert "RuntimeError: of ours" in screen.lines
        assert not [line for line in screen.lines if "rootwalk | words" in line]


@pytest.mark.parametrize("rows", [ROWS - 3, ROWS + 5])
def test_another_size_has_its_own_bottom_row(tmp_path: Path, rows: int) -> None:
    with open_screen(driver(JOB), tmp_path) as screen:
        screen.look(lambda: "line 5 begins" in "\n".join(screen.lines))
        screen.resize(rows, COLUMNS - 10)
        screen.look(
            lambda: screen.region() == (0, rows - 2) and "rootwalk | words" in screen.rows[-1]
        )
        assert len(screen.rows[-1]) == COLUMNS - 11
        assert sum("rootwalk | words" in row for row in screen.rows) == 1
        assert screen.look_to_the_end() == 0
        assert screen.region() is None
        assert not [row for row in screen.rows if "rootwalk | words" in row]
        assert screen.lines[-1] == "" or "the verdict" in screen.lines[-1]


def test_a_terminal_that_becomes_too_small_has_no_row(tmp_path: Path) -> None:
    with open_screen(driver(NAP), tmp_path) as screen:
        screen.look(lambda: "rootwalk | words" in screen.rows[-1])
        screen.resize(5, COLUMNS)
        screen.look(lambda: not any("rootwalk | words" in row for row in screen.rows))
        assert screen.region() is None
        screen.resize(ROWS, COLUMNS)
        screen.look(lambda: screen.region() == (0, ROWS - 2))


def test_stopped_it_gives_the_terminal_to_the_shell_and_takes_it_again(tmp_path: Path) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    shell = ["bash", "--norc", "--noediting", "-i"]
    with open_screen(shell, tmp_path, environment={"PS1": "shell$ "}) as screen:
        screen.press(f'{sys.executable} driver.py "{NAP}"\n'.encode())
        screen.look(lambda: "rootwalk | words" in screen.rows[-1])
        screen.press(CTRL_Z)
        screen.look(lambda: screen.rows[screen.cursor[0]].startswith("shell$"))
        assert screen.region() is None
        assert "rootwalk | words" not in screen.rows[-1]
        screen.press(b"seq 30\n")
        screen.look(lambda: screen.rows[-2:] == ["30", "shell$"])
        screen.press(b"fg\n")
        screen.look(lambda: "rootwalk | words" in screen.rows[-1])
        assert screen.region() == (0, ROWS - 2)


def test_only_on_a_terminal_that_scrolls_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert not can_show_row({"TERM": "dumb"})
    assert not can_show_row({})
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    assert not can_show_row({"TERM": "xterm"})


def test_words_tell_their_age(tmp_path: Path) -> None:
    path = tmp_path / "status"
    assert "".join(read_words(path, 0.0)) == "no complete step yet"
    path.write_text("[half of")
    assert "".join(read_words(path, 0.0)) == "no complete step yet"
    path.write_text(json.dumps(["step 7", ", 0.1 s a step", "; a\x1b[31m\nb", ", for 3 s"]))
    os.utime(path, (1_000.0, 1_000.0))
    fresh = ("step 7", ", 0.1 s a step", "; a⟨U+001B⟩[31m b", ", for 3 s")
    assert read_words(path, 1_010.0) == fresh
    assert read_words(path, 1_090.0)[-1] == ", for 3 s (as of 90 s ago)"


def test_the_finding_gives_way_and_its_age_stays() -> None:
    parts = ("step 7, 5 steps/s", ", 0.2 s a step", "; rank 3: CPU contention by x", ", for 40 s")
    whole = (
        " rootwalk 1:05 | step 7, 5 steps/s, 0.2 s a step; rank 3: CPU contention by x, for 40 s"
    )
    assert arrange(65.0, parts, 90).rstrip() == whole
    assert arrange(65.0, parts, 75).rstrip() == whole.replace(", 0.2 s a step", "")
    cut = " rootwalk 1:05 | step 7, 5 steps/s; rank 3: CPU c…, for 40 s"
    assert arrange(65.0, parts, 60) == cut
    assert arrange(3_725.0, parts, 24) == " rootwalk 1:02:05 | ste…"
    assert all(len(arrange(65.0, parts, cells)) == cells for cells in range(19, 100))


def test_rows_are_cut_by_cells() -> None:
    assert fit("step", 6) == "step  "
    assert fit("step 412", 8) == "step 412"
    assert fit("step 4123", 8) == "step 41…"
    assert fit("进度进度", 6) == "进度… "
    assert fit("e\u0301e", 2) == "e\u0301e"
