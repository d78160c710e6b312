"""Which rank each profile of an import is of, where the profiles may not say it.

A profile of a job with torch.distributed names its rank in `distributedInfo`, mostly before its events. Others have it
in their names, or not at all: those of dynolog are named by process, those of torch.profiler's handler by host, process
and time. Imported together, such files are ranks in their order: any order names each rank's peers rightly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rootwalk.graph.importers.content import open_content
from rootwalk.graph.importers.rank_names import ranks_of_names, refuse_claims
from rootwalk.graph.importers.sources import natural_key
from rootwalk.instrumentation.errors import DecodeError

__all__ = ["ProfileRanks", "find_ranks"]

# Of a profile's content that is searched for its rank: groups of 1,000 ranks are listed before it.
_HEAD_BYTES: Final = 2 * 1024 * 1024
_TOLD: Final = re.compile(
    rb'"distributedInfo"\s*:\s*\{.{0,200}?"rank"\s*:\s*(\d{1,7})\s*[,}]', re.DOTALL
)
_DIGITS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ProfileRanks:
    """Ranks of profiles by path.

    Attributes:
        named: Those that file names say.
        asked: Those that the user named, for files whose names say none.
        assumed: Those that nothing says: places in the order of import, 0 for a file alone.
        note: Kind of the note about what was assumed.
    """

    named: dict[Path, int]
    asked: dict[Path, int]
    assumed: dict[Path, int]
    note: str = ""

    def get(self, path: Path) -> int | None:
        """Return the rank of a profile that does not say it; None if nothing does."""
        for ranks in (self.named, self.asked, self.assumed):
            if path in ranks:
                return ranks[path]
        return None


def find_ranks(paths: Sequence[Path], asked: Sequence[int]) -> ProfileRanks:
    """Return the ranks of the profiles of one import.

    Args:
        paths: All of them.
        asked: One for each, if the user named them.

    Raises:
        ConfigError: If files of one name in several folders claim one rank.
    """
    if asked:
        return ProfileRanks(ranks_of_names(paths), dict(zip(paths, asked, strict=True)), {})
    named = ranks_of_names(paths)
    left = [path for path in paths if path not in named and _told(path) is None]
    # Several profiles of one rank are usual in one folder, a cycle of the profiler each.
    folders: dict[str, set[Path]] = {}
    for path in named:
        folders.setdefault(path.name, set()).add(path.parent)
    refuse_claims(
        {
            path: rank
            for path, rank in named.items()
            if len(folders[path.name]) > 1 and _told(path) is None
        }
    )
    if not left or len(left) < len(paths):
        return ProfileRanks(named, {}, {})
    if len({_DIGITS.sub("#", path.name) for path in left}) == 1:
        left.sort(key=natural_key)
    note = "rank_zero" if len(left) == 1 else "ranks_in_order"
    return ProfileRanks(named, {}, {path: place for place, path in enumerate(left)}, note)


def _told(path: Path) -> int | None:
    """Return the rank that a profile says before its events; None if it does not, or cannot be read."""
    try:
        with open_content(path) as content:
            match = _TOLD.search(content.read(_HEAD_BYTES))
    except (DecodeError, OSError):
        return None
    return int(match[1]) if match else None
