"""A rank's ring on its way out, with the clock that the ring itself carries."""

from __future__ import annotations

import gc
import mmap
import weakref
from pathlib import Path

from rootwalk.ebpf.events import EventFlag, SchedEvent, ThreadState
from rootwalk.ebpf.partition import RankPartition
from rootwalk.ebpf.rank_stream import RankStream
from rootwalk.ebpf.stalls import ProcessDetails
from rootwalk.ebpf.wait_details import WaitDetails
from rootwalk.instrumentation.ring_layout import CLOCK, CLOCK_OFFSET
from rootwalk.instrumentation.shared_ring import RingReader
from support.rings import Rank
from support.spans import decode_resource_spans

MS = 1_000_000
WAIT = SchedEvent(
    *(12 * MS, 15 * MS, 7, 7, 1, 0, ThreadState.BLOCKED),
    *(EventFlag.LEADER, "t", (0, 0, 0, 0), ()),
)
HOUR_NS = 3600 * 1_000_000_000


def test_steps_and_stalls_keep_the_clock_of_the_ring(tmp_path: Path) -> None:
    # The wall clock was an hour ahead when the rank made its ring; whoever reads it later says the same.
    rank = Rank(tmp_path)
    with rank.writer.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        CLOCK.pack_into(memory, CLOCK_OFFSET, HOUR_NS, 5)
    rank.phase("forward", 10 * MS, 20 * MS)
    rank.phase("optimizer", 20 * MS, 30 * MS)
    rank.phase("forward", 30 * MS, 40 * MS)
    partition = RankPartition("core", 0)
    stream = RankStream(
        RingReader(rank.writer.path), partition, ProcessDetails().read, WaitDetails(), 1
    )
    stream.read()
    stream.take(WAIT)
    batch = stream.batch()
    assert batch is not None
    scopes = decode_resource_spans(batch).scope_spans
    named = [(span.name, span) for scope in scopes for span in scope.spans]
    spans = dict(reversed(named))  # the first of each name
    assert spans["forward"].start_time_unix_nano == HOUR_NS + 10 * MS
    assert spans["stall.blocked"].start_time_unix_nano == HOUR_NS + 12 * MS
    stream.close()
    rank.close()


def test_nothing_of_a_rank_that_has_ended_waits_for_the_collector_of_garbage(
    tmp_path: Path,
) -> None:
    # With little else to do an agent collects all generations once in many minutes: 1 MB a rank until then.
    rank = Rank(tmp_path)
    rank.phase("forward", 10 * MS, 20 * MS)
    rank.phase("optimizer", 20 * MS, 30 * MS)
    stream = RankStream(
        RingReader(rank.writer.path),
        RankPartition("core", 0),
        ProcessDetails().read,
        WaitDetails(),
        1,
    )
    stream.read()
    stream.take(WAIT)
    assert stream.batch() is not None
    parts = [
        weakref.ref(part) for part in (stream, *vars(stream).values()) if _can_be_watched(part)
    ]
    assert len(parts) > 3
    gc.disable()
    try:
        stream.close()
        del stream
        assert [part() for part in parts if part() is not None] == []
    finally:
        gc.enable()
    rank.close()


def _can_be_watched(part: object) -> bool:
    ours = type(part).__module__.startswith("rootwalk.")
    return ours and hasattr(part, "__weakref__")
