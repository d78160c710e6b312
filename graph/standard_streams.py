"""Standard output and standard error that may be files on a full disk."""

from __future__ import annotations

import os
import sys

__all__ = ["let_go_of_full_streams"]


def let_go_of_full_streams() -> None:
    """Drop what cannot be written: the interpreter would try again at its end and exit with 120 instead of our code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
