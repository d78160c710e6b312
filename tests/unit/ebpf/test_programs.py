"""What all kernel programs keep to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rootwalk.ebpf.programs

FOLDER = Path(next(iter(rootwalk.ebpf.programs.__path__)))
SOURCES = sorted(FOLDER.glob("*.bpf.c")) + sorted(FOLDER.glob("*.h"))
ARCHITECTURE = re.compile(r"__TARGET_ARCH_\w+|__x86_64__|__aarch64__|CONFIG_(?:X86|ARM64)\w*")
ELF_BPF = 247


def test_there_are_programs() -> None:
    assert {path.name for path in SOURCES} >= {"sched.bpf.c", "targets.bpf.c"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_one_object_serves_every_architecture(path: Path) -> None:
    # What differs between kernels is asked of the running one: by the loader (CO-RE), not by the compiler.
    assert ARCHITECTURE.findall(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.bpf.o")), ids=lambda path: path.name)
def test_objects_are_of_the_kernels_own_machine(path: Path) -> None:
    header = path.read_bytes()[:20]
    assert header[:6] == b"\x7fELF\x02\x01"  # 64 bits, little-endian: x86-64 and arm64
    assert int.from_bytes(header[18:20], "little") == ELF_BPF
