"""The setting of the priors that a command without the option takes from the environment."""

from __future__ import annotations

__all__ = ["check_priors"]


def check_priors() -> None:
    """Refuse a setting in ROOTWALK_PRIORS that cannot be used, before anything starts.

    Raises:
        ConfigError: If there is no such setting or file, or the file is not what it should be.
    """
    # Not before a command runs: other verbs do without the rules.
    from rootwalk.graph.reasons.priors import choose_priors

    choose_priors(None)
