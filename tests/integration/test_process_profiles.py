"""Profiles as the OpenTelemetry eBPF profiler sends them, beside our own steps: they name the function all the same.

They know containers and processes and no rank. Samples are those of `support.sampled_jobs`, with its attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from rootwalk.graph.diagnosis import diagnose
from support.jobs import Fault, Job, write_job
from support.otlp_messages import key_values
from support.sampled_jobs import Spent, requests_of, save
from support.stores import query_rows
from support.verdicts import check_verdict

FAULT_S, ONSET = 0.060, 40
STEP = "<module>;main;train_step"
WORK = Fault("work", 1, FAULT_S, ONSET)
LOG = Fault("output", 1, FAULT_S, ONSET, phase="optimizer")
USUAL = (
    Spent(f"{STEP};forward;linear@libtorch", on_s=0.030),
    Spent(f"{STEP};backward;run_backward@libtorch", on_s=0.050),
    Spent(f"{STEP};all_reduce;wait@libgloo", off_s=0.010),
)
BACKWARD = Spent(f"{STEP};backward;run_backward@libtorch", FAULT_S, 0.0, (1,), ONSET)
LOGS = f"{STEP};log_step:logs.py:7;write@libc"


@dataclass(frozen=True)
class Profiler:
    """What the profiler knows of rank 1's process, and whose thread waits."""

    host: str = "host-0"
    pid: int = 1001
    executable: str = "python3.11"
    is_main: bool = True

    def retell(self, body: bytes) -> bytes:
        """Return a request of an agent's as the profiler would have sent it."""
        request = ExportProfilesServiceRequest.FromString(body)
        for group in request.resource_profiles:
            (rank,) = [a.value.int_value for a in group.resource.attributes if "rank" in a.key]
            del group.resource.attributes[:]
            told = {"container.id": "f00d", "host.name": self.host}
            group.resource.attributes.extend(key_values(told))
            pid = self.pid if rank == 1 else 1000 + rank
            thread = pid if self.is_main or rank != 1 else 7007
            about = {
                "process.pid": AnyValue(int_value=pid),
                "thread.id": AnyValue(int_value=thread),
                "thread.name": AnyValue(string_value="pt_main_thread"),
                "process.executable.name": AnyValue(string_value=self.executable),
            }
            numbers = [_number(request.dictionary, *one) for one in about.items()]
            for scope in group.scope_profiles:
                for profile in scope.profiles:
                    for sample in profile.samples:
                        sample.attribute_indices.extend(numbers)
        return bytes(request.SerializeToString())


def _number(dictionary: Any, key: str, value: Any) -> int:
    dictionary.string_table.append(key)
    dictionary.attribute_table.add(key_strindex=len(dictionary.string_table) - 1, value=value)
    return len(dictionary.attribute_table) - 1


Explain = Callable[[Fault, Spent, Profiler], tuple[str, list[str]]]


@pytest.fixture
def explain(tmp_path: Path) -> Explain:
    """Returns what the verdict says of a fault, and the frames that explain it."""

    def run(fault: Fault, spent: Spent, profiler: Profiler) -> tuple[str, list[str]]:
        path = tmp_path / "store.duckdb"
        job = Job(ranks=4, steps=60, faults=(fault,))
        write_job(path, job)
        bodies = requests_of(path, job, (*USUAL, spent), None, False)
        save(path, [profiler.retell(body) for body in bodies])
        (finding,) = check_verdict(diagnose(path)).findings
        assert finding.subject.rank == 1
        frames = [row for row in finding.evidence if row.signal.startswith("profile.frame.")]
        for row in frames:
            assert row.query is not None
            assert 1001 in {shown[0] for shown in query_rows(path, row.query)}
        return str(finding.reason), [row.signal for row in frames]

    return run


def test_the_function_of_a_rank_s_process_explains_its_work(explain: Explain) -> None:
    reason, frames = explain(WORK, BACKWARD, Profiler())
    assert reason == "WORK_IMBALANCE"
    assert frames[0] == "profile.frame.on_cpu: backward (train.py)"


def test_what_its_main_thread_waits_in_explains_its_wait(explain: Explain) -> None:
    waiting = Spent(LOGS, 0.0, FAULT_S, (1,), ONSET)
    assert explain(LOG, waiting, Profiler()) == (
        "BLOCKING_LOG",
        ["profile.frame.off_cpu: log_step (logs.py:7)"],
    )


@pytest.mark.parametrize(
    "profiler",
    [
        pytest.param(Profiler(pid=4711), id="another process of the host"),
        pytest.param(Profiler(executable="node_exporter"), id="its pid in another namespace"),
        pytest.param(Profiler(host="host-9"), id="its pid on another host"),
    ],
)
def test_what_is_no_rank_s_process_explains_nothing(explain: Explain, profiler: Profiler) -> None:
    assert explain(WORK, BACKWARD, profiler) == ("WORK_IMBALANCE", [])


def test_what_another_of_its_threads_waits_in_explains_nothing(explain: Explain) -> None:
    waiting = Spent(LOGS, 0.0, FAULT_S, (1,), ONSET)
    assert explain(LOG, waiting, Profiler(is_main=False)) == ("BLOCKING_LOG", [])
