"""By which exception a rank's program ends: its type and place, never its text or a value.

    uncaught in the main thread    sys.excepthook, which is chained; sys.last_value where the program has replaced it
    in a child of multiprocessing  no hook is called: the exception that is on its way when exit handlers run
    torch.multiprocessing.spawn    the same, behind the SystemExit that it becomes there

Nothing here prints, or changes how the program ends. Standard library only.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, TracebackType

from rootwalk.instrumentation import identity

__all__ = ["describe_exception", "find_exception", "has_inherited_rank", "watch_exceptions"]

# Enough to find the place; a stack of a deep recursion has thousands.
MAX_FRAMES = 16
# As tracebacks name it: the path by which this package was imported.
OWN_FOLDER = f"{Path(__file__).parent}{os.sep}"
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
# What turns the exception of a rank that `torch.multiprocessing` has spawned into an exit code.
SPAWN = ("torch", "multiprocessing", "spawn.py")
RANK_VARIABLES = (
    *identity.RANK_VARIABLES,
    *identity.WORLD_SIZE_VARIABLES,
    *identity.LOCAL_RANK_VARIABLES,
)
# Processes that a launcher starts to start a rank; they have its environment and are not the rank.
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "srun", "env", "numactl", "taskset"})


def watch_exceptions(note: Callable[[BaseException], None]) -> None:
    """Have a function called with every uncaught exception, before the hook that is there now.

    Args:
        note: Takes the exception; it may not raise.
    """
    shown = sys.excepthook

    def excepthook(
        kind: type[BaseException], exception: BaseException, traceback: TracebackType | None
    ) -> None:
        note(exception)
        shown(kind, exception, traceback)

    sys.excepthook = excepthook


def find_exception() -> BaseException | None:
    """Return the exception by which the program ends, seen from an exit handler; None where it ends by itself."""
    found = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(found, SystemExit):
        return found.__context__ if _is_spawned_exit(found) else None
    return found


def _is_spawned_exit(exception: SystemExit) -> bool:
    innermost = None
    traceback = exception.__traceback__
    while traceback is not None:
        innermost, traceback = traceback.tb_frame.f_code, traceback.tb_next
    return innermost is not None and Path(innermost.co_filename).parts[-len(SPAWN) :] == SPAWN


def describe_exception(exception: BaseException) -> tuple[str, list[str]]:
    """Return an exception's type and where it came from, innermost first, `function (file:line)`.

    What lies in libraries, and in Rootwalk's hooks, below the program's own innermost function is left out; where no
    function is the program's own, everything stays.
    """
    kind = type(exception)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    places: list[tuple[CodeType, int]] = []
    traceback = exception.__traceback__
    while traceback is not None:
        places.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    places.reverse()
    library = sysconfig.get_path("stdlib")
    own = [n for n, (code, _) in enumerate(places) if not _is_library(code.co_filename, library)]
    kept = places[own[0] if own else 0 :][:MAX_FRAMES]
    return name, [f"{c.co_name} ({os.path.basename(c.co_filename)}:{line})" for c, line in kept]  # noqa: PTH119


def _is_library(file: str, library: str) -> bool:
    parts = Path(file).parts
    if file.startswith(("<frozen", library, OWN_FOLDER)):
        return True
    return any(one in parts for one in PACKAGE_FOLDERS)


def has_inherited_rank(environment: Mapping[str, str]) -> bool:
    """Return whether this process has its rank from its parent, as a helper that a rank has started.

    Args:
        environment: Its own environment.
    """
    parent = Path("/proc") / str(os.getppid())
    try:
        if (parent / "comm").read_text(encoding="utf-8", errors="replace").strip() in SHELLS:
            return False
        entries = (parent / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    names = {name.encode(): name for name in RANK_VARIABLES}
    pairs = (entry.partition(b"=")[::2] for entry in entries)
    parents = {names[key]: value.decode(errors="replace") for key, value in pairs if key in names}
    own = {name: environment[name] for name in RANK_VARIABLES if name in environment}
    return bool(own) and all(parents.get(name) == value for name, value in own.items())
