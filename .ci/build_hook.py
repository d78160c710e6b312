"""Build hook of the package: compiles the kernel programs into the wheel, and fails the build when it cannot.

A wheel without the programs could not name other processes, and nothing at its installation would say so. Without a
clang that compiles for BPF the build asks for PyPI's `ziglang`. ROOTWALK_NO_BPF=1 builds a wheel without the programs.
An editable install is left alone: `make setup` compiles beside it.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILER = "ziglang==0.15.1"
OPT_OUT = "ROOTWALK_NO_BPF"


def load_builder(root: Path) -> ModuleType:
    """Return the script that compiles the programs, as a module."""
    spec = importlib.util.spec_from_file_location("build_bpf", root / ".ci" / "build_bpf.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load the builder: saw no .ci/build_bpf.py in {root}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class KernelPrograms(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles what is missing or stale before the wheel is packed."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return the compiler to install for the build; nothing where clang compiles for BPF."""
        if os.environ.get(OPT_OUT) == "1":
            return []
        return [] if load_builder(Path(self.root)).find_compiler() else [COMPILER]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the programs.

        Raises:
            RuntimeError: If a program cannot be compiled.
        """
        if version == "editable" or os.environ.get(OPT_OUT) == "1":
            return
        if load_builder(Path(self.root)).main() != 0:
            raise RuntimeError(
                "cannot build the wheel: saw no compiled kernel programs; needs clang with a BPF target"
                f" or {COMPILER}, or {OPT_OUT}=1 for a wheel without them"
            )
