"""Ranks by the environment of processes, in a /proc made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.discovery import Discovery, is_process_alive, thread_role
from rootwalk.ebpf.events import EventFlag
from rootwalk.instrumentation.semconv import TrainingThreadRole

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "j7"}


class FakeProc:
    """A folder that looks like /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 0.0

    def add(
        self,
        pid: int,
        environment: dict[str, str],
        *,
        parent: int = 1,
        name: str = "python",
        start_ticks: int = 500,
        state: str = "S",
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        raw = b"".join(f"{key}={value}".encode() + b"\0" for key, value in environment.items())
        (folder / "environ").write_bytes(raw)
        middle = " ".join(["0"] * 17)
        (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {middle} {start_ticks} 0 0")

    def remove(self, pid: int) -> None:
        for path in (self.root / str(pid)).iterdir():
            path.unlink()
        (self.root / str(pid)).rmdir()

    def discovery(self, job: str | None = None) -> Discovery:
        return Discovery(job, self.root, lambda: self.now_s)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_rank_of_torchrun(proc: FakeProc) -> None:
    proc.add(100, {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2", "HOME": "/root"})
    proc.add(101, {"HOME": "/root"})
    ranks = proc.discovery().scan().ranks
    assert list(ranks) == [100]
    who = ranks[100].identity
    assert (who.job, who.attempt, who.rank, who.local_rank, who.world_size) == ("j7", 2, 3, 1, 4)
    assert who.pid == 100
    assert ranks[100].start_ticks == 500


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "9"},
        {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"},
        {"PMI_RANK": "5", "PMI_SIZE": "8"},
    ],
)
def test_rank_of_other_launchers(proc: FakeProc, environment: dict[str, str]) -> None:
    proc.add(100, environment)
    who = proc.discovery().scan().ranks[100].identity
    assert (who.rank, who.world_size) == (5, 8)


def test_children_are_helpers(proc: FakeProc) -> None:
    proc.add(100, TORCHRUN)
    proc.add(110, TORCHRUN, parent=100, name="pt_data_worker")
    proc.add(111, TORCHRUN, parent=110)
    population = proc.discovery().scan()
    assert list(population.ranks) == [100]
    assert population.rank_by_helper == {110: 100, 111: 100}


def test_shell_between_launcher_and_rank_is_neither(proc: FakeProc) -> None:
    proc.add(100, TORCHRUN, name="bash")
    proc.add(101, TORCHRUN, parent=100)
    population = proc.discovery().scan()
    assert list(population.ranks) == [101]
    assert population.rank_by_helper == {}


def test_rank_started_by_another_rank_is_a_rank(proc: FakeProc) -> None:
    proc.add(100, TORCHRUN)
    proc.add(101, {**TORCHRUN, "RANK": "2"}, parent=100)
    assert set(proc.discovery().scan().ranks) == {100, 101}


def test_other_jobs_are_left_alone(proc: FakeProc) -> None:
    proc.add(100, TORCHRUN)
    assert proc.discovery("another").scan().ranks == {}
    assert set(proc.discovery("j7").scan().ranks) == {100}


def test_environment_after_exec_counts(proc: FakeProc) -> None:
    discovery = proc.discovery()
    proc.add(100, {})
    assert discovery.scan().ranks == {}
    proc.add(100, TORCHRUN)
    proc.now_s = 2.0
    assert set(discovery.scan().ranks) == {100}


def test_process_that_is_gone_and_its_successor(proc: FakeProc) -> None:
    discovery = proc.discovery()
    proc.add(100, TORCHRUN)
    discovery.scan()
    proc.now_s = 10.0
    proc.add(100, {**TORCHRUN, "RANK": "0"}, start_ticks=900)
    assert discovery.scan().ranks[100].identity.rank == 0
    proc.remove(100)
    assert discovery.scan().ranks == {}


def test_zombie_is_not_alive(proc: FakeProc) -> None:
    proc.add(100, TORCHRUN, state="Z")
    assert proc.discovery().scan().ranks == {}
    assert not is_process_alive(100, 500, proc.root)


def test_another_process_with_the_same_id_is_not_the_same(proc: FakeProc) -> None:
    proc.add(100, TORCHRUN, start_ticks=900)
    assert is_process_alive(100, 900, proc.root)
    assert not is_process_alive(100, 500, proc.root)
    assert not is_process_alive(99, None, proc.root)


def test_nothing_but_the_allowed_names_is_kept(proc: FakeProc) -> None:
    proc.add(100, {**TORCHRUN, "AWS_SECRET_ACCESS_KEY": "hunter2"})
    discovery = proc.discovery()
    assert "hunter2" not in repr(discovery.scan())


@pytest.mark.parametrize(
    ("flags", "name", "role"),
    [
        (EventFlag.LEADER, "python", TrainingThreadRole.MAIN),
        (0, "pt_gloo_runloop", TrainingThreadRole.COLLECTIVE),
        (0, "gloo_tcp_loop", TrainingThreadRole.COLLECTIVE),
        (0, "NCCL I/O Recv", TrainingThreadRole.COLLECTIVE),
        (0, "pin_memory", TrainingThreadRole.OTHER),
        (EventFlag.INHERITED | EventFlag.LEADER, "python", TrainingThreadRole.LOADER_WORKER),
    ],
)
def test_roles(flags: int, name: str, role: TrainingThreadRole) -> None:
    assert thread_role(flags, name) is role
