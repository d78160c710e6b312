"""What lines of NCCL's debug output say: which way a rank sends to another, and how NCCL does an operation.

    Channel 00/0 : 0[0] -> 1[1] via P2P/IPC                                               INFO
    Channel 01/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA comm 0x55d0 nRanks 04
    AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}             TUNING, since NCCL 2.24
    1048576 Bytes -> Algo 1 proto 2 time 35.6                                             before

The sending end counts, so that each way is told once. Source: the formats in the libraries of NCCL 2.21.5, 2.27.5 and
2.28; the numbers of `NCCL_ALGO_*` and `NCCL_PROTO_*` in its src/include/nccl_common.h.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["Choice", "find_choice", "find_transport"]

_CHANNEL: Final = re.compile(
    r"(?:Channel|CollNet) \d+[^>]{0,60}(?:-> \d+\[[^\]]{0,20}\] )?(?:\[(send|receive)\] )?via (\S.{0,120}?)"
    r"(?: comm 0x|$)"
)
# Of a way: the device, a process on the way to it, and the GPU between. They tell which, and not what.
_NUMBER: Final = re.compile(r"\d+(?:\(\d+\))?(?:\[[0-9a-f]+\])?$")
_CHOICE: Final = re.compile(r"(?:(\w{1,40}): )?\d+ Bytes -> Algo (\w{1,40}) proto (\w{1,40})")
_ALGORITHMS: Final = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_PROTOCOLS: Final = ("ll", "ll128", "simple")
_INNER_CAPITAL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Choice(NamedTuple):
    """How an operation is done; `operation` in PyTorch's spelling, empty where the line does not tell it."""

    operation: str
    algorithm: str
    protocol: str


def find_transport(line: str) -> str | None:
    """Return how a rank sends to another, without numbers of devices; None where a line does not say it.

    >>> find_transport("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0(3)/GDRDMA")
    'NET/IB/GDRDMA'
    """
    found = _CHANNEL.search(line)
    if found is None or found[1] == "receive":
        return None
    parts = [part for part in found[2].strip().split("/") if not _NUMBER.match(part)]
    return "/".join(parts) or None


def find_choice(line: str) -> Choice | None:
    """Return how NCCL does an operation; None where a line does not say it.

    >>> find_choice("h:1:2 [0] NCCL INFO ReduceScatter: 4096 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..1}")
    Choice(operation='reduce_scatter', algorithm='ring', protocol='ll128')
    """
    found = _CHOICE.search(line)
    if found is None:
        return None
    operation = _INNER_CAPITAL.sub("_", found[1] or "").lower()
    return Choice(operation, _named(found[2], _ALGORITHMS), _named(found[3], _PROTOCOLS))


def _named(told: str, names: tuple[str, ...]) -> str:
    is_number = told.isascii() and told.isdecimal()
    return names[int(told)] if is_number and int(told) < len(names) else told.lower()
