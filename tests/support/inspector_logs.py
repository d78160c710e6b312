"""Logs of NCCL Inspector of made-up jobs: lines in its format, v4.0, and the jobs that would write them.

A job runs in lockstep, as collectives make it: each iteration of each rank is work, then collectives of its groups.

    rank 0  | work |-------- all_reduce --------|        the last to arrive finds all others there:
    rank 1  | work, and a fault |- all_reduce --|        its part is the shortest
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

START_US = 1_800_000_000_000_000
VERSION = "v4.0"


def line(
    *,
    rank: int = 0,
    size: int = 2,
    communicator: str = "0x7f8c496ae9f661",
    name: str = "unknown",
    coll: str = "AllReduce",
    sequence: int = 0,
    size_bytes: int = 1_048_576,
    exec_us: int = 1000,
    source: str | None = "kernel_gpu",
    written_us: int = START_US,
    host: str = "node1",
    pid: int = 100,
    peer: int | None = None,
    version: str = VERSION,
    times: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return one line's object; `times` are those of a verbose log: call and end, Unix us."""
    kind = "coll" if peer is None else "p2p"
    perf: dict[str, Any] = {kind: coll, f"{kind}_sn": sequence}
    if peer is not None:
        perf["p2p_peer"] = peer
    perf |= {f"{kind}_msg_size_bytes": size_bytes, f"{kind}_exec_time_us": exec_us}
    if source is not None:
        perf[f"{kind}_timing_source"] = source
    perf |= {f"{kind}_algobw_gbs": 1.048576, f"{kind}_busbw_gbs": 1.048576}
    if times is not None:
        called, ended = times
        perf["event_trace_sn"] = {f"{kind}_start_sn": 1, f"{kind}_stop_sn": 2, "kernel_events": []}
        perf["event_trace_ts"] = {
            f"{kind}_start_ts": called,
            f"{kind}_stop_ts": called + 5,
            "kernel_events": [
                {
                    "channel_id": channel,
                    "kernel_start_ts": max(ended - exec_us, called),
                    "kernel_stop_ts": ended - channel,
                    "kernel_record_ts": ended - channel,
                }
                for channel in range(2)
            ],
        }
    return {
        "header": {
            "id": communicator,
            "comm_name": name,
            "rank": rank,
            "n_ranks": size,
            "nnodes": 1,
        },
        "metadata": {
            "inspector_output_format_version": version,
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": written_us,
            "hostname": host,
            "pid": pid,
        },
        f"{kind}_perf": perf,
    }


def to_bytes(objects: Iterable[dict[str, Any]]) -> bytes:
    """Return lines as the plugin writes them."""
    return b"".join(json.dumps(item, separators=(",", ":")).encode() + b"\n" for item in objects)


@dataclass(frozen=True)
class Call:
    """A collective of each iteration: after `work_s` of work, in the groups of `layout`."""

    layout: str
    coll: str
    size_bytes: int
    transfer_s: float
    work_s: float


@dataclass(frozen=True)
class Late:
    """Seconds that one rank works longer, from an iteration on."""

    rank: int
    seconds: float
    first: int = 0


@dataclass(frozen=True)
class SlowGroup:
    """How much longer transfers of one group take, of all of the layout without `group`, from an iteration on."""

    layout: str
    ratio: float
    group: int | None = None
    first: int = 0


DDP = (
    Call("world", "AllReduce", 26_214_400, 0.005, 0.060),
    Call("world", "AllReduce", 13_107_200, 0.003, 0.030),
)
TENSOR_DATA = (
    Call("tensor", "AllReduce", 8_388_608, 0.002, 0.020),
    Call("tensor", "AllReduce", 8_388_608, 0.002, 0.020),
    Call("data", "ReduceScatter", 33_554_432, 0.006, 0.010),
    Call("data", "AllGather", 4_194_304, 0.004, 0.040),
)


