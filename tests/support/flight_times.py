"""Flight Recorder dumps with NCCL's timing, of made-up jobs that are slow and end: none was recorded on a GPU.

In the documented format (2.10, FlightRecorderDetail.hpp of PyTorch 2.15): `duration_ms` is the device's, the times at
which the host found out are the watchdog's, which looks every 100 ms, and JSON writes 0 for a time that is not known.
The jobs are those of NCCL Inspector's tests, told by another witness.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.inspector_logs import InspectorJob

WATCHDOG_S = 0.1
# NCCL's names as PyTorch's recorder spells them.
NAMES = {
    "AllReduce": "all_reduce",
    "AllGather": "_all_gather_base",
    "ReduceScatter": "_reduce_scatter_base",
}


def timed_dumps(
    job: InspectorJob,
    *,
    apart_s: Mapping[int, float] | None = None,
    ring: Mapping[int, int] | None = None,
    untimed: frozenset[int] = frozenset(),
) -> dict[int, dict[str, Any]]:
    """Return the dump of each rank of a job that has run.

    Args:
        job: The job.
        apart_s: How far a rank's clock is ahead, s.
        ring: Entries that a rank's ring holds, the last ones.
        untimed: Ranks whose process group was not told to time.
    """
    members: dict[str, set[int]] = {}
    for rank, lines in job.lines.items():
        for item in lines:
            members.setdefault(item["header"]["id"], set()).add(rank)
    names = {communicator: str(place) for place, communicator in enumerate(sorted(members))}
    dumps = {}
    for rank, lines in sorted(job.lines.items()):
        shift_ns = round((apart_s or {}).get(rank, 0.0) * 1e9)
        counts: dict[str, int] = {}
        entries = []
        for number, item in enumerate(lines):
            communicator = item["header"]["id"]
            counts[communicator] = counts.get(communicator, 0) + 1
            entry = _entry(item, number, shift_ns, is_timed=rank not in untimed)
            entry["process_group"] = [names[communicator], item["header"]["comm_name"]]
            entry["pg_id"] = int(names[communicator])
            entry["collective_seq_id"] = counts[communicator]
            entries.append(entry)
        own = {names[one]: ranks for one, ranks in members.items() if rank in ranks}
        dumps[rank] = {
            "version": "2.10",
            "comm_lib_version": "2.30.7",
            "pg_config": {
                name: {"name": name, "desc": "group", "ranks": str(sorted(ranks))}
                for name, ranks in own.items()
            },
            "pg_status": {},
            "entries": entries[-(ring or {}).get(rank, len(entries)) :],
        }
    return dumps


def _entry(item: dict[str, Any], number: int, shift_ns: int, *, is_timed: bool) -> dict[str, Any]:
    perf = item["coll_perf"]
    exec_us = perf["coll_exec_time_us"]
    called_us = perf["event_trace_ts"]["coll_start_ts"]
    looks = math.ceil((called_us + exec_us) / 1e6 / WATCHDOG_S)
    found_ns = round(looks * WATCHDOG_S * 1e9) + number + shift_ns
    entry = {
        "record_id": number,
        "thread_id": "139957841156992",
        "thread_name": "pt_main_thread",
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": f"nccl:{NAMES[perf['coll']]}",
        "time_created_ns": called_us * 1000 + shift_ns,
        "input_sizes": [[perf["coll_msg_size_bytes"] // 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[perf["coll_msg_size_bytes"] // 4]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": found_ns,
        "time_discovered_completed_ns": found_ns,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    return {**entry, "duration_ms": exec_us / 1e3} if is_timed else entry


def write_dumps(
    dumps: Mapping[int, dict[str, Any]], folder: Path, *, is_json: bool = False
) -> list[Path]:
    """Write dumps as PyTorch names them; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, dump in dumps.items():
        path = folder / f"nccl_trace_rank_{rank}"
        text = json.dumps(dump).encode() if is_json else pickle.dumps(dump, protocol=2)
        path.write_bytes(text)
        paths.append(path)
    return paths
