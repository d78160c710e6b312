"""How jobs end, through the store: the rank that failed first is named, and ends that accuse nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from rootwalk.graph.render.text import render_text
from rootwalk.otel_receiver import store
from support.counters import add_event
from support.jobs import Job, write_job
from support.verdicts import check_verdict

# The last of 80 steps ends at 10.1 s.
END_S = 10.1
JOB = Job()
FRAMES = {"arrayValue": {"values": [{"stringValue": "train_step (train.py:57)"}]}}


def end(
    rank: int, after_s: float, **attributes: Any
) -> tuple[str, float, int | None, dict[str, Any]]:
    said = {"process.pid": 1000 + rank, "training.process.is_child": False}
    names = {"code": "process.exit.code", "signal": "training.signal.name"}
    said |= {names[name]: value for name, value in attributes.items()}
    return ("training.process.end", END_S + after_s, rank, said)


def sent(
    rank: int, after_s: float, signal: str, sender: int | None, name: str
) -> tuple[str, float, int | None, dict[str, Any]]:
    said: dict[str, Any] = {
        "process.pid": 1000 + rank,
        "training.process.is_child": False,
        "training.signal.name": signal,
        "training.signal.sender.name": name,
    }
    if sender is not None:
        said["training.signal.sender.pid"] = sender
    return ("training.process.signal", END_S + after_s, rank, said)


def raised(rank: int, after_s: float, name: str) -> tuple[str, float, int | None, dict[str, Any]]:
    said = {"process.pid": 1000 + rank, "exception.type": name, "training.stack.frames": FRAMES}
    return ("training.process.exception", END_S + after_s, rank, said)


def ran(
    after_s: float, code: int, by: str = "command"
) -> tuple[str, float, int | None, dict[str, Any]]:
    said = {"training.run.ended_by": by, "process.exit.code": code}
    return ("rootwalk.run.end", END_S + after_s, None, said)


def solve(path: Path, *told: tuple[str, float, int | None, dict[str, Any]]) -> Verdict:
    write_job(path, JOB)
    for name, time_s, rank, attributes in told:
        add_event(path, name, time_s, 0, rank, attributes)
    return check_verdict(diagnose(path))


FAILURES = {
    "exception": (
        (
            raised(1, 0.05, "ValueError"),
            end(1, 0.4, code=1),
            end(0, 0.5, signal="SIGTERM"),
            ran(0.6, 1),
        ),
        "RANK_CRASHED",
        "job failed after step 79: rank 1 raised ValueError in train_step (train.py:57); until then it was not slow",
    ),
    "killed": (
        (
            sent(1, 0.01, "SIGKILL", 4411, "bash"),
            end(1, 0.02, signal="SIGKILL"),
            end(0, 0.5, code=1),
            ran(0.6, 1),
        ),
        "RANK_KILLED",
        "job failed after step 79: rank 1 was killed by SIGKILL (sent by pid 4411, bash); until then it was not slow",
    ),
    "exit code": (
        (end(1, 0.02, code=3), end(0, 0.5, signal="SIGTERM"), ran(0.6, 1)),
        "RANK_CRASHED",
        "job failed after step 79: rank 1 ended with exit code 3; until then it was not slow",
    ),
    "crash": (
        (end(1, 0.02, signal="SIGSEGV"), end(0, 0.5, signal="SIGTERM"), ran(0.6, 1)),
        "RANK_CRASHED",
        "job failed after step 79: rank 1 crashed with SIGSEGV; until then it was not slow",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_rank_that_failed_first_is_named(tmp_path: Path, name: str) -> None:
    told, reason, words = FAILURES[name]
    verdict = solve(tmp_path / "s.duckdb", *told)
    assert [(one.reason, one.subject.rank) for one in verdict.findings] == [(reason, 1)]
    assert verdict.end is not None
    assert (verdict.end.rank, verdict.end.last_step, verdict.end.ended_by) == (1, 79, "command")
    assert " ".join(render_text(verdict).split("\n\n")[0].split()) == words


QUIET_ENDS = {
    "ended well": ((end(0, 0.1, code=0), end(1, 0.1, code=0), ran(0.2, 0)), "healthy"),
    "Ctrl-C": (
        (end(0, 0.1, signal="SIGINT"), end(1, 0.1, signal="SIGINT"), ran(0.2, 130, "user")),
        "healthy",
    ),
    "a scheduler": (
        (end(0, 0.1, signal="SIGTERM"), end(1, 0.1, signal="SIGTERM"), ran(0.2, 143, "signal")),
        "insufficient_evidence",
    ),
    "unknown failure": ((ran(0.2, 1),), "insufficient_evidence"),
    "Ctrl-C of a job that stood still": ((ran(67.0, 130, "user"),), "insufficient_evidence"),
}


@pytest.mark.parametrize("name", QUIET_ENDS)
def test_ends_that_accuse_nobody(tmp_path: Path, name: str) -> None:
    told, outcome = QUIET_ENDS[name]
    verdict = solve(tmp_path / "s.duckdb", *told)
    assert (verdict.outcome, verdict.findings) == (outcome, ())
    codes = {item.code for item in verdict.data_quality}
    assert ("JOB_FAILED" in codes) == (name in ("a scheduler", "unknown failure"))
    assert ("NO_PROGRESS" in codes) == (name == "Ctrl-C of a job that stood still")


def test_user_s_end_is_said_first(tmp_path: Path) -> None:
    verdict = solve(tmp_path / "s.duckdb", *QUIET_ENDS["Ctrl-C"][0])
    first = "job was ended by the user (Ctrl-C) after step 79; until then it was healthy"
    assert render_text(verdict).startswith(first)


def test_command_that_fails_before_any_rank_has_a_step(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    store.create_store(path)
    add_event(path, "rootwalk.run.end", 1.0, 0, None, ran(0.0, 1)[3])
    assert check_verdict(diagnose(path)).findings == ()
    assert render_text(diagnose(path)).startswith(
        "the command failed before its first step (exit code 1)\n"
    )
    add_event(
        path, "training.process.exception", 0.5, 0, 0, raised(0, 0.0, "ModuleNotFoundError")[3]
    )
    verdict = check_verdict(diagnose(path))
    assert [(one.reason, one.subject.rank) for one in verdict.findings] == [("RANK_CRASHED", 0)]
    words = " ".join(render_text(verdict).split())
    assert words.startswith(
        "the command failed before its first step (exit code 1): rank 0 raised ModuleNotFoundError"
        " in train_step (train.py:57)"
    )
