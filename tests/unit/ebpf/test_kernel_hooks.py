"""Tracepoints that a kernel has, by types made by hand."""

from __future__ import annotations

from pathlib import Path

from rootwalk.ebpf.kernel_hooks import find_missing_hooks


def test_hook_is_there_by_its_whole_name(tmp_path: Path) -> None:
    types = tmp_path / "sys/kernel/btf/vmlinux"
    types.parent.mkdir(parents=True)
    types.write_bytes(b"\x9f\xeb\0btf_trace_block_io_start\0btf_trace_block_rq_issue\0")
    assert find_missing_hooks(["block_io_start", "block_rq"], tmp_path) == {"block_rq"}


def test_without_types_all_are_missing(tmp_path: Path) -> None:
    assert find_missing_hooks(["block_io_start"], tmp_path) == {"block_io_start"}
