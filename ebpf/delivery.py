"""Says once that the endpoint is away, and once that it is back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["DeliveryWatch"]

logger = logging.getLogger(__name__)

# A receiver that is started again is back within two or three seconds; that is nobody's concern.
AWAY_TOLD_S = 5.0


class DeliveryWatch:
    """Follows what became of each request.

    Both sentences are errors to the logger: an agent beside a job speaks of nothing less, and who has read the first
    waits for the second.

    Args:
        endpoint: OTLP/HTTP base URL, for the sentences.
        clock_s: Monotonic clock, s.
    """

    def __init__(self, endpoint: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint
        self._clock_s = clock_s
        self._away_since_s: float | None = None
        self._is_told = False

    def note(self, *, is_taken: bool) -> None:
        """Note whether the endpoint has taken the last request."""
        now_s = self._clock_s()
        if is_taken:
            if self._is_told and self._away_since_s is not None:
                away_s = now_s - self._away_since_s
                logger.error(
                    "%s answers again after %.0f s: sending what waited", self._endpoint, away_s
                )
            self._away_since_s, self._is_told = None, False
            return
        if self._away_since_s is None:
            self._away_since_s = now_s
        if not self._is_told and now_s - self._away_since_s >= AWAY_TOLD_S:
            self._is_told = True
            logger.error(
                "nobody takes telemetry at %s: the job goes on, its telemetry waits in memory",
                self._endpoint,
            )
