"""NVIDIA's libraries that PyTorch's wheel brought into this Python."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def find_wheel_libraries() -> dict[str, Path]:
    """Return the path of each library by its name; empty where PyTorch has none, or is not there."""
    found = importlib.util.find_spec("nvidia")
    if found is None or found.submodule_search_locations is None:
        return {}
    return {
        path.name: path
        for folder in found.submodule_search_locations
        for path in Path(folder).glob("**/lib/lib*.so.*")
    }
