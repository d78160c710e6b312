"""The kernel headers that BCC's own helpers include, reduced to what they need.

BCC looks for the headers of the running kernel, which most machines do not have. With those of another one it compiles
too, and programs read whatever lies where that kernel had a field. These have no structure of the kernel at all, so
that nothing can be read at a wrong place; where fields are comes from BTF (`bcc_source`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["write_headers"]

TYPES = """\
#ifndef ROOTWALK_LINUX_TYPES_H
#define ROOTWALK_LINUX_TYPES_H
typedef signed char __s8, s8, int8_t;
typedef unsigned char __u8, u8, uint8_t;
typedef short __s16, s16, int16_t;
typedef unsigned short __u16, u16, uint16_t, __le16, __be16, __sum16;
typedef int __s32, s32, int32_t, pid_t;
typedef unsigned int __u32, u32, uint32_t, __le32, __be32, __wsum;
typedef long long __s64, s64, int64_t;
typedef unsigned long long __u64, u64, uint64_t, __le64, __be64;
typedef __u64 __aligned_u64 __attribute__((aligned(8)));
typedef unsigned long size_t, uintptr_t;
typedef long ssize_t;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)
#define __always_inline inline __attribute__((always_inline))
#endif
"""
# 4096 is what capacities are divided by here, not the size of a page of the machine.
HEADERS: Mapping[str, str] = {
    "asm/page.h": "#define PAGE_SHIFT 12\n#define PAGE_SIZE 4096\n",
    "linux/bpf_common.h": "#define BPF_CLASS(code) ((code) & 0x07)\n",
    "linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1\n",
    "linux/types.h": TYPES,
    "linux/version.h": "#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))\n"
    "#define LINUX_VERSION_CODE KERNEL_VERSION(5, 18, 0)\n",
    "uapi/linux/bpf.h": "#include <linux/types.h>\n",
}
EMPTY = ("linux/log2.h", "uapi/linux/if_ether.h", "uapi/linux/if_packet.h", "uapi/linux/ptrace.h")


def write_headers(folder: Path) -> None:
    """Write a tree that BCC takes for the source of a kernel."""
    for name, text in (*HEADERS.items(), *((name, "") for name in EMPTY)):
        path = folder / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
