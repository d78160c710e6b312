"""What tests of the kernel's readers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rootwalk.ebpf.targets import Targets
from support.bpf_programs import open_targets


@pytest.fixture
def targets() -> Iterator[Targets]:
    """Yield the table of watched processes."""
    with open_targets() as opened:
        yield opened
