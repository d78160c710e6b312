"""Flight recorders of ranks that stood still while Rootwalk watched: out of the store, as records for `judge`.

A dump is the body of the event `training.flight_recorder.dump`, PyTorch's own JSON; whose it is, and when it was taken,
the event says. Imported dumps (`flight_store`) are the same records from files.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Final

from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.importers.flight_recorder_format import MAX_DUMP_BYTES, parse_dump
from rootwalk.instrumentation.errors import DecodeError
from rootwalk.instrumentation.semconv import EVENT_TRAINING_FLIGHT_RECORDER_DUMP

__all__ = ["LiveDumps", "read_live_dumps"]

logger = logging.getLogger(__name__)

# The newest dump of each rank.
_QUERY: Final = (
    "SELECT rank, arg_max(body ->> '$', unix_ns), max(unix_ns) FROM logs"  # noqa: S608  (our own name)
    f" WHERE event_name = '{EVENT_TRAINING_FLIGHT_RECORDER_DUMP}' AND job = ?"
    " AND coalesce(attempt, 0) = ? AND rank IS NOT NULL AND unix_ns BETWEEN ? AND ?"
    " GROUP BY rank ORDER BY rank"
)
_ROWS: Final = 64
_FIRST_NS: Final = 0
_LAST_NS: Final = (1 << 63) - 1


class LiveDumps:
    """What was read.

    Attributes:
        records: One a rank, by rank; `written_unix_ns` is when the dump was taken.
        broken: Ranks whose dump could not be read, with the reason.
    """

    def __init__(self) -> None:
        self.records: list[RankRecord] = []
        self.broken: dict[int, str] = {}


def read_live_dumps(
    connection: Any,
    job: str,
    attempt: int,
    since_unix_ns: int = _FIRST_NS,
    until_unix_ns: int = _LAST_NS,
) -> LiveDumps:
    """Return the newest dump of each rank.

    Args:
        connection: Of the store.
        job: Which job.
        attempt: Which attempt of it.
        since_unix_ns: Only dumps that were taken at this time or later; of a hang, when it began.
        until_unix_ns: And not after this time.
    """
    found = LiveDumps()
    rows = connection.execute(_QUERY, [job, attempt, since_unix_ns, until_unix_ns])
    while pieces := rows.fetchmany(_ROWS):
        for rank, text, taken_unix_ns in pieces:
            try:
                record = _parse(str(text or ""), int(rank))
            except DecodeError as error:
                logger.warning("the live dump of rank %d is left out: %s", rank, error)
                found.broken[int(rank)] = str(error)
                continue
            found.records.append(replace(record, written_unix_ns=int(taken_unix_ns) or None))
    return found


def _parse(text: str, rank: int) -> RankRecord:
    data = text.encode()
    if len(data) > MAX_DUMP_BYTES:
        raise DecodeError(
            f"cannot read dump: saw more than {MAX_DUMP_BYTES} bytes; needs a dump of one rank"
        )
    if data[:1] != b"{":
        raise DecodeError(f"cannot read dump: saw {text[:8]!r} at byte 0; needs a JSON object")
    return parse_dump(data, rank)
