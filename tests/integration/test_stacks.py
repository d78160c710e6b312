"""Which function a slow rank spends its time in: synthetic jobs with profiles, through a real store, to the verdict.

Every rank computes, waits and logs; the fault adds its 60 ms a step to one stack of rank 1 from step 40 on. Samples
are drawn at 99 Hz, so that counts scatter as they do in life.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Cost, EvidenceView, Finding
from rootwalk.graph.render.markdown import render_markdown
from rootwalk.graph.render.text import render_text
from rootwalk.graph.verdict import to_json
from support.jobs import Fault, Job, write_job
from support.pages import Page, read_page
from support.program_cases import PROGRAM_CASES, add_told
from support.sampled_jobs import Spent, requests_of, save, write_sampled_job
from support.stores import query_rows
from support.verdicts import check_verdict

FAULT_S, ONSET = 0.060, 40
COMPILED_FROM = 60
STEP = "<module>;main;train_step"
THREAD = "_bootstrap:threading.py:1;run:threading.py:9"
# What all ranks do in every step, and what waits for the others or for nothing at all.
USUAL = (
    Spent(f"{STEP};forward;linear@libtorch", on_s=0.030),
    Spent(f"{STEP};backward;run_backward@libtorch", on_s=0.050),
    Spent(f"{STEP};log_step:logs.py:7;write@libc", on_s=0.001, off_s=0.0005),
    Spent(f"{STEP};step:adam.py:3", on_s=0.018),
    Spent(f"{STEP};all_reduce;wait@libgloo", off_s=0.010),
    Spent(f"{THREAD};idle_loop;futex_wait@libc", off_s=0.110),
    # Rank 0 writes what the others do not, as it always did.
    Spent(f"{STEP};save_metrics", on_s=0.040, ranks=(0,)),
)
WATCHED = Job(ranks=4, steps=60, loader_s=0.020, gc_s=0.001)


def slow(stack: str, on_s: float = 0.0, off_s: float = 0.0, rank: int = 1) -> Spent:
    return Spent(stack, on_s, off_s, (rank,), ONSET)


def frames_of(finding: Finding) -> list[EvidenceView]:
    return [row for row in finding.evidence if row.signal.startswith("profile.frame.")]


FAULTS = {
    "gc": (
        Fault("gc", 1, FAULT_S, ONSET, phase="forward"),
        (slow(f"{STEP};forward;gc_collect_main@python3;deduce_unreachable@python3", FAULT_S),),
        "PY_GC",
        "profile.frame.on_cpu: forward (train.py) > gc_collect_main (python3)",
    ),
    "interpreter lock": (
        Fault("gil", 1, FAULT_S, ONSET, phase="forward"),
        (
            slow(f"{THREAD};compress:metrics.py:31;long_add@python3", FAULT_S),
            slow(f"{STEP};forward;take_gil@python3", off_s=FAULT_S),
        ),
        "PY_GIL",
        "profile.frame.on_cpu: compress (metrics.py:31)",
    ),
    "costly decode": (
        Fault("decode", 1, FAULT_S, ONSET, phase="data_load"),
        (slow("worker_loop:worker.py:2;fetch;decode_sample:shards.py:37", FAULT_S),),
        "DATALOADER_CPU",
        "profile.frame.on_cpu: decode_sample (shards.py:37)",
    ),
    "blocking log": (
        Fault("output", 1, FAULT_S, ONSET, phase="optimizer"),
        (
            slow(
                f"{STEP};log_step:logs.py:7;info:__init__.py:1;emit:__init__.py:2;write@libc;pipe_write@vmlinux",
                off_s=FAULT_S,
            ),
        ),
        "BLOCKING_LOG",
        "profile.frame.off_cpu: log_step (logs.py:7)",
    ),
    "kernel lock": (
        Fault("map_lock", 1, FAULT_S, ONSET, phase="forward"),
        (
            slow(
                f"{STEP};forward;load_shard:shards.py:9;mmap@libc;rwsem_down_write@vmlinux",
                off_s=FAULT_S,
            ),
        ),
        "KERNEL_LOCK",
        "profile.frame.off_cpu: load_shard (shards.py:9)",
    ),
    "more work": (
        Fault("work", 1, FAULT_S, ONSET),
        (slow(f"{STEP};backward;run_backward@libtorch", FAULT_S),),
        "WORK_IMBALANCE",
        "profile.frame.on_cpu: backward (train.py)",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("has_links", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_first_frame_is_where_the_fault_is(tmp_path: Path, name: str, has_links: bool) -> None:
    fault, spent, reason, signal = FAULTS[name]
    job = replace(WATCHED, faults=(fault,))
    path = write_sampled_job(
        tmp_path / "s.duckdb", job, (*USUAL, *spent), noise=3, has_links=has_links
    )
    verdict = check_verdict(diagnose(path))
    (finding,) = verdict.findings
    assert (finding.reason, finding.subject.rank) == (reason, 1)
    first = frames_of(finding)[0]
    assert first.signal == signal
    assert first.value is not None
    assert first.peers is not None
    # 20 steps of 60 ms at 99 Hz are 119 samples: a standard deviation is 9 %.
    assert first.value - first.peers == pytest.approx(FAULT_S, rel=0.25)
    assert not any("save_metrics" in row.signal for row in frames_of(finding))

    function = first.signal.partition(": ")[2]
    assert "\nstack     " + function.split(" > ")[0] in render_text(verdict)
    assert "- **stack** " in render_markdown(verdict)
    # The query that the evidence names reads the profiles: only stacks with that function.
    rows = query_rows(path, first.query or "")
    assert {row[0] for row in rows} <= {0, 1, 2, 3}
    assert all(function.split(" > ")[-1].split()[0] in row[3] for row in rows)
    assert rows[0][0] == 1


def test_a_compilation_is_told_by_what_is_compiled(tmp_path: Path) -> None:
    """A compilation is known by its spans; its stacks say which code had it, and not which part of the compiler ran."""
    job = replace(WATCHED, steps=100, faults=(Fault("work", 1, FAULT_S, COMPILED_FROM),))
    compiling = (
        f"{STEP};forward;embed:words.py:3;compile_fx:compile_fx.py:1:torch;codegen:graph.py:5:torch"
    )
    spent = Spent(compiling, FAULT_S, 0.0, (1,), COMPILED_FROM)
    path = write_sampled_job(tmp_path / "s.duckdb", job, (*USUAL, spent), noise=3)
    add_told(
        path,
        PROGRAM_CASES["compile"].tell,
        lambda rank, step: float(rank == 1 and step >= COMPILED_FROM),
    )
    (finding,) = check_verdict(diagnose(path)).findings
    assert (finding.reason, finding.subject.rank) == ("COMPILE", 1)
    first = frames_of(finding)[0]
    assert first.signal == "profile.frame.on_cpu: embed (words.py:3)"
    assert first.value == pytest.approx(FAULT_S, rel=0.25)


def test_a_frame_that_the_peers_have_as_well_explains_nothing(tmp_path: Path) -> None:
    # Near miss: the same function got slower everywhere, and rank 1 lost its time in what nobody sampled.
    fault, _, reason, _ = FAULTS["blocking log"]
    everywhere = Spent(f"{STEP};flush:files.py:5;write@libc", off_s=FAULT_S, first_step=ONSET)
    path = write_sampled_job(
        tmp_path / "s.duckdb", replace(WATCHED, faults=(fault,)), (*USUAL, everywhere), noise=3
    )
    verdict = check_verdict(diagnose(path))
    (finding,) = verdict.findings
    assert finding.reason == reason
    assert frames_of(finding) == []
    assert "\nstack " not in render_text(verdict)


def test_what_others_wait_for_explains_nothing(tmp_path: Path) -> None:
    # The reader of the slow pipe is a process of the rank, and waits all the time; so do more loader workers.
    fault, spent, reason, signal = FAULTS["blocking log"]
    mine = tuple(replace(one, role="main") for one in spent)
    others = (
        replace(slow("<module>;nap:reader.py:3;nanosleep@libc", off_s=0.2), role="loader_worker"),
        replace(slow("worker_loop:worker.py:2;get;poll@libc", off_s=0.2), role="other"),
    )
    path = write_sampled_job(
        tmp_path / "s.duckdb",
        replace(WATCHED, faults=(fault,)),
        (*USUAL, *mine, *others),
        noise=3,
    )
    (finding,) = check_verdict(diagnose(path)).findings
    assert finding.reason == reason
    assert [row.signal for row in frames_of(finding)] == [signal]


def test_what_the_rank_always_had_explains_nothing(tmp_path: Path) -> None:
    # Near miss: rank 0 always writes metrics that its peers do not; now it decodes more, where nobody samples.
    fault = Fault("decode", 0, FAULT_S, ONSET, phase="data_load")
    path = write_sampled_job(
        tmp_path / "s.duckdb", replace(WATCHED, faults=(fault,)), USUAL, noise=3
    )
    (finding,) = diagnose(path).findings
    assert (finding.reason, finding.subject.rank) == ("DATALOADER_CPU", 0)
    assert frames_of(finding) == []


def test_a_rank_alone_is_held_against_itself_before(tmp_path: Path) -> None:
    fault, spent, reason, signal = FAULTS["blocking log"]
    alone = Job(ranks=1, steps=60, faults=(replace(fault, rank=0),))
    mine = tuple(replace(one, ranks=(0,)) for one in spent)
    path = write_sampled_job(tmp_path / "s.duckdb", alone, (*USUAL, *mine), noise=3)
    (finding,) = check_verdict(diagnose(path)).findings
    assert finding.reason == reason
    (first,) = frames_of(finding)[:1]
    assert (first.signal, first.peers) == (signal, None)
    assert first.history == pytest.approx(0.0005, abs=0.0002)


def told(path: Path) -> str:
    """Return the verdict without what it cost."""
    return to_json(replace(diagnose(path), cost=Cost()))


@pytest.mark.long
def test_without_a_profile_nothing_changes(tmp_path: Path) -> None:
    fault, *_ = FAULTS["gc"]
    job = replace(WATCHED, faults=(fault,))
    plain = told(write_job(tmp_path / "plain.duckdb", job))
    # Profiles of peers alone, of another job, and of a kind that counts no time, say nothing of rank 1.
    others = write_job(tmp_path / "others.duckdb", job)
    spent = [slow(f"{STEP};hog", FAULT_S, rank=rank) for rank in (0, 2, 3)]
    bodies = list(requests_of(others, replace(job, ranks=1), spent, None, False))
    bodies += requests_of(others, replace(job, name="j2"), [slow("hog", FAULT_S)], None, False)
    save(others, bodies)
    assert told(others) == plain
    assert "profile.frame" not in plain


def test_the_same_store_gives_the_same_verdict(tmp_path: Path) -> None:
    fault, spent, *_ = FAULTS["interpreter lock"]
    job = replace(WATCHED, faults=(fault,))
    path = write_sampled_job(tmp_path / "s.duckdb", job, (*USUAL, *spent), noise=5)
    first = told(path)
    assert told(path) == first
    (finding,) = json.loads(first)["findings"]
    # Where the lock was held, and where it was waited for.
    kinds = {row["signal"].split(":")[0] for row in finding["evidence"] if ": " in row["signal"]}
    assert kinds == {"profile.frame.on_cpu", "profile.frame.off_cpu"}
    cited = query_rows(
        path, "SELECT count(*) FROM evidence WHERE starts_with(id, 'profile.frame/')"
    )
    assert cited == [(2,)]


EVIL = "</text><script>alert(1)</script>\x1b[31m\u202e';DROP TABLE spans--\x00"


def test_a_hostile_name_stays_a_name(tmp_path: Path) -> None:
    fault, *_ = FAULTS["blocking log"]
    spent = slow(f"{STEP};{EVIL.replace(';', '')}", off_s=FAULT_S)
    job = replace(WATCHED, faults=(fault,))
    path = write_sampled_job(tmp_path / "s.duckdb", job, (*USUAL, spent), noise=3)
    verdict = check_verdict(diagnose(path))
    (first, *_) = frames_of(verdict.findings[0])
    assert "<script>" in first.signal
    assert query_rows(path, first.query or "")
    assert query_rows(path, "SELECT count(*) > 0 FROM spans") == [(True,)]
    text = render_text(verdict)
    assert not set("\x1b\x00\u202e") & set(text)
    assert "\\<script\\>" in render_markdown(verdict)


def test_the_page_draws_the_rank_against_its_peers(tmp_path: Path) -> None:
    fault, spent, *_ = FAULTS["interpreter lock"]
    hog = replace(spent[0], stack=f"{spent[0].stack};{EVIL.replace(';', '')}")
    job = replace(WATCHED, faults=(fault,))
    path = write_sampled_job(tmp_path / "s.duckdb", job, (*USUAL, hog, spent[1]), noise=3)
    report, text = read_page(path)
    page = Page(text)
    assert [(flame.rank, str(flame.kind), flame.peers) for flame in report.flames] == [
        (1, "on_cpu", (0, 2, 3)),
        (1, "off_cpu", (0, 2, 3)),
    ]
    assert (page.references, page.count("script")) == ([], 2)
    assert not set("\x1b\x00\u202e") & set(text)
    # Boxes by colour: what all ranks do as much, and what only this one does, which is marked.
    classes = [a["class"] for tag, a in page.elements if tag == "rect" and "class" in a]
    assert classes.count("f-named") >= 2
    assert {"f-same", "f-more2"} <= set(classes)
    assert re.search(r"compress \(metrics.py:31\): 0.0\d\d s a step, its peers 0.000 s", page.text)
    assert re.search(r"backward \(train.py\): 0.0\d\d s a step, its peers 0.0[45]", page.text)
    assert "Rank 1 off the CPU" in page.text


def test_a_page_without_profiles_has_no_such_picture(tmp_path: Path) -> None:
    job = replace(WATCHED, faults=(FAULTS["gc"][0],))
    report, text = read_page(write_job(tmp_path / "s.duckdb", job))
    assert report.flames == ()
    assert "In which functions" not in text


def test_profiles_that_nobody_should_trust_cost_no_verdict(tmp_path: Path) -> None:
    fault, *_ = FAULTS["blocking log"]
    job = replace(WATCHED, faults=(fault,))
    path = write_job(tmp_path / "s.duckdb", job)
    deep = slow(";".join(["walk"] * 1000), off_s=FAULT_S)
    bodies = []
    for body in requests_of(path, job, (*USUAL, deep, slow(";;", off_s=0.02)), None, False):
        request = ExportProfilesServiceRequest.FromString(body)
        for n, sender in enumerate(request.resource_profiles):
            for profile in (p for scope in sender.scope_profiles for p in scope.profiles):
                profile.samples.add(stack_index=2_000_000_000, values=[2**62] if n == 3 else [1])
                profile.samples.add(
                    stack_index=1, link_index=77, attribute_indices=[99], values=[-5]
                )
        bodies.append(request.SerializeToString())
    # Times at the ends of what fits, lengths of nothing and of centuries.
    hostile = ExportProfilesServiceRequest.FromString(bodies[0])
    for n, sender in enumerate(hostile.resource_profiles):
        for profile in (p for scope in sender.scope_profiles for p in scope.profiles):
            profile.time_unix_nano, profile.duration_nano = [
                (2**63 - 1, 2**63 - 1),
                (0, 2**64 - 1),
                (2**64 - 1, 0),
                (1, 1),
            ][n % 4]
            profile.period = 2**63 - 1
    save(path, [*bodies, hostile.SerializeToString()])
    verdict = check_verdict(diagnose(path))
    (finding,) = verdict.findings
    assert frames_of(finding)[0].signal == "profile.frame.off_cpu: walk (train.py)"
    report, _ = read_page(path)
    assert [flame.flame.rows <= 40 for flame in report.flames] == [True]
