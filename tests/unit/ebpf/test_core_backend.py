"""Which scheduler program a kernel gets, by its release and by types made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.core_backend import choose_program
from support.fake_types import fake_kernel


@pytest.mark.parametrize(
    ("release", "switch_arguments", "program"),
    [
        ("5.15.0-204-generic", 3, "sched_5_15"),
        ("5.17.1", 3, "sched_5_15"),
        ("5.14.0-570.el9.x86_64", 4, "sched"),  # a distribution has added the argument
        ("5.15.0", None, "sched_5_15"),
        ("5.18.0-rc1", None, "sched"),  # types are not read
        ("6.1.0-49-amd64", None, "sched"),
        ("unknown", None, "sched"),
    ],
)
def test_program_of_a_kernel(
    tmp_path: Path, release: str, switch_arguments: int | None, program: str
) -> None:
    if switch_arguments is not None:
        types = tmp_path / "sys/kernel/btf/vmlinux"
        types.parent.mkdir(parents=True)
        types.write_bytes(fake_kernel(switch_arguments=switch_arguments).encode())
    assert choose_program(release, tmp_path) == program


def test_types_that_cannot_be_read(tmp_path: Path) -> None:
    types = tmp_path / "sys/kernel/btf/vmlinux"
    types.parent.mkdir(parents=True)
    types.write_bytes(fake_kernel().encode()[:100])
    assert choose_program("5.15.0", tmp_path) == "sched_5_15"
