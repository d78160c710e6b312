"""Folders in /dev/shm and /tmp that others may have made first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rootwalk.instrumentation.own_folder import make_own_folder
from rootwalk.instrumentation.shared_ring import RingWriter
from support.rings import identity


def test_a_folder_is_made_for_this_user_only(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_own_folder(folder, is_chosen=False)
    make_own_folder(folder, is_chosen=False)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    make_own_folder(tmp_path, is_chosen=False)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_link_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    (tmp_path / "real").mkdir()
    link.symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="saw a link"):
        make_own_folder(link, is_chosen=False)
    make_own_folder(link, is_chosen=True)


def test_another_users_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="saw a folder of user"):
        make_own_folder(tmp_path, is_chosen=False)


def test_a_rank_writes_no_ring_into_another_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROOTWALK_RING_DIRECTORY", raising=False)
    monkeypatch.setattr("rootwalk.instrumentation.shared_ring.ring_directory", lambda: tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PermissionError):
        RingWriter(identity())
    assert list(tmp_path.iterdir()) == []
