"""Programs whose readers cannot be imported everywhere: the running kernel takes them, with nothing beside libbpf."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from rootwalk.ebpf.libbpf import BpfObject
from rootwalk.instrumentation.errors import UnavailableError

pytestmark = pytest.mark.bpf


def test_stack_program_loads_and_attaches() -> None:
    path = Path(str(files("rootwalk.ebpf.programs") / "stacks.bpf.o"))
    try:
        program = BpfObject(path, lambda opened: None, by_hand=("take_tick",))
    except UnavailableError as error:
        if str(error.reason) in ("LOAD_REFUSED", "NO_OBJECT"):
            raise
        pytest.skip(f"bpf: {error.reason}: {error}")
    assert {"spaces", "windows", "notes"} <= set(program.maps)
    program.close()
