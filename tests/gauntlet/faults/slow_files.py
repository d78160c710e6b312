"""A file system with one file, served from user space; each read is answered late while a switch is on.

    python slow_files.py FOLDER DELAY_S SWITCH

Speaks the kernel's own protocol (include/uapi/linux/fuse.h, 7.31), which takes no library: says `ready` once mounted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import time
from pathlib import Path

SIZE = 200_000_000
ROOT, FILE = 1, 2
HEADER = struct.Struct("<IIQQIIII")
ANSWER = struct.Struct("<IiQ")
# ino, size, blocks, three times of s and ns, mode, nlink, uid, gid, rdev, blksize, flags
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE = 1, 2, 3, 14, 15, 18
FLUSH, INIT, OPENDIR, RELEASEDIR, BATCH_FORGET = 25, 26, 27, 29, 42
LOOK_AGAIN_S = 3600
LARGEST_READ = 131_072
BUFFER = 1_048_576
MS_NOSUID_NODEV = 2 | 4


def attributes(node: int) -> bytes:
    """Return what `stat` tells of a node."""
    mode, size = (stat.S_IFDIR | 0o755, 0) if node == ROOT else (stat.S_IFREG | 0o444, SIZE)
    return ATTRIBUTES.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(code: int, node: int, body: bytes) -> bytes | int | None:
    """Return the body of an answer, an error number, or None where the kernel wants none."""
    if code == INIT:
        major, _, ahead, _ = struct.unpack_from("<IIII", body)
        return struct.pack(
            "<IIIIHHIIHHI7I", major, 31, ahead, 0, 16, 12, LARGEST_READ, 1, 32, 0, *[0] * 8
        )
    if code == LOOKUP:
        if body.rstrip(b"\0") != b"file":
            return errno.ENOENT
        return struct.pack("<QQQQII", FILE, 0, LOOK_AGAIN_S, LOOK_AGAIN_S, 0, 0) + attributes(FILE)
    if code == GETATTR:
        return struct.pack("<QII", LOOK_AGAIN_S, 0, 0) + attributes(node)
    if code in (OPEN, OPENDIR):
        return struct.pack("<QII", 1, 0, 0)
    if code == READ:
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(max(min(size, SIZE - offset), 0))
    if code in (RELEASE, RELEASEDIR, FLUSH):
        return b""
    if code in (FORGET, BATCH_FORGET):
        return None
    return errno.ENOSYS


def serve(device: int, delay_s: float, switch: Path) -> None:
    """Answer until the file system is unmounted."""
    while True:
        try:
            request = os.read(device, BUFFER)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                continue
            raise
        _, code, unique, node, *_ = HEADER.unpack_from(request)
        told = answer(code, node, request[HEADER.size :])
        if code == READ and switch.exists():
            time.sleep(delay_s)
        if told is None:
            continue
        number, reply = (-told, b"") if isinstance(told, int) else (0, told)
        os.write(device, ANSWER.pack(ANSWER.size + len(reply), number, unique) + reply)


def main() -> None:
    folder, delay_s, switch = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        print(f"/dev/fuse: {error.strerror}", flush=True)
        return
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"slow-files", folder.encode(), b"fuse", MS_NOSUID_NODEV, options) != 0:
        print(f"mount: {os.strerror(ctypes.get_errno())}", flush=True)
        return
    print("ready", flush=True)
    serve(device, delay_s, switch)


if __name__ == "__main__":
    main()
