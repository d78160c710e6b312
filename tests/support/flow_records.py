"""Communication records as a store would give them, straight from a made-up job: for tests of many jobs."""

from __future__ import annotations

import numpy as np

from rootwalk.graph.columns import RankRow
from rootwalk.graph.flows.rows import FlowRows
from rootwalk.graph.flows.store import FlowRecords
from rootwalk.graph.job_choice import JobKey
from support.inspector_logs import START_US, InspectorJob


def records_of(job: InspectorJob) -> FlowRecords:
    """Return the records of a job that has run; ranks are those of its names."""
    found = []
    for rank, lines in sorted(job.lines.items()):
        for number, item in enumerate(lines):
            header, perf = item["header"], item["coll_perf"]
            times = perf.get("event_trace_ts")
            end_us = item["metadata"]["dump_timestamp_us"]
            if times is not None:
                end_us = times["kernel_events"][0]["kernel_stop_ts"]
            found.append(
                (
                    *(
                        rank,
                        header["id"],
                        header["id"] + perf["coll"],
                        perf["coll_sn"],
                        perf["coll"],
                    ),
                    *(header["n_ranks"], perf["coll_msg_size_bytes"], perf["coll_exec_time_us"]),
                    # Lines of one microsecond keep their order, as the importer does it.
                    *(end_us * 1000 + (0 if times else number % 1000), times is not None),
                )
            )
    columns = list(zip(*found, strict=True))
    numbers = [np.unique(np.array(columns[i]), return_inverse=True) for i in (1, 2, 4)]
    (names, communicator), (_, series), (operations, operation) = numbers
    ranks = sorted(job.lines)
    hosts = {rank: lines[0]["metadata"]["hostname"] for rank, lines in job.lines.items()}
    return FlowRecords(
        key=JobKey("made", 0, job.ranks),
        ranks=tuple(RankRow(rank, hosts[rank], hosts[rank], 1000 + rank) for rank in ranks),
        rows=FlowRows(
            rank=np.array(columns[0], dtype=np.int64),
            communicator=communicator.reshape(-1),
            series=series.reshape(-1),
            sequence=np.array(columns[3], dtype=np.int64),
            operation=operation.reshape(-1),
            size=np.array(columns[5], dtype=np.int64),
            size_bytes=np.array(columns[6], dtype=np.int64),
            duration_s=np.array(columns[7]) / 1e6,
            end_s=(np.array(columns[8], dtype=np.int64) - START_US * 1000) / 1e9,
            is_end_known=np.array(columns[9], dtype=np.bool_),
            is_message=np.zeros(len(found), dtype=np.bool_),
            peer=np.full(len(found), -1, dtype=np.int64),
            operations=tuple(str(name) for name in operations),
            communicators=tuple(str(name) for name in names),
            origin_unix_ns=START_US * 1000,
        ),
        labels=tuple(str(name) for name in names),
        quality=(),
        doubled=frozenset(),
    )
