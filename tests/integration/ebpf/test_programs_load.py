"""Programs whose readers cannot be imported everywhere: the running kernel takes them, with nothing beside libbpf."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

import pytest

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.cuda.lifetimes import DROP_REASONS, LifetimeProbes
from rootwalk.ebpf.function_probes import PAGE, FunctionProbes
from rootwalk.ebpf.libbpf import BpfObject
from rootwalk.instrumentation.errors import UnavailableError
from support.bpf_programs import open_targets

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


def test_program_of_communicators_loads_with_the_maps_of_the_calls_and_attaches() -> None:
    # It is loaded with the first library of NCCL: elsewhere nobody would notice that a kernel refuses it.
    with open_targets() as targets:
        try:
            calls = FunctionProbes(
                "cuda", "on_call", "on_return", lambda opened: opened.share(targets.map)
            )
        except UnavailableError as error:
            if error.reason != Reason.NO_UPROBES:
                raise
            pytest.skip(f"bpf: {error.reason}: {error}")
        lifetimes = LifetimeProbes(calls, targets.map)
        descriptor = os.memfd_create("library", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, PAGE)
            probes = lifetimes.attach(Path(f"/proc/self/fd/{descriptor}"), [(0, 1)])
            assert probes is not None
            assert lifetimes.losses() == dict.fromkeys(DROP_REASONS, 0)
            lifetimes.detach(probes)
        finally:
            os.close(descriptor)
            lifetimes.close()
            calls.close()