@dataclass
class InspectorJob:
    """A job of `ranks` ranks, `per_host` a host; tensor groups are neighbours, data groups are across them.

    `jitter` is the standard deviation of work and transfers, relative; `uneven` that of the ranks' usual work.
    """

    ranks: int = 8
    per_host: int = 4
    tensor: int = 2
    calls: tuple[Call, ...] = DDP
    iterations: int = 60
    jitter: float = 0.02
    uneven: float = 0.005
    seed: int = 1
    late: tuple[Late, ...] = ()
    slow: tuple[SlowGroup, ...] = ()
    # Rank at each place of the job: a permutation renames ranks.
    names: tuple[int, ...] = ()
    lines: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def groups(self, layout: str) -> list[list[int]]:
        """Return the members of each group of a layout, as places."""
        if layout == "world":
            return [list(range(self.ranks))]
        if layout == "tensor":
            return [list(range(i, i + self.tensor)) for i in range(0, self.ranks, self.tensor)]
        return [list(range(i, self.ranks, self.tensor)) for i in range(self.tensor)]

    def run(self, *, is_verbose: bool = True, dump_s: float = 0.0005) -> InspectorJob:
        """Let the job run; lines are written every `dump_s`, 0 for only at the end."""
        draw = np.random.default_rng(self.seed)
        usual = draw.normal(1.0, self.uneven, self.ranks)
        now = np.zeros(self.ranks)
        names = self.names or tuple(range(self.ranks))
        counts: dict[tuple[str, int, str], int] = {}
        pending: list[tuple[int, float, dict[str, Any]]] = []
        for k in range(self.iterations):
            extra = np.zeros(self.ranks)
            for late in self.late:
                extra[late.rank] += late.seconds * (k >= late.first)
            for number, call in enumerate(self.calls):
                work = call.work_s * usual * draw.normal(1.0, self.jitter, self.ranks)
                now += np.maximum(work, 0.0) + (extra if number == 0 else 0.0)
                for index, members in enumerate(self.groups(call.layout)):
                    seconds = call.transfer_s * abs(draw.normal(1.0, self.jitter))
                    for slow in self.slow:
                        if slow.layout == call.layout and slow.group in (None, index):
                            seconds *= slow.ratio if k >= slow.first else 1.0
                    key = (call.layout, index, call.coll)
                    counts[key] = counts.get(key, -1) + 1
                    end = now[members].max() + seconds
                    ordered = sorted(members, key=lambda place: names[place])
                    for at, place in enumerate(ordered):
                        called = START_US + round(now[place] * 1e6)
                        ended = START_US + round(end * 1e6)
                        item = line(
                            rank=at,
                            size=len(members),
                            communicator=f"0x{_hash(call.layout, [names[m] for m in ordered])}",
                            name=f"{call.layout}",
                            coll=call.coll,
                            sequence=counts[key],
                            size_bytes=call.size_bytes,
                            exec_us=round((end - now[place]) * 1e6),
                            host=f"node{names[place] // self.per_host}",
                            pid=1000 + names[place] % self.per_host,
                            times=(called, ended) if is_verbose else None,
                        )
                        pending.append((names[place], end, item))
                    now[members] = end
        last = float(now.max())
        for rank, end, item in pending:
            written = last if not dump_s else np.ceil(end / dump_s) * dump_s
            item["metadata"]["dump_timestamp_us"] = START_US + round(written * 1e6) + 10
            self.lines.setdefault(rank, []).append(item)
        return self

    def write(self, folder: Path) -> list[Path]:
        """Write a log a rank, named as the plugin names them; return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for rank, lines in sorted(self.lines.items()):
            first = lines[0]["metadata"]
            path = folder / f"{first['hostname']}-pid{first['pid']}-{rank}.log"
            path.write_bytes(to_bytes(lines))
            paths.append(path)
        return paths


def _hash(layout: str, members: list[int]) -> str:
    # A layout of which every group is found by its members.
    return f"{abs(hash((layout == 'data', layout == 'world', *members))) & 0xFFFFFFFFFFFFFF:x}"
