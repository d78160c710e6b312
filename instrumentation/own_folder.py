"""Folders in places where anybody may make them, /dev/shm and /tmp: used only when they are this user's own.

Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["make_own_folder"]


def make_own_folder(folder: Path, *, is_chosen: bool) -> None:
    """Make a folder that only this user can write to, and check one that is there.

    Args:
        folder: Where.
        is_chosen: Whether the user named it in the environment, and may share it with others: then it is not checked.

    Raises:
        OSError: If it cannot be made, is a link, or is another user's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if is_chosen:
        return
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(
            errno.ENOTDIR, "saw a link; needs a folder of this user", str(folder)
        )
    if status.st_uid != os.geteuid():
        raise PermissionError(
            errno.EPERM,
            f"saw a folder of user {status.st_uid}; needs one of this user",
            str(folder),
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        folder.chmod(0o700)
