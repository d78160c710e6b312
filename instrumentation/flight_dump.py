"""PyTorch's Flight Recorder of this rank as JSON, read when the rank makes no progress. Must not import torch.

    ask() ──▶ daemon thread ──▶ every ring that exists ──▶ the one that waits, cut to size ──▶ deliver(text)

A ring is read under the interpreter lock, some 20 us an entry, so a rank that trains is never asked. Where the lock is
held for ever no thread of Python runs, and PyTorch's own ways are left, which Rootwalk does not set up:

* `TORCH_NCCL_DEBUG_INFO_PIPE_FILE=<stem>`: the legacy NCCL process group makes a FIFO `<stem><rank>.pipe`; its
  heartbeat monitor (`TORCH_NCCL_ENABLE_MONITORING`, on by default) looks at it about once a second, and whatever is
  written there lets it write a dump. `TORCH_NCCL_DUMP_ON_TIMEOUT` (2.15's other backends: `TORCH_FR_DUMP_ON_TIMEOUT`)
  writes one at a time-out.
* `TORCH_FR_DUMP_TEMP_FILE=<prefix>` (older: `TORCH_NCCL_DEBUG_INFO_TEMP_FILE`, which still holds): the dump is the
  pickle `<prefix><rank>`; else `~/.cache/torch/comm_lib_trace_rank_<rank>`, in older versions
  `/tmp/nccl_trace_rank_<rank>`. `rootwalk import flight-recorder` reads it.

Functions by version, of `torch._C._distributed_c10d`: 2.4 has `_dump_nccl_trace` alone, a pickle with stacks, which is
not read here; 2.5 added `_dump_nccl_trace_json` (builds with NCCL); 2.8 or 2.9 `_dump_fr_trace_json`, the ring of gloo;
2.15 gave it a third argument, the backend, as every backend but the legacy NCCL has a ring under its own name. They
are asked for by name, never by version.

Source: torch/csrc/distributed/c10d/init.cpp, FlightRecorder.hpp, FlightRecorderDetail.hpp, ProcessGroupNCCL.hpp of
PyTorch 2.4 to 2.15; `_dump_fr_trace_json` tried with gloo of 2.15.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

__all__ = ["MAX_TEXT_BYTES", "FlightDump", "read_flight_recorder"]

MODULE: Final = "torch._C._distributed_c10d"
# Names of backends with a ring of their own in 2.15; the first that waits is taken.
BACKENDS: Final = ("nccl2", "nccl", "nccl-lazy", "xccl", "hccl", "gloo")
# Of one dump in the store: some 1,500 entries. A full ring of 2,000 is a little more.
MAX_TEXT_BYTES: Final = 1024 * 1024
# A larger one is of a ring that somebody made far larger; parsing it would hold the interpreter lock for seconds.
MAX_RING_BYTES: Final = 64 * 1024 * 1024
# A rank that stands still for long is asked again and again; its ring changes no more.
MIN_INTERVAL_S: Final = 30.0


class FlightDump:
    """Reads the recorder when it is asked to, in a thread of its own.

    Args:
        deliver: Takes the JSON text; called in that thread.
        now: Monotonic clock, s.
    """

    def __init__(
        self, deliver: Callable[[str], object], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._deliver = deliver
        self._now = now
        self._thread: threading.Thread | None = None
        self._last_s: float | None = None

    def ask(self) -> bool:
        """Start reading, and return at once; return whether it was started.

        It is not while an earlier thread still reads, and not more often than every `MIN_INTERVAL_S`.
        """
        now_s = self._now()
        if self._last_s is not None and now_s - self._last_s < MIN_INTERVAL_S:
            return False
        if self._thread is not None and self._thread.is_alive():
            return False
        self._last_s = now_s
        thread = threading.Thread(target=self._run, name="rootwalk-flight", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter ends
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        # The job's recorder is the job's: whatever it raises, the job does not see it.
        with contextlib.suppress(Exception):
            text = read_flight_recorder(sys.modules.get(MODULE))
            if text is not None:
                self._deliver(text)


def read_flight_recorder(module: object, limit_bytes: int = MAX_TEXT_BYTES) -> str | None:
    """Return the ring in which a call waits, as PyTorch's JSON; the first with any call where none does.

    Args:
        module: `torch._C._distributed_c10d`; None where it is not loaded.
        limit_bytes: Finished calls are left out, the oldest first, until the text is no longer.

    Returns:
        The text; None where there is no ring with a call in it.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    for text in _rings(module):
        if len(text) > MAX_RING_BYTES:
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and _entries(value):
            found.append((text, value))
    if not found:
        return None
    text, value = next((one for one in found if any(map(_waits, _entries(one[1])))), found[0])
    return text if len(text) <= limit_bytes else _cut(value, limit_bytes)


def _rings(module: object) -> Iterator[str]:
    """Yield the text of each ring that can be read."""
    legacy = getattr(module, "_dump_nccl_trace_json", None)
    general = getattr(module, "_dump_fr_trace_json", None)
    calls: list[Callable[[], object]] = []
    if legacy is not None:
        calls.append(lambda: legacy(True, False))
    if general is not None:
        calls += [_of_backend(general, name) for name in BACKENDS]
        calls.append(lambda: general(True, False))  # before 2.15 it knows no backends
    seen: set[str] = set()
    for call in calls:
        with contextlib.suppress(Exception):
            data = call()
            text = data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)
            if text not in seen:
                seen.add(text)
                yield text


def _of_backend(dump: Callable[..., object], name: str) -> Callable[[], object]:
    return lambda: dump(True, False, name)


def _entries(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = value.get("entries")
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


def _waits(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") != "completed" and not entry.get("retired")


def _cut(value: dict[str, Any], limit_bytes: int) -> str | None:
    """Return a dump with the calls that matter most: the last of each group, those that wait, then the newest."""
    entries = _entries(value)
    last = {str(entry.get("process_group")): place for place, entry in enumerate(entries)}
    newest_first = sorted(
        range(len(entries)),
        key=lambda place: (place in last.values(), _waits(entries[place]), place),
        reverse=True,
    )
    room = limit_bytes - len(json.dumps({**value, "entries": []}))
    kept: list[int] = []
    for place in newest_first:
        room -= len(json.dumps(entries[place])) + 2
        if room < 0:
            break
        kept.append(place)
    if not kept:
        return None
    return json.dumps({**value, "entries": [entries[place] for place in sorted(kept)]})
