"""Stored profiles as pprof: read by protobuf's own parser, equal sample by sample to what was sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from rootwalk.graph.exporters.formats import Choice, load_exporter
from rootwalk.instrumentation.errors import InsufficientDataError
from rootwalk.otel_receiver.journal import JournalRecord
from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import create_store, reading, save_journal_batch
from support.command import run_rootwalk
from support.jobs import Job, write_job
from support.log_and_profile_messages import profile, profile_request, sample
from support.otlp_messages import RANK_RESOURCE, key_values
from support.pprof_files import Place, StackCounts, count_stacks, read_legacy_cpu, read_pprof
from support.pprof_to_otlp import otlp_from_pprof
from support.stores import query_rows

SAMPLES = Path(__file__).parent.parent / "data" / "pprof_samples"
JOB = ("training.job.id", "j")
# Of the senders of `profile_request`.
SENDER = (("host.name", "alpha"), ("training.job.id", "j1"), ("training.rank", 1))
STEP_IN_MAIN = (Place(None, 0, (("step", "", 9),)), Place(None, 0, (("main", "", 3),)))


def save(store: Path, *bodies: bytes) -> None:
    records = [JournalRecord(Signal.PROFILES, 9, body, 1, n) for n, body in enumerate(bodies)]
    save_journal_batch(store, records)


def export(store: Path, choice: Choice | None = None) -> StackCounts:
    path = store.with_name("out.pb.gz")
    with reading(store) as connection:
        load_exporter("pprof").write(connection, choice or Choice(), path)
    return count_stacks(read_pprof(path))


def rank_request(rank: int, *profiles: Any) -> bytes:
    return profile_request(profiles, key_values(RANK_RESOURCE | {"training.rank": rank}))


def read_sample(name: str) -> Any:
    read = read_pprof if name.endswith(".gz") else read_legacy_cpu
    return read(SAMPLES / name)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "job.duckdb"


@pytest.mark.parametrize(
    ("name", "samples"),
    [("cppbench.cpu", 50), ("go.crc32.cpu", 7), ("gobench.cpu", 153), ("large_400.cpu.gz", 400)],
)
def test_public_profiles_come_back_sample_by_sample(store: Path, name: str, samples: int) -> None:
    message = read_sample(name)
    assert len(message.sample) == samples
    sent = count_stacks(message)
    save(store, otlp_from_pprof(message))

    found = export(store)

    # Counts went in; nanoseconds, the second column of all of them, are counts times the period again.
    assert (found.types, found.period) == (sent.types, sent.period)
    assert found.samples == {
        (stack, (*labels, JOB), column): value
        for (stack, labels, column), value in sent.samples.items()
    }


def test_nanoseconds_stay_one_column(store: Path) -> None:
    message = read_sample("cppbench.cpu")
    save(store, otlp_from_pprof(message, column=1))
    found = export(store)
    assert found.types == (("cpu", "nanoseconds"),)
    assert sum(found.samples.values()) == 712 * 10_000_000


def test_ranks_hosts_and_attributes_are_labels(store: Path) -> None:
    body = profile_request([profile([sample(1, values=[3], attribute_indices=[1], link_index=1)])])
    save(store, body)
    labels = (
        *SENDER[:1],
        ("span_id", "0000000000000005"),
        ("thread.name", "loader"),
        ("trace_id", "00000000000000000000000000000007"),
        *SENDER[1:],
    )
    assert export(store).samples == {
        (STEP_IN_MAIN, tuple(sorted(labels)), 0): 3,
        (STEP_IN_MAIN, tuple(sorted(labels)), 1): 30,
    }


def test_inlined_functions_stay_one_place_innermost_first(store: Path) -> None:
    save(store, profile_request([profile([sample(2, values=[1]), sample(3, values=[1])])]))
    stacks = {stack for stack, _, _ in export(store).samples}
    main = STEP_IN_MAIN[1]
    assert stacks == {
        (Place(None, 0, (("memcpy", "", 1), ("step", "", 8))), main),
        (Place((0, 0, 0, "/usr/lib/libx.so"), 0x2F, ()), main),
    }


def test_equal_samples_of_all_profiles_are_one_and_periods_may_differ(store: Path) -> None:
    save(
        store,
        rank_request(1, profile([sample(1, values=[3])], period=10)),
        rank_request(1, profile([sample(1, values=[4])], period=20)),
    )
    found = export(store)
    assert found.types == (("samples", "count"), ("cpu", "nanoseconds"))
    assert found.samples == {
        (STEP_IN_MAIN, SENDER, 0): 7,
        (STEP_IN_MAIN, SENDER, 1): 3 * 10 + 4 * 20,
    }
    assert found.period == ("cpu", "nanoseconds", 0)


def test_times_without_values_count_one_each(store: Path) -> None:
    save(
        store, profile_request([profile([sample(1, timestamps_unix_nano=[1001, 1002])], period=0)])
    )
    assert export(store).samples == {(STEP_IN_MAIN, SENDER, 0): 2}


def test_kinds_have_a_column_each(store: Path) -> None:
    kind: Any = profile([], period=0).sample_type
    kind.type_strindex, kind.unit_strindex = 6, 7  # cpu, nanoseconds
    timed = profile([sample(1, values=[500])], period=0, sample_type=kind)
    save(store, profile_request([profile([sample(1, values=[3])], period=0), timed]))
    found = export(store)
    assert found.types == (("samples", "count"), ("cpu", "nanoseconds"))
    assert found.samples == {(STEP_IN_MAIN, SENDER, 0): 3, (STEP_IN_MAIN, SENDER, 1): 500}


def test_ranks_and_jobs_are_chosen(store: Path) -> None:
    save(store, *(rank_request(rank, profile([sample(1, values=[rank])])) for rank in (1, 2, 3)))
    chosen = export(store, Choice(job="j1", ranks=[1, 3]))
    assert sum(value for key, value in chosen.samples.items() if key[2] == 0) == 1 + 3
    with pytest.raises(InsufficientDataError, match="saw 0 profiles and no sample; needs one"):
        export(store, Choice(job="another"))


def test_steps_are_chosen_by_the_span_that_a_sample_links_to(store: Path) -> None:
    write_job(store, Job(ranks=2, steps=6))
    rows = query_rows(
        store, "SELECT trace_id, span_id FROM steps WHERE rank = 1 AND step IN (3, 4)"
    )
    bodies = []
    for trace_id, span_id in rows:
        request = rank_request(1, profile([sample(1, values=[1], link_index=1)]))
        ids = bytes(15) + b"\x07", bytes(7) + b"\x05"
        bodies.append(
            request.replace(ids[0], bytes.fromhex(trace_id)).replace(ids[1], bytes.fromhex(span_id))
        )
    save(store, *bodies, rank_request(1, profile([sample(1, values=[1])])))

    def steps(choice: Choice) -> list[str]:
        labels = [dict(key[1]) for key in export(store, choice).samples if key[2] == 0]
        return sorted(str(one.get("training.step.number")) for one in labels)

    assert steps(Choice()) == ["3", "4", "None"]
    assert steps(Choice(steps=(4, 9))) == ["4"]
    with pytest.raises(InsufficientDataError, match="no sample of these steps"):
        export(store, Choice(steps=(5, 9)))


def test_a_dictionary_that_is_gone_or_wrong_loses_names_only(store: Path) -> None:
    save(store, profile_request([profile([sample(1, values=[3]), sample(2, values=[4])])]))
    with duckdb.connect(str(store)) as connection:
        connection.execute("DELETE FROM profile_dictionaries")
    assert export(store).samples == {((), SENDER, 0): 7, ((), SENDER, 1): 70}


def test_the_command(tmp_path: Path) -> None:
    save(tmp_path / "job.duckdb", profile_request([profile([sample(1, values=[3])])]))
    create_store(tmp_path / "empty.duckdb")
    options = ("job.duckdb", "--format", "pprof", "--output")

    good = run_rootwalk("export", *options, "out.pb.gz", cwd=tmp_path)
    again = run_rootwalk("export", *options, "out.pb.gz", cwd=tmp_path)
    forced = run_rootwalk("export", *options, "out.pb.gz", "--force", cwd=tmp_path)
    nowhere = run_rootwalk("export", *options, "gone/out.pb.gz", cwd=tmp_path)
    empty = run_rootwalk("export", "empty.duckdb", *options[1:], "no.pb.gz", cwd=tmp_path)

    assert (good.returncode, good.stdout) == (0, "1 sample of 1 profile into out.pb.gz\n")
    assert (again.returncode, again.stdout) == (2, "")
    assert 'cannot write "out.pb.gz": saw a file there; needs a new one' in again.stderr
    assert (forced.returncode, forced.stderr) == (0, "")
    assert nowhere.returncode == 1
    assert 'cannot write "gone/out.pb.gz": No such file' in nowhere.stderr
    assert empty.returncode == 1
    assert "cannot export: saw 0 profiles and no sample" in empty.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("empty.duckdb", "job.duckdb", "out.pb.gz"),
    ]
