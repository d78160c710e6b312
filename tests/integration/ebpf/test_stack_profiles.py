"""Real stacks on their way: as OTLP profiles that keep every rule, into a store, and out of it as pprof."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rootwalk.ebpf.agent_profiles import build_profiles
from rootwalk.ebpf.stacks.records import StackKind
from rootwalk.graph.exporters.formats import Choice, load_exporter
from rootwalk.instrumentation.profiles import build_request
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import reading, save_journal_batch
from support.pprof_files import count_stacks, read_pprof
from support.profile_rules import find_violations
from support.rank_identities import identity
from support.stack_truth import HERE, build_library, open_stacks, run_shapes

pytestmark = [pytest.mark.bpf, pytest.mark.long]

PERIOD_NS = 1_000_000_000 // 99


class Rank:
    """A rank that is in one step and phase all the time."""

    identity = identity(3)

    def context_of(self, _mono_ns: int) -> tuple[bytes, bytes]:
        return b"\1" * 16, b"\2" * 8

    def phase_of(self, _mono_ns: int) -> str:
        return "forward"

    def collective_of(self, _mono_ns: int) -> None:
        return None


def test_stacks_come_out_of_the_store_as_they_were_taken(tmp_path: Path) -> None:
    shapes = [
        str(HERE / "stack_shapes.py"),
        str(build_library(tmp_path)),
        str(tmp_path / "log"),
        "1.5",
    ]
    with open_stacks() as stacks:
        samples, _ = run_shapes(stacks, [sys.executable, *shapes], 120.0)
    profiles = build_profiles(samples, {1: Rank()}, (0, 9_000_000_000), PERIOD_NS)
    body = build_request(profiles, "rootwalk.ebpf", "0")
    assert find_violations(body) == []
    store, out = tmp_path / "job.duckdb", tmp_path / "out.pb.gz"
    save_journal_batch(store, [JournalRecord(Signal.PROFILES, 9, body, 1, 0)])
    with reading(store) as connection:
        load_exporter("pprof").write(connection, Choice(), out)
    text = str(count_stacks(read_pprof(out)))
    assert all(name in text for name in ("Spinner.turn", "shape_inner", "call_native", "nanosleep"))
    on_cpu = sum(one.number for one in samples if one.kind is StackKind.ON_CPU)
    assert on_cpu == sum(one.value for one in profiles[0].samples)
