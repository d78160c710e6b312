"""Launchers' environments, and what must not be taken for an identity."""

from __future__ import annotations

import pytest

from rootwalk.instrumentation import ids
from rootwalk.instrumentation.clock import read_host_clock
from rootwalk.instrumentation.identity import is_rank, read_identity

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "TORCHELASTIC_RUN_ID": "run7",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, ("run7", 2, 5, 1, 8)),
        (TORCHRUN | {"ROOTWALK_JOB": "mine"}, ("mine", 2, 5, 1, 8)),
        (
            {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "3", "SLURM_JOB_ID": "9"},
            ("9", 0, 3, 3, 4),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "ROOTWALK_JOB": "m"},
            ("m", 0, 1, 1, 2),
        ),
        ({"ROOTWALK_JOB": "single"}, ("single", 0, 0, 0, 1)),
        ({"ROOTWALK_JOB": "odd", "RANK": "x", "WORLD_SIZE": "-1"}, ("odd", 0, 0, 0, 1)),
        ({"ROOTWALK_JOB": "short", "RANK": "3", "WORLD_SIZE": "2"}, ("short", 0, 3, 3, 4)),
    ],
)
def test_launchers(environment: dict[str, str], expected: tuple[object, ...]) -> None:
    who = read_identity(environment)
    assert (who.job, who.attempt, who.rank, who.local_rank, who.world_size) == expected


def test_default_run_id_of_torchrun_is_no_job() -> None:
    one = read_identity({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    two = read_identity({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "2"})
    assert one.job != two.job
    assert one.job.startswith("job-")


def test_process_group_knows_better() -> None:
    assert read_identity(TORCHRUN, rank=6, world_size=16).rank == 6


def test_is_rank() -> None:
    assert is_rank(TORCHRUN)
    assert not is_rank({"LOCAL_RANK": "0"})


def test_host_id_from_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "a=b,host.id=gpu-12")
    assert read_identity(TORCHRUN).host_id == "gpu-12"


def test_ids_differ_in_every_part() -> None:
    base = ids.phase_id("j", 0, 1, 2, 3)
    others = {
        ids.phase_id("k", 0, 1, 2, 3),
        ids.phase_id("j", 1, 1, 2, 3),
        ids.phase_id("j", 0, 2, 2, 3),
        ids.phase_id("j", 0, 1, 3, 3),
        ids.phase_id("j", 0, 1, 2, 4),
        ids.rank_step_id("j", 0, 1, 2),
        ids.step_id("j", 0, 1),
        ids.stall_id("j", 0, 1, 2, 3, 4),
        ids.collective_id("j", 0, 2, "c", 1, is_p2p=False),
        ids.collective_id("j", 0, 2, "c", 1, is_p2p=True),
        ids.collective_shared_id("j", 0, "c", 1, is_p2p=False),
    }
    assert base not in others
    assert len(others) == 11
    assert len(ids.trace_id("j", 0, 1)) == 16


def test_communicator_depends_on_members() -> None:
    assert ids.communicator_id("0", (0, 1)) != ids.communicator_id("0", (0, 1, 2))


def test_clock_error_is_small() -> None:
    clock = read_host_clock()
    assert 0 <= clock.error_ns < 1_000_000
    assert clock.unix_ns(5) == 5 + clock.offset_ns
