"""Which of the two loaders the BPF programs for threads are loaded with: libbpf, else BCC.

Libbpf wherever it works. BCC where libbpf or the compiled objects are missing, or where the environment variable
ROOTWALK_BPF_BACKEND says `bcc`; why it was taken is in `why`, and `check` shows it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.bcc_backend import BccBackend, BccTargets
from rootwalk.ebpf.core_backend import CoreBackend
from rootwalk.ebpf.targets import Targets
from rootwalk.instrumentation.errors import ConfigError, UnavailableError

__all__ = ["VARIABLE", "Choice", "choose_targets", "open_bpf_scheduler"]

VARIABLE = "ROOTWALK_BPF_BACKEND"
CORE, BCC = "core", "bcc"
# What BCC does without. All else (privileges, BTF, the namespace) it needs too.
OVERCOME_BY_BCC = frozenset({Reason.NO_LIBBPF, Reason.NO_OBJECT})


class Choice(NamedTuple):
    """The table of watched processes, and why it was not made by libbpf; None where it was."""

    targets: Targets
    why: str | None


def choose_targets(root: Path = Path("/")) -> Choice:
    """Open the table of watched processes with the loader that is wanted, or that is there.

    Args:
        root: Where /proc and /sys are.

    Raises:
        ConfigError: If the variable names no loader.
        UnavailableError: With the reason of the loader that was wanted, else of libbpf.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", CORE, BCC):
        raise ConfigError(
            f'cannot load BPF programs: saw {VARIABLE}="{wanted}"; needs "{CORE}" or "{BCC}"',
            hint=f"unset {VARIABLE} to let Rootwalk choose",
        )
    if wanted == BCC:
        return Choice(BccTargets(root), f"{VARIABLE}={BCC}")
    try:
        return Choice(Targets(root), None)
    except UnavailableError as error:
        if wanted == CORE or error.reason not in OVERCOME_BY_BCC:
            raise
        return _choose_bcc(root, error)


def _choose_bcc(root: Path, missing: UnavailableError) -> Choice:
    try:
        return Choice(BccTargets(root), str(missing))
    except UnavailableError as error:
        raise UnavailableError(
            f"{missing}; nor by BCC: {error}", reason=missing.reason, hint=missing.hint
        ) from error


def open_bpf_scheduler(targets: Targets) -> CoreBackend:
    """Load the scheduler program with the loader that made the table.

    Raises:
        UnavailableError: With a `Reason` when it cannot be loaded here.
    """
    return BccBackend(targets) if isinstance(targets, BccTargets) else CoreBackend(targets)
