"""What this process tells the kernel about itself: its name, and whose end is its end."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

__all__ = ["follow_parent", "name_process"]

# Operations of prctl, from linux/prctl.h.
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15


def name_process(name: str) -> None:
    """Set the command name that ps and the kernel show, cut to 15 bytes; threads made later inherit it.

    Helpers are named so that they can be recognised, and blamed, when they get in a rank's way.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def follow_parent() -> bool:
    """Ask for SIGTERM when the parent ends, and return whether it is still there."""
    parent_pid = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent_pid
