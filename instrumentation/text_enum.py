"""`StrEnum` on every Python that a training job may run on: 3.10 has none of its own. Standard library only."""

from __future__ import annotations

import sys

__all__ = ["StrEnum"]

if sys.version_info >= (3, 11):  # noqa: UP036  (jobs may run on 3.10, though the host side may not)
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):  # noqa: UP042
        """An enumeration whose members are texts, and print as them."""

        __str__ = str.__str__
        __format__ = str.__format__
