"""How many examples a property is tried on: a share of what the profile says, which is 100 unless told otherwise."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

__all__ = ["examples"]


def examples(share: float, **more: Any) -> settings:
    """Return settings with so many times the examples of the profile that is loaded."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=max(round(profile.max_examples * share), 1), deadline=None, **more)
