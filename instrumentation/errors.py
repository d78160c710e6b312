"""Errors that Rootwalk raises on purpose.

    RootwalkError
    ├── ConfigError              wrong input from the user, before anything starts
    ├── UnavailableError         a capability is missing on this machine
    ├── DecodeError              bytes that are not what they claim
    ├── StoreError               the database file cannot be used
    └── InsufficientDataError    not enough telemetry for the question

The text has one form: ``cannot <attempt>: <saw>; <needs>``, and a hint for the next step. The command line
prints both and exits; nothing else catches these for show. Standard library only: everyone may import this.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "DecodeError",
    "InsufficientDataError",
    "RootwalkError",
    "StoreError",
    "UnavailableError",
]


class RootwalkError(Exception):
    """Something that was attempted cannot be done, for a reason that the user can read.

    Args:
        text: ``cannot X: saw Y; needs Z``, lower case, no full stop.
        hint: The next step for the user, or None.
        exit_code: What the command line exits with.
    """

    def __init__(self, text: str, *, hint: str | None = None, exit_code: int = 1) -> None:
        super().__init__(text)
        self.hint = hint
        self.exit_code = exit_code


class ConfigError(RootwalkError):
    """The user asked for something that cannot be asked; nothing has been started. Exits with 2."""

    def __init__(self, text: str, *, hint: str | None = None) -> None:
        super().__init__(text, hint=hint, exit_code=2)


class UnavailableError(RootwalkError):
    """A capability is missing on this machine.

    Args:
        text: As for `RootwalkError`.
        reason: One word in capitals, the same that `rootwalk check` prints.
        hint: The next step for the user, or None.
    """

    def __init__(self, text: str, *, reason: str, hint: str | None = None) -> None:
        super().__init__(text, hint=hint)
        self.reason = reason


class DecodeError(RootwalkError):
    """Bytes are not what they claim to be."""


class StoreError(RootwalkError):
    """The database file cannot be used: not ours, of another version, locked, or not writable."""


class InsufficientDataError(RootwalkError):
    """There is not enough telemetry for the question; the text names what is missing."""
