"""Which of the two loaders the BPF programs for threads are loaded with: libbpf, else BCC.

Libbpf wherever it works. BCC where libbpf or the compiled objects are missing, or where the environment variable
ROOTWALK_BPF_BACKEND says `bcc`; why it was taken comes with it, and `check` shows it.
"""

from __future__ import annotations

import os
from pathlib import Path

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.bcc_backend import BCC, LIMITS
from rootwalk.ebpf.targets import CORE, Targets
from rootwalk.instrumentation.errors import ConfigError, UnavailableError

__all__ = ["VARIABLE", "choose_targets"]

VARIABLE = "ROOTWALK_BPF_BACKEND"
# What BCC does without. All else (privileges, BTF, the namespace) it needs too.
OVERCOME_BY_BCC = frozenset({Reason.NO_LIBBPF, Reason.NO_OBJECT})


def choose_targets(root: Path = Path("/")) -> tuple[Targets, str | None]:
    """Open the table of watched processes with the loader that is wanted, or that is there.

    Args:
        root: Where /proc and /sys are.

    Returns:
        The table, which knows its loader, and why it was not libbpf and what BCC cannot; None where it was.

    Raises:
        ConfigError: If the variable names no loader.
        UnavailableError: With the reason of the loader that was wanted, else of libbpf.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", CORE.name, BCC.name):
        raise ConfigError(
            f'cannot load BPF programs: saw {VARIABLE}="{wanted}"; needs "{CORE.name}" or "{BCC.name}"',
            hint=f"unset {VARIABLE} to let Rootwalk choose",
        )
    if wanted == BCC.name:
        return Targets(root, BCC), f"{VARIABLE}={BCC.name}; {LIMITS}"
    try:
        return Targets(root), None
    except UnavailableError as missing:
        if wanted == CORE.name or missing.reason not in OVERCOME_BY_BCC:
            raise
        try:
            return Targets(root, BCC), f"{missing}; {LIMITS}"
        except UnavailableError as error:
            raise UnavailableError(
                f"cannot load BPF programs by either loader: saw {missing}; {error}",
                reason=missing.reason,
                hint=missing.hint,
            ) from error
