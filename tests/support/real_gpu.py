"""What tests on a machine with an NVIDIA GPU begin with: `pytestmark = ON_A_GPU`."""

from __future__ import annotations

import shutil

import pytest

__all__ = ["ON_A_GPU"]


def has_gpu() -> bool:
    """Return whether PyTorch and `nvidia-smi` see a GPU."""
    if shutil.which("nvidia-smi") is None:
        return False
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


ON_A_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not has_gpu(), reason="needs PyTorch, an NVIDIA GPU, its driver and nvidia-smi"
    ),
]
