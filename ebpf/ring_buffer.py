"""The consumer's end of a BPF ring buffer, by its memory map: one copy and one pass a poll.

libbpf's own reader makes a call back into Python for every record. Must not know: what the records hold.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import TypeVar

from rootwalk.ebpf.libbpf import BpfMap

__all__ = ["RingBuffer", "find_records"]

Record = TypeVar("Record")
RECORD_HEADER = struct.Struct("<II")
BUSY_BIT = 1 << 31
DISCARD_BIT = 1 << 30
LENGTH_MASK = DISCARD_BIT - 1


def find_records(data: bytes) -> tuple[list[tuple[int, int]], int]:
    """Return where the finished records of a piece of a ring lie, and how many bytes of it they take.

    Args:
        data: From the consumer's position to the producer's. A record that is still being written ends the piece.

    Returns:
        Offset and length of each, and the length of everything up to the last one's end.
    """
    found = []
    offset, end = 0, len(data)
    while offset + RECORD_HEADER.size <= end:
        length, _ = RECORD_HEADER.unpack_from(data, offset)
        if length & BUSY_BIT:
            break
        first = offset + RECORD_HEADER.size
        size = length & LENGTH_MASK
        offset = first + (size + 7) // 8 * 8
        if not length & DISCARD_BIT:
            found.append((first, size))
    return found, offset


class RingBuffer:
    """One ring, mapped.

    Source: kernel/bpf/ringbuf.c: page 0 is the consumer's position (writable), page 1 the producer's, then the data
    twice in a row, so that a record that wraps can be read in one piece.

    Args:
        ring: The map; what it holds is `max_entries` bytes.
    """

    def __init__(self, ring: BpfMap) -> None:
        page = mmap.PAGESIZE
        self._mask = ring.max_entries - 1
        self._consumer_page = mmap.mmap(ring.fd, page, mmap.MAP_SHARED)
        self._producer_page = mmap.mmap(
            ring.fd, page + 2 * ring.max_entries, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
        )
        # Through a typed view the position is written in one store, as the kernel needs it.
        self._consumed = memoryview(self._consumer_page).cast("Q")
        self._produced = memoryview(self._producer_page)[:8].cast("Q")
        self._is_closed = False

    def read(self, decode: Callable[[bytes], tuple[list[Record], int]]) -> list[Record]:
        """Return what was written since the last call.

        Args:
            decode: Turns a piece of the ring into records, and says how many bytes of it it took.
        """
        consumed = self._consumed[0]
        waiting = self._produced[0] - consumed
        if not waiting:
            return []
        first = mmap.PAGESIZE + (consumed & self._mask)
        records, used = decode(self._producer_page[first : first + waiting])
        self._consumed[0] = consumed + used
        return records

    def close(self) -> None:
        """Give the memory back; safe twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._consumed.release()
        self._produced.release()
        self._consumer_page.close()
        self._producer_page.close()
