"""Messages that a peer can provoke: a few a minute, however much it sends, and how many more there were."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

__all__ = ["RateLimit", "limited_logger", "log_loop_errors"]

# Of messages from one place in the code.
MAX_MESSAGES: Final = 5
INTERVAL_S: Final = 60.0
# Messages longer than that are cut: they may quote what a peer sent.
MAX_MESSAGE_CHARS: Final = 500

_Clock = Callable[[], float]


class RateLimit(logging.Filter):
    """Lets through a few messages a minute from each place in the code, each on one line and without a traceback."""

    def __init__(self, clock: _Clock = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._since_s: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a message is let through."""
        place = f"{record.pathname}:{record.lineno}"
        now_s = self._clock()
        before = 0
        if now_s - self._since_s.get(place, -INTERVAL_S) >= INTERVAL_S:
            before = max(0, self._counts.get(place, 0) - MAX_MESSAGES)
            self._since_s[place], self._counts[place] = now_s, 0
        self._counts[place] += 1
        if self._counts[place] > MAX_MESSAGES:
            return False
        text = " ".join(record.getMessage().split())[:MAX_MESSAGE_CHARS]
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            said = " ".join(str(error).split())[:MAX_MESSAGE_CHARS]
            text = f"{text}: {type(error).__name__} {said}"
        if before:
            text = f"{text} (and {before} more like it before)"
        record.msg, record.args = text, ()
        record.exc_info = record.exc_text = None
        return True


def limited_logger(name: str) -> logging.Logger:
    """Return a logger whose messages are limited."""
    logger = logging.getLogger(name)
    if not any(isinstance(f, RateLimit) for f in logger.filters):
        logger.addFilter(RateLimit())
    return logger


def log_loop_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Limit what an event loop says of failed accepts, handshakes and transports."""
    logger = limited_logger(f"{__name__}.loop")

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        saw = f": {type(error).__name__} {error}" if error is not None else ""
        # The loop's own message says where it was, so each has its own limit.
        record = logger.makeRecord(
            logger.name, logging.WARNING, context["message"], 0, "%s", (), None
        )
        record.msg = f"the server had a problem: {context['message']}{saw}"
        logger.handle(record)

    loop.set_exception_handler(handle)
