"""Things that tests of single readers make too, for the length of a run: what they would skip is not possible here."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

import pytest

from rootwalk.instrumentation.errors import UnavailableError

T = TypeVar("T")


class Borrowed(ExitStack):
    """Holds them, and lets go of all in the other order."""

    def borrow(self, maker: AbstractContextManager[T]) -> T:
        """Enter one.

        Raises:
            UnavailableError: If it cannot be had here, with the reason.
        """
        try:
            return self.enter_context(maker)
        except pytest.skip.Exception as reason:
            raise UnavailableError(f"cannot cause it here: {reason}", reason="NOT_HERE") from reason
