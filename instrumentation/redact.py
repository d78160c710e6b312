"""Names of threads, made harmless before they leave the machine.

A thread's name is text that anybody may have chosen, and some put a user, a path or a key into it. Names that the
software around training gives to its own threads tell what a thread is for and leave as they are; every other leaves
as a hash, equal wherever the name is, so that threads can still be told apart. Names of processes and control groups
say who is in a rank's way, and leave as names; command lines and environments are never sent. `ROOTWALK_REDACT=0` lets
names through. Standard library only.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from typing import Final

__all__ = ["is_redacting", "redact_thread_name"]

FALSE_VALUES: Final = frozenset({"0", "false", "no", "off"})
# The kernel keeps 15 bytes of a name. Prefixes that belong to one library may be followed by that library's own words;
# those that anybody uses, such as Python's, only by numbers: `python train.py` is a name that a script gave itself.
KNOWN_NAMES: Final = re.compile(
    r"""
    python[\d.]* | mainthread | (?:thread|dummy)-\d+
    | pt_\w+ | autograd\w* | dataloader\w* | torch_\w+         # PyTorch
    | gloo\w* | (?:nccl|rccl)[\w\ /-]* | uc[tpsx]_\w+ | ibv_\w+ | orte?_\w+ | pmix\w*   # collectives, fabrics, MPI
    | cuda[\w-]* | cupti\w* | nv_\w+ | dcgm\w* | hip\w* | rocm\w*                      # device drivers
    | i?omp_\w+ | mkl_\w+ | tbb\w* | openblas\w* | jemalloc\w* | tcmalloc\w* | iou-[\w-]+ # run-times, the kernel
    | grpc\w* | otel\w* | rootwalk[\w-]*
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
# Eight hex digits tell a few hundred names apart, and say nothing of what they were.
HASH_DIGITS: Final = 8


def is_redacting() -> bool:
    """Return whether names are made harmless: always, unless the user has opted out."""
    return os.environ.get("ROOTWALK_REDACT", "").strip().lower() not in FALSE_VALUES


def redact_thread_name(name: str) -> str:
    """Return a known thread name as it is, any other as `thread-` and 8 hex digits.

    >>> redact_thread_name("pt_autograd_0"), redact_thread_name("alice-upload")
    ('pt_autograd_0', 'thread-f236822f')
    """
    return _harmless(name) if is_redacting() else name


@functools.lru_cache(maxsize=1024)  # asked for every stall
def _harmless(name: str) -> str:
    if not name or KNOWN_NAMES.fullmatch(name):
        return name
    return "thread-" + hashlib.sha256(name.encode(errors="replace")).hexdigest()[:HASH_DIGITS]
