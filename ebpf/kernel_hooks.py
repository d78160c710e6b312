"""Which tracepoints the running kernel has, without tracefs: by its own types (BTF)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["find_missing_hooks"]


def find_missing_hooks(hooks: Iterable[str], root: Path = Path("/")) -> set[str]:
    """Return those of these tracepoints that a program cannot be attached to by `tp_btf`.

    Args:
        hooks: Names without their group, such as ``softirq_entry``.
        root: Where /sys is. Without types there, all are missing.

    Source:
        kernel/bpf/btf.c: `tp_btf` looks for the type ``btf_trace_<name>``, since 5.5.
    """
    try:
        types = (root / "sys/kernel/btf/vmlinux").read_bytes()
    except OSError:
        types = b""
    return {hook for hook in hooks if b"\0btf_trace_%s\0" % hook.encode() not in types}
