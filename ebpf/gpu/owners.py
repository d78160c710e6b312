"""Which rank uses which GPU.

    first     the rank's processes are among those that compute on it, as the driver counts them
    second    what the rank was started with: CUDA_VISIBLE_DEVICES, and its place in it by the local rank

The second way is for ranks whose processes the driver does not name: those of other pid namespaces, and of GPUs where
the list is not given. Without CUDA_VISIBLE_DEVICES the local rank alone counts only where something computes on the GPU
that is no process here: else a job on CPUs would own every GPU of its host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Gpu", "Started", "find_owners"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its number and UUID, and the processes that compute on it; None where they are not told."""

    index: int
    uuid: str
    pids: Collection[int] | None = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Started:
    """How a rank was started: its number on the host, and CUDA_VISIBLE_DEVICES; None when it is not set."""

    local_rank: int
    visible: str | None = None


def find_owners(
    gpus: Sequence[Gpu],
    slot_by_pid: Mapping[int, int],
    started: Mapping[int, Started],
    is_here: Collection[int] = (),
) -> dict[str, list[int]]:
    """Return the slots of the ranks of each GPU, by its UUID; a GPU without one is left out.

    Args:
        gpus: All GPUs of the host.
        slot_by_pid: The rank of each process that is followed.
        started: How each rank was started, by slot.
        is_here: The processes on GPUs that are in this pid namespace.
    """
    owners: dict[str, list[int]] = {}
    for gpu in gpus:
        slots = {slot_by_pid[pid] for pid in gpu.pids or () if pid in slot_by_pid}
        if slots:
            owners[gpu.uuid] = sorted(slots)
    found = {slot for slots in owners.values() for slot in slots}
    by_index = {gpu.index: gpu for gpu in gpus}
    for slot, how in sorted(started.items()):
        if slot in found:
            continue
        chosen = _chosen(by_index, how)
        if chosen is None or (chosen.pids is not None and not _has_stranger(chosen, is_here)):
            continue
        owners.setdefault(chosen.uuid, []).append(slot)
    return owners


def _has_stranger(gpu: Gpu, is_here: Collection[int]) -> bool:
    return any(pid not in is_here for pid in gpu.pids or ())


def _chosen(by_index: Mapping[int, Gpu], how: Started) -> Gpu | None:
    """Return the GPU that a rank was given; None when it was given none, or more than tells which."""
    if how.visible is None:
        return by_index.get(how.local_rank)
    names = [name.strip() for name in how.visible.split(",")]
    if len(names) == 1:
        name = names[0]
    elif how.local_rank < len(names):
        name = names[how.local_rank]
    else:
        return None
    if name.isdecimal():
        return by_index.get(int(name))
    # A UUID may be shortened to what tells it from the others.
    alike = [gpu for gpu in by_index.values() if name and gpu.uuid.startswith(name)]
    return alike[0] if len(alike) == 1 else None
