"""Trace and span ids that every rank, agent and importer derives alike, without talking to anyone.

One training step of all ranks is one trace: whoever knows (job, attempt, step) knows its trace id, and whoever knows
the rank and the phase knows the parent of anything that happened there. Standard library only.
"""

from __future__ import annotations

import functools
import hashlib

__all__ = [
    "collective_id",
    "collective_shared_id",
    "communicator_id",
    "finding_id",
    "gc_id",
    "nccl_communicator_id",
    "nccl_split_id",
    "phase_id",
    "program_id",
    "rank_step_id",
    "stall_id",
    "step_id",
    "trace_id",
]


def _digest(text: str) -> bytes:
    return hashlib.sha256(f"rootwalk/1|{text}".encode()).digest()


def _span_id(text: str) -> bytes:
    """Return 8 bytes that are never all zero (an all-zero id means "no parent" in OTLP)."""
    return _digest(text)[:8].replace(b"\0" * 8, b"\0" * 7 + b"\1")


# A step has some fifty spans in one trace: the last few ids are asked for again and again.
@functools.lru_cache(maxsize=256)
def trace_id(job: str, attempt: int, step: int) -> bytes:
    """Return the 16-byte trace id of one step of all ranks, never all zero.

    >>> trace_id("j1", 0, 7).hex()
    '5aa5c7b55e0c2bbc31a1dfbb927e3580'
    """
    return _digest(f"{job}|{attempt}|{step}")[:16].replace(b"\0" * 16, b"\0" * 15 + b"\1")


def step_id(job: str, attempt: int, step: int) -> bytes:
    """Return the 8-byte span id of the step's root span, which rank 0 sends."""
    return _span_id(f"{job}|{attempt}|{step}|root")


@functools.lru_cache(maxsize=256)
def rank_step_id(job: str, attempt: int, step: int, rank: int) -> bytes:
    """Return the 8-byte span id of one rank's part of a step."""
    return _span_id(f"{job}|{attempt}|{step}|{rank}")


def finding_id(job: str, attempt: int, step: int, finding: str) -> bytes:
    """Return the 8-byte id of the span that marks a step with a finding; it is the same when it is sent again."""
    return _span_id(f"{job}|{attempt}|{step}|finding|{finding}")


@functools.lru_cache(maxsize=1024)
def phase_id(job: str, attempt: int, step: int, rank: int, phase_index: int) -> bytes:
    """Return the 8-byte span id of the phase with this index in one rank's step."""
    return _span_id(f"{job}|{attempt}|{step}|{rank}|{phase_index}")


def collective_id(
    job: str, attempt: int, rank: int, communicator: str, sequence: int, *, is_p2p: bool
) -> bytes:
    """Return the 8-byte span id of one rank's part of one collective."""
    kind = int(is_p2p)
    return _span_id(f"{job}|{attempt}|collective|{communicator}|{sequence}|{kind}|{rank}")


# An agent sends the parts of all of its ranks, batch by batch.
@functools.lru_cache(maxsize=4096)
def collective_shared_id(
    job: str, attempt: int, communicator: str, sequence: int, *, is_p2p: bool
) -> bytes:
    """Return the 8-byte span id that every member's span of one collective links to."""
    return _span_id(f"{job}|{attempt}|collective|{communicator}|{sequence}|{int(is_p2p)}")


def stall_id(
    job: str, attempt: int, step: int, rank: int, thread_id: int, start_mono_ns: int
) -> bytes:
    """Return the 8-byte span id of one stall: a thread cannot begin two at the same moment."""
    return _span_id(f"{job}|{attempt}|{step}|{rank}|stall|{thread_id}|{start_mono_ns}")


def gc_id(job: str, attempt: int, step: int, rank: int, start_mono_ns: int) -> bytes:
    """Return the 8-byte span id of one garbage collection: a process has only one at a time."""
    return _span_id(f"{job}|{attempt}|{step}|{rank}|gc|{start_mono_ns}")


def program_id(
    job: str, attempt: int, step: int, rank: int, name: str, start_mono_ns: int
) -> bytes:
    """Return the 8-byte span id of something else that a program did in a step, by its name and begin."""
    return _span_id(f"{job}|{attempt}|{step}|{rank}|{name}|{start_mono_ns}")


def communicator_id(process_group_name: str, member_ranks: tuple[int, ...]) -> str:
    """Return 16 hex digits that are equal on all members of a process group.

    Args:
        process_group_name: PyTorch's name of the group, equal on all members.
        member_ranks: Global ranks, in the group's order.
    """
    members = ",".join(str(rank) for rank in member_ranks)
    return _digest(f"communicator|{process_group_name}|{members}")[:8].hex()


def nccl_communicator_id(unique_id: bytes) -> str:
    """Return 16 hex digits that are equal on all members of a communicator of NCCL.

    Args:
        unique_id: The 128 bytes that all members pass when they make it; of several such, the first.

    >>> nccl_communicator_id(bytes(range(128)))
    'f2268602170189eb'
    """
    return _digest(f"nccl|{unique_id.hex()}")[:8].hex()


def nccl_split_id(parent: str, split: int, colour: int) -> str:
    """Return 16 hex digits that are equal on all members of a communicator that was split from another.

    Args:
        parent: That one's own.
        split: The how-manieth split of it this was, from 1; all members split it as often.
        colour: What all members of this one have passed.

    >>> nccl_split_id("f2268602170189eb", 1, 0)
    '18264f301d79a8f2'
    """
    return _digest(f"nccl split|{parent}|{split}|{colour}")[:8].hex()
