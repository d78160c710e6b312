"""Flight Recorder dumps of made-up jobs, in PyTorch's format: what each rank has called, and what of it has ended."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.importers.flight_recorder_format import parse_dump

START_NS = 1_700_000_000_000_000_000
# Collectives that every member of a group has finished before a test begins.
WARM_UP = 3


@dataclass(slots=True)
class FlightJob:
    """A job of `ranks` ranks; `groups` are the members by name, names are numbers as PyTorch's are."""

    ranks: int
    groups: Mapping[str, Iterable[int]]
    entries: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    collectives: dict[tuple[int, str], int] = field(default_factory=dict)
    messages: dict[tuple[int, str], int] = field(default_factory=dict)
    order: int = 0

    def call(
        self,
        rank: int,
        group: str,
        operation: str = "all_reduce",
        *,
        elements: int = 1024,
        state: str = "scheduled",
        frame: tuple[str, int] | None = None,
    ) -> None:
        """Let a rank call a collective."""
        key = (rank, group)
        self.collectives[key] = self.collectives.get(key, WARM_UP) + 1
        self._enter(rank, group, f"nccl:{operation}", elements, state, False, frame)

    def call_all(self, ranks: Iterable[int], group: str, operation: str = "all_reduce") -> None:
        """Let some ranks call the same collective."""
        for rank in ranks:
            self.call(rank, group, operation)

    def finish(self, ranks: Iterable[int], group: str) -> None:
        """Let the first unfinished call of each rank in a group end."""
        for rank in ranks:
            unfinished = [e for e in self.entries[rank] if e["process_group"][0] == group]
            next(e for e in unfinished if e["state"] != "completed")["state"] = "completed"

    def send(self, rank: int, group: str, peer: int, *, in_batch: bool = False) -> None:
        """Let a rank call a send."""
        self._message(rank, group, peer, "send", "->", in_batch)

    def receive(self, rank: int, group: str, peer: int, *, in_batch: bool = False) -> None:
        """Let a rank call a receive."""
        self._message(rank, group, peer, "recv", "<-", in_batch)

    def _message(
        self, rank: int, group: str, peer: int, word: str, arrow: str, in_batch: bool
    ) -> None:
        members = list(self.groups[group])
        key = (rank, group)
        self.messages[key] = self.messages.get(key, 0) + (0 if in_batch else 1)
        name = f"nccl:{word} {members.index(rank)}{arrow}{members.index(peer)}"
        self._enter(rank, group, name, 64, "scheduled", True, None)

    def _enter(
        self,
        rank: int,
        group: str,
        name: str,
        elements: int,
        state: str,
        is_message: bool,
        frame: tuple[str, int] | None,
    ) -> None:
        self.order += 1
        self.entries.setdefault(rank, []).append(
            {
                "frames": [{"name": frame[0], "filename": "/home/user/train.py", "line": frame[1]}]
                if frame
                else [],
                "record_id": self.order,
                "pg_id": self._own_groups(rank).index(group),
                "process_group": (group, f"GROUP_{group}"),
                "collective_seq_id": self.collectives.get((rank, group), WARM_UP),
                "p2p_seq_id": self.messages.get((rank, group), 0),
                "op_id": self.order,
                "profiling_name": name,
                "time_created_ns": START_NS + self.order * 1_000,
                "input_sizes": [[elements]],
                "input_dtypes": ["Float"],
                "output_sizes": [[elements]],
                "output_dtypes": ["Float"],
                "state": state,
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": False,
                "timeout_ms": 600_000,
                "is_p2p": is_message,
            }
        )

    def _own_groups(self, rank: int) -> list[str]:
        return sorted((name for name in self.groups if rank in self.groups[name]), key=int)

    def dump(self, rank: int, *, has_history: bool = False) -> dict[str, Any]:
        """Return the dump of a rank: what it has not finished, as `onlyActive` dumps have it, or all its calls."""
        own = self._own_groups(rank)
        entries = self.entries.get(rank, [])
        last: dict[str, int] = {}
        for group in own:
            last[group] = self.collectives.get((rank, group), WARM_UP)
            mine = [e for e in entries if e["process_group"][0] == group]
            if mine and mine[-1]["is_p2p"]:
                last[group] = mine[-1]["p2p_seq_id"]
        return {
            "version": "2.9",
            "nccl_version": "2.27.3",
            "pg_config": {
                name: {
                    "name": name,
                    "desc": f"GROUP_{name}",
                    "ranks": str(list(self.groups[name])),
                }
                for name in own
            },
            "pg_status": {
                str(index): {
                    "last_enqueued_collective": last[name],
                    "last_started_collective": -1,
                    "last_completed_collective": -1,
                }
                for index, name in enumerate(own)
            },
            "entries": [e for e in entries if has_history or e["state"] != "completed"],
        }

    def gloo_dump(self, rank: int) -> dict[str, Any]:
        """Return the dump of a rank as gloo's are (PyTorch 2.15): all calls, and the places of its last group only."""
        dump = self.dump(rank, has_history=True)
        entries = []
        for entry in dump["entries"]:
            name, description = entry["process_group"]
            description = "default_pg" if name == "0" else description
            is_over = entry["state"] == "completed"
            entries.append(
                {
                    **entry,
                    "process_group": (name, description),
                    "profiling_name": entry["profiling_name"].replace("nccl:", "gloo:"),
                    "state": "scheduled",
                    "retired": is_over,
                }
            )
        called = {str(entry["pg_id"]) for entry in entries}
        last = list(self.groups[self._own_groups(rank)[-1]])
        config = {"name": "", "desc": "", "ranks": str(list(range(len(last))))}
        status = {key: value for key, value in dump["pg_status"].items() if key in called}
        dump |= {"version": "2.10", "entries": entries, "pg_status": status}
        return {**dump, "pg_config": {"": config}}

    def gloo_records(self, ranks: Iterable[int] | None = None) -> list[RankRecord]:
        """Return what the importer reads of the dumps of some ranks, else of all, over gloo."""
        chosen = range(self.ranks) if ranks is None else ranks
        return [parse_dump(pickle.dumps(self.gloo_dump(rank), 2), rank) for rank in chosen]

    def records(
        self, ranks: Iterable[int] | None = None, *, has_history: bool = False
    ) -> list[RankRecord]:
        """Return what the importer reads of the dumps of some ranks, else of all."""
        chosen = range(self.ranks) if ranks is None else ranks
        dumps = ((rank, self.dump(rank, has_history=has_history)) for rank in chosen)
        return [parse_dump(pickle.dumps(dump, protocol=2), rank) for rank, dump in dumps]

    def write(self, folder: Path, *, is_json: bool = False) -> list[Path]:
        """Write the dumps of all ranks as PyTorch names them."""
        paths = []
        for rank in range(self.ranks):
            path = folder / f"nccl_trace_rank_{rank}"
            dump = self.dump(rank)
            path.write_bytes(
                json.dumps(dump).encode() if is_json else pickle.dumps(dump, protocol=2)
            )
            paths.append(path)
        return paths

    def permuted(self, place: Mapping[int, int]) -> FlightJob:
        """Return the same job with its ranks renamed."""
        job = FlightJob(
            self.ranks,
            {name: [place[rank] for rank in members] for name, members in self.groups.items()},
        )
        job.entries = {place[rank]: entries for rank, entries in self.entries.items()}
        job.collectives = {(place[r], g): n for (r, g), n in self.collectives.items()}
        job.messages = {(place[r], g): n for (r, g), n in self.messages.items()}
        return job
