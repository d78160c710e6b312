"""How a memory limit is shared out between the receiver at rest, storing a batch, and requests; pure.

    limit = at rest + storing one batch + requests beside it + headroom (10 %)

The constants are measured: resident memory of a process that stores spans of none and of ten attributes in batches of
1 to 48 MiB of journal, its peak in a batch and what it falls back to between two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT_MAX_MEMORY_BYTES", "MIN_MAX_MEMORY_BYTES", "MemoryPlan", "plan_memory"]

MIB: Final = 1024 * 1024
DEFAULT_MAX_MEMORY_BYTES: Final = 1024 * MIB
# Below this not even a small request and the store's own work fit side by side.
MIN_MAX_MEMORY_BYTES: Final = 192 * MIB
# What the process may grow between two looks at it, and what nobody reserves.
HEADROOM_RATIO: Final = 0.1
# From here on the compiled decoder is worth its memory.
MIN_COMPILED_BYTES: Final = 512 * MIB
# What DuckDB gets while it stores a batch; with 48 MiB it could not store any. Without a limit, joining what earlier
# batches left took 248 MB for a batch of 3 MiB, and more as the store grew.
DATABASE_RATIO: Final = 0.2
MIN_DATABASE_BYTES: Final = 102 * MIB


@dataclass(frozen=True, slots=True)
class _Decoder:
    """What one of the two decoders costs.

    Attributes:
        rest_bytes: Resident between two batches: what the heap keeps, and the compiler.
        batch_bytes: Taken by a batch however small it is.
        expansion: Taken for each byte of journal in a batch.
        storing_ratio: Share of the limit that a batch may take.
        max_batch_bytes: Larger batches are not faster.
    """

    rest_bytes: int
    batch_bytes: int
    expansion: float
    storing_ratio: float
    max_batch_bytes: int

    def largest_batch(self, limit_bytes: int) -> int:
        """Return how much of the journal fits a batch."""
        room_bytes = limit_bytes * self.storing_ratio - self.batch_bytes
        return min(self.max_batch_bytes, max(MIB, round(room_bytes / self.expansion)))

    def storing_bytes(self, limit_bytes: int) -> int:
        """Return the peak of the largest batch above the process at rest."""
        return self.batch_bytes + round(self.largest_batch(limit_bytes) * self.expansion)


# Spans without attributes expand so, 20,000 of them in a MiB, though they are decoded piece by piece; with ten
# attributes the factor is 4.
_PLAIN: Final = _Decoder(70 * MIB, 30 * MIB, 12.0, 0.5, 16 * MIB)
# More than DuckDB's row group of 122,880 spans: whole row groups go to the file at once, at half the cost.
_COMPILED: Final = _Decoder(160 * MIB, 70 * MIB, 4.6, 0.28, 48 * MIB)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The shares of one limit, in bytes.

    Attributes:
        limit_bytes: Resident memory above the idle process that may be used.
        is_compiled: Whether there is room for the compiled decoder.
        batch_bytes: Of the journal, stored at once by the plain decoder.
        compiled_batch_bytes: The same for the compiled one, once it is loaded.
        database_bytes: What the database may use meanwhile.
        storing_bytes: What a batch takes above the process at rest.
        resident_bytes: Above this nothing more is taken in.
        request_bytes: For requests in progress while no batch is stored.
        beside_bytes: The same while one is.
    """

    limit_bytes: int
    is_compiled: bool
    batch_bytes: int
    compiled_batch_bytes: int
    database_bytes: int
    storing_bytes: int
    resident_bytes: int
    request_bytes: int
    beside_bytes: int


def plan_memory(limit_bytes: int) -> MemoryPlan:
    """Share out a limit of at least `MIN_MAX_MEMORY_BYTES`."""
    is_compiled = limit_bytes >= MIN_COMPILED_BYTES
    decoder = _COMPILED if is_compiled else _PLAIN
    resident_bytes = round(limit_bytes * (1 - HEADROOM_RATIO))
    request_bytes = resident_bytes - decoder.rest_bytes
    storing_bytes = max(d.storing_bytes(limit_bytes) for d in {_PLAIN, decoder})
    return MemoryPlan(
        limit_bytes=limit_bytes,
        is_compiled=is_compiled,
        batch_bytes=_PLAIN.largest_batch(limit_bytes),
        compiled_batch_bytes=_COMPILED.largest_batch(limit_bytes),
        database_bytes=max(MIN_DATABASE_BYTES, round(limit_bytes * DATABASE_RATIO)),
        storing_bytes=storing_bytes,
        resident_bytes=resident_bytes,
        request_bytes=request_bytes,
        beside_bytes=request_bytes - storing_bytes,
    )
