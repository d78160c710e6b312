"""What tests of CUDA's and NCCL's calls share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.cuda.reader import CudaReader
from rootwalk.ebpf.targets import Targets
from support.cuda_watch import find_standins, open_reader


@pytest.fixture
def reader(targets: Targets) -> Iterator[CudaReader]:
    """Yield a reader of calls at level 2."""
    opened = open_reader(targets)
    yield opened
    opened.close()


@pytest.fixture
def standins() -> list[Path]:
    """Return the stand-ins of all libraries, in the order in which they are loaded."""
    return find_standins()
