"""Which ranks an agent may watch, in a /proc made by hand.

host A: agent 10, run 11, rank 20 <- run 11          host B (another UTS namespace): rank 30
                          container 25 <- run 11     (a third one)
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from rootwalk.ebpf import scope as scopes
from rootwalk.ebpf.scope import Scope
from support.rings import identity

RUN, RANK, CONTAINER, REMOTE = 11, 20, 25, 30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Processes whose UTS namespace is a file: those of one namespace share it."""
    for name in ("a", "b", "c"):
        (tmp_path / f"uts-{name}").touch()
    for pid, uts, parent in (
        ("self", "a", 1),
        (RUN, "a", 1),
        (RANK, "a", RUN),
        (CONTAINER, "c", RUN),
        (REMOTE, "b", 1),
    ):
        folder = tmp_path / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns/uts").symlink_to(tmp_path / f"uts-{uts}")
        (folder / "stat").write_text(f"{folder.name} (python) S {parent} " + "0 " * 30)
    return tmp_path


def covered(scope: Scope) -> set[int]:
    return {pid for pid in (RANK, CONTAINER, REMOTE) if scope.covers(pid)}


def test_agent_of_a_host_made_of_namespaces_stays_there(proc: Path) -> None:
    assert covered(Scope(root=proc)) == {RANK}


def test_agent_of_a_run_follows_what_the_run_started(proc: Path) -> None:
    assert covered(Scope(RUN, proc)) == {RANK, CONTAINER}


def test_agent_of_the_whole_machine_follows_containers(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (proc / "uts-a").stat().st_ino
    monkeypatch.setattr(scopes, "INITIAL_UTS_NAMESPACE", first)
    assert covered(Scope(root=proc)) == {RANK, CONTAINER, REMOTE}
    assert covered(Scope(RUN, proc)) == {RANK, CONTAINER}


def test_ring_of_a_dead_rank_belongs_to_the_host_that_it_names(proc: Path) -> None:
    here = replace(identity(), host_name=socket.gethostname())
    there = replace(identity(), host_name="host-b")
    assert Scope(root=proc).covers_ring(here)
    assert not Scope(root=proc).covers_ring(there)


def test_process_that_is_gone_is_not_covered(proc: Path) -> None:
    assert not Scope(root=proc).covers(99)


def test_one_of_two_agents_sends_a_ranks_metrics() -> None:
    one, other = Scope(), Scope()
    assert one.claim(os.getpid())
    assert one.claim(os.getpid())
    assert not other.claim(os.getpid())
    one.close()
    assert other.claim(os.getpid())
    other.release(os.getpid())
    other.close()


def test_process_that_is_gone_cannot_be_claimed(proc: Path) -> None:
    assert not Scope(root=proc).claim(99)
