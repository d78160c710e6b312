"""What of another process is read, and what is not because a file system may not answer."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rootwalk.ebpf.stacks.guarded_memory import (
    GuardedMappings,
    GuardedMemory,
    SilentMounts,
    read_mounts,
)
from rootwalk.ebpf.stacks.mappings import Mapping

PID = 7
MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /data rw - fuse.sshfs me@host:/ rw,user_id=0
24 22 0:30 / /apps rw - nfs4 server:/apps rw,hard
25 22 0:31 / /image ro - fuse.squashfuse_ll squashfuse_ll ro
26 24 0:32 / /apps/local rw - tmpfs tmpfs rw
27 22 0:33 / /auto rw - autofs systemd-1 rw
28 22 0:34 / /with\\040space rw - fuse broken rw
29 22 0:35 / /twice rw - tmpfs tmpfs rw
30 22 0:36 / /twice rw - fuse.later later rw
"""


def line(start: int, path: str, inode: int = 5) -> str:
    return f"{start:x}-{start + 0x1000:x} r-xp 00000000 08:01 {inode} {path}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / str(PID)
    folder.mkdir()
    (folder / "mountinfo").write_text(MOUNTS, encoding="utf-8")
    (folder / "maps").write_text(line(0x1000, "/bin/true"), encoding="utf-8")
    return tmp_path


def mapping(path: str, inode: int = 5, start: int = 0x1000) -> Mapping:
    return Mapping(start, start + 0x1000, 0, inode, path, True)


@pytest.mark.parametrize(
    ("path", "is_read"),
    [
        ("/usr/lib/libc.so.6", True),
        ("/data/env/lib/libtorch.so", False),
        ("/database/lib.so", True),
        ("/apps/lib/libpython3.11.so", True),
        ("/apps/local/lib.so", True),
        ("/image/lib.so", True),
        ("/auto/lib.so", False),
        ("/with space/lib.so", False),
        ("/twice/lib.so", False),
        ("/dev/nvidia0", False),
        ("/dev/infiniband/uverbs0", False),
    ],
)
def test_files_are_read_where_their_file_system_answers(
    root: Path, path: str, is_read: bool
) -> None:
    assert GuardedMappings(PID, root, SilentMounts()).allows(mapping(path)) is is_read


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("", True),
        ("[heap]", True),
        ("[stack]", True),
        ("[vdso]", True),
        ("[vvar]", False),
        ("[vsyscall]", False),
    ],
)
def test_memory_without_a_file_is_read(root: Path, name: str, is_read: bool) -> None:
    assert GuardedMappings(PID, root, SilentMounts()).allows(mapping(name, 0)) is is_read


def test_a_mount_that_kept_a_reader_waiting_is_not_read_again(root: Path) -> None:
    silent = SilentMounts()
    mappings = GuardedMappings(PID, root, silent)
    assert mappings.allows(mapping("/usr/lib/a.so"))
    assert silent.entered == ""
    assert mappings.allows(mapping("/apps/a.so"))
    silent.silence(silent.entered)
    assert not mappings.allows(mapping("/apps/b.so"))
    assert mappings.allows(mapping("/apps/local/b.so"))
    assert mappings.allows(mapping("/usr/lib/a.so"))
    silent.silence("")
    assert mappings.allows(mapping("/usr/lib/a.so"))


def test_a_file_that_is_not_read_is_not_opened(root: Path, tmp_path: Path) -> None:
    inside = tmp_path / str(PID) / "root" / "data"
    inside.mkdir(parents=True)
    shutil.copy("/bin/true", inside / "lib.so")
    mappings = GuardedMappings(PID, root, SilentMounts())
    inode = (inside / "lib.so").stat().st_ino
    with pytest.raises(OSError, match="may not answer"):
        mappings.open(mapping("/data/lib.so", inode))
    (inside.parent / "usr").mkdir()
    os.link(inside / "lib.so", inside.parent / "usr" / "lib.so")
    with mappings.open(mapping("/usr/lib.so", inode)) as file:
        assert file.read(4) == b"\x7fELF"


def test_lines_that_are_no_mounts_are_left_out(root: Path) -> None:
    (root / str(PID) / "mountinfo").write_text("\n1 2\nx - \na b c d - ext4\n", encoding="utf-8")
    assert read_mounts(PID, root) == []
    assert not GuardedMappings(PID, root, SilentMounts()).allows(mapping("/bin/true"))


class Everything:
    """Memory in which every byte is the number of its page."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def read(self, address: int, size: int) -> bytes:
        self.asked.append((address, size))
        return bytes((address + place) >> 12 & 255 for place in range(size))


def test_a_read_ends_before_what_is_not_read() -> None:
    parts = [mapping("", 0, 0x1000), mapping("[heap]", 0, 0x2000), mapping("/data/x", 5, 0x3000)]
    memory = Everything()
    looked_for = list[tuple[int, bool]]()

    def find(address: int, is_asked: bool) -> Mapping | None:
        looked_for.append((address, is_asked))
        return next((one for one in parts if one.start <= address < one.end), None)

    guarded = GuardedMemory(
        memory,
        find,
        lambda one: not one.path.startswith("/data"),
    )
    assert guarded.read(0x1FF8, 16) == bytes([1] * 8 + [2] * 8)
    assert guarded.read(0x2FF8, 16) == bytes([2] * 8)
    # Where a read would go on, nobody need look for new mappings.
    assert looked_for[-2:] == [(0x2FF8, True), (0x3000, False)]
    memory.asked.clear()
    assert guarded.read(0x3000, 8) == b""
    assert guarded.read(0x9000, 8) == b""
    assert guarded.read(0x1000, 0) == b""
    assert not memory.asked
