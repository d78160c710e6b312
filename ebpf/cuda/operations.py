"""Operations of NCCL one by one, as the program of CUDA calls tells them at level 2; mirrors `programs/cuda.h`.

Pure. What counts: calls that have returned, of communicators that members know by one id. A call returns when the
operation is given to the device; when that has done it, the host is not told.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rootwalk.ebpf.cuda.communicators import Communicators
from rootwalk.ebpf.cuda.functions import DATA_TYPES, KINDS, NCCL_OPERATIONS
from rootwalk.ebpf.reader import CollectiveCall
from rootwalk.ebpf.ring_buffer import find_records

__all__ = ["OPERATION", "Operation", "decode_operations", "name_operations"]

# struct nccl_operation
OPERATION = struct.Struct("<QQQQIBBBxQI4x")


class Operation(NamedTuple):
    """A call, as the kernel has it.

    Attributes:
        start_ns: When it was called, CLOCK_MONOTONIC.
        end_ns: When the call returned.
        sequence: Its number in its communicator, from 1; sends and receives apart.
        elements: As its caller said.
        slot: The rank.
        kind: Behind `KINDS`, its place in `NCCL_OPERATIONS`.
        layer: Its layer's place.
        data_type: Its type's place in `DATA_TYPES`, or anything else.
        communicator: Its number and `IS_NUMBERED`.
        is_message: Whether it is a send or a receive.
    """

    start_ns: int
    end_ns: int
    sequence: int
    elements: int
    slot: int
    kind: int
    layer: int
    data_type: int
    communicator: int
    is_message: int


def decode_operations(data: bytes) -> tuple[list[Operation], int]:
    """Return the operations in a piece of the ring, and how many bytes of it they take."""
    places, used = find_records(data)
    found = [
        Operation(*OPERATION.unpack_from(data, offset))
        for offset, size in places
        if size == OPERATION.size
    ]
    return found, used


def name_operations(
    operations: Iterable[Operation], communicators: Communicators
) -> Iterator[CollectiveCall]:
    """Yield operations by what all members know them by; nothing of a communicator that is not known."""
    for one in operations:
        member = communicators.find(one.communicator)
        if (
            member is None
            or member.id is None
            or not 0 <= one.kind - len(KINDS) < len(NCCL_OPERATIONS)
        ):
            continue
        known = DATA_TYPES[one.data_type] if one.data_type < len(DATA_TYPES) else None
        yield CollectiveCall(
            slot=one.slot,
            start_ns=one.start_ns,
            end_ns=one.end_ns,
            operation=NCCL_OPERATIONS[one.kind - len(KINDS)],
            communicator=member.id,
            members=member.size,
            sequence=one.sequence,
            size_bytes=one.elements * known.size_bytes if known is not None else None,
            data_type=known.name if known is not None else None,
            is_p2p=bool(one.is_message),
        )
