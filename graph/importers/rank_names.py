"""Ranks from the names of files, as people and tools give them; pure.

    fr_rank_3_node01.json      a word before the number says it, wherever that is
    rank_3/trace.json          so does a folder's
    3_node01_2024-11-16.json   of numbers without a word, the one that counts the files from 0
    nccl_trace_rank_host_12    else the last number, which PyTorch's own names end with

Several files that claim one rank are for the caller to refuse.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rootwalk.instrumentation.errors import ConfigError

__all__ = ["last_number", "ranks_of_names", "refuse_claims", "word_rank"]

# More than any job has: a larger number is a date, a process or a time.
MAX_RANK: Final = 1 << 20
# One file alone is counted by nothing.
_MIN_COUNTED: Final = 2
# Files that are named in an error.
_MAX_LISTED: Final = 4
# Folders above a file that may name its rank.
_FOLDERS: Final = 3
_NUMBER: Final = r"[-_. =#]*(\d{1,7})(?!\d)"
# From the surest on. A rank within a host counts only where nothing else is said.
_WORDS: Final = (
    re.compile(rf"global[-_. ]?rank{_NUMBER}", re.IGNORECASE),
    re.compile(
        rf"(?<!local)(?<!local[-_. ])(?<![a-z])(?:(?:node|dp|tp|pp|ep|cp)[-_. ]?)?rank{_NUMBER}",
        re.IGNORECASE,
    ),
    re.compile(rf"(?<![a-z])worker{_NUMBER}", re.IGNORECASE),
    re.compile(rf"local[-_. ]?rank{_NUMBER}", re.IGNORECASE),
)
_GROUP_RANK: Final = re.compile(r"(?:node|dp|tp|pp|ep|cp)[-_. ]?rank$", re.IGNORECASE)
_DIGITS: Final = re.compile(r"\d+")
_SUFFIXES: Final = re.compile(
    r"(?:\.(?:json|jsonl|pickle|pkl|bin|trace|pt|gz|zst|log|txt|dump|out|err))+$", re.IGNORECASE
)
_LAST: Final = re.compile(r"(\d{1,7})$")


def word_rank(path: Path) -> int | None:
    """Return the rank that a word tells in a file's name, else in those of the folders above it.

    >>> word_rank(Path("fr_rank_3_node01.json"))
    3
    """
    for name in (path.name, *(folder.name for folder in list(path.parents)[:_FOLDERS])):
        for pattern in _WORDS:
            for match in pattern.finditer(name):
                if not _is_group_rank(name, match) and int(match[1]) < MAX_RANK:
                    return int(match[1])
    return None


def _is_group_rank(name: str, match: re.Match[str]) -> bool:
    """Return whether a number is the rank of a node or in a group, not in the job."""
    return bool(_GROUP_RANK.search(name[: match.start(1)].rstrip("-_. =#")))


def last_number(path: Path) -> int | None:
    """Return the number that a file's name ends with, without its suffixes; None if it ends with none.

    >>> last_number(Path("nccl_trace_rank_host2_12.json.gz"))
    12
    """
    match = _LAST.search(_SUFFIXES.sub("", path.name))
    return int(match[1]) if match else None


def ranks_of_names(paths: Sequence[Path], *, are_some: bool = False) -> dict[Path, int]:
    """Return the ranks that names tell: by a word, else by the number that counts the files of an import.

    A path whose name tells none is left out.

    Args:
        paths: All files of the import.
        are_some: Whether files may be missing, so that the one number in which all names differ is the rank.
    """
    found = {path: rank for path in paths if (rank := word_rank(path)) is not None}
    left = [path for path in paths if path not in found]
    return found | _counted(left, set(found.values()), are_some=are_some)


def _counted(paths: Sequence[Path], taken: set[int], *, are_some: bool) -> dict[Path, int]:
    """Return the ranks of files by the place in their names at which the numbers are 0, 1, 2, … of all."""
    if len(paths) < _MIN_COUNTED:
        return {}
    wanted = set(range(len(paths) + len(taken))) - taken
    numbers = {path: _numbers(path) for path in paths}
    least = min(map(len, numbers.values()))
    differing = []
    # From the end and from the front of the names: hosts' names have numbers of their own, not all equally many.
    for place in (*range(-1, -least - 1, -1), *range(least)):
        values = [numbers[path][place] for path in paths]
        if len(set(values)) == len(values):
            if set(values) <= wanted:
                return dict(zip(paths, values, strict=True))
            if values not in differing:
                differing.append(values)
    if are_some and len(differing) == 1 and max(differing[0]) < MAX_RANK:
        return dict(zip(paths, differing[0], strict=True))
    return {}


def _numbers(path: Path) -> list[int]:
    """Return the numbers in the name of a file and of the folder that it is in; at least one."""
    name = f"{path.parent.name}/{_SUFFIXES.sub('', path.name)}"
    return [int(text) for text in _DIGITS.findall(name) if len(text) < 19] or [MAX_RANK]


def refuse_claims(ranks: Mapping[Path, int]) -> None:
    """Do nothing if every file has a rank of its own.

    Raises:
        ConfigError: If several files claim one rank.
    """
    by_rank: dict[int, list[Path]] = defaultdict(list)
    for path, rank in ranks.items():
        by_rank[rank].append(path)
    for rank, paths in sorted(by_rank.items()):
        if len(paths) > 1:
            is_one_name = len({path.name for path in paths}) < len(paths)
            names = [
                f'"{path.parent.name}/{path.name}"' if is_one_name else f'"{path.name}"'
                for path in paths
            ]
            more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
            raise ConfigError(
                f"cannot tell the ranks of the files: saw rank {rank} for {', '.join(names[:_MAX_LISTED])}{more};"
                " needs one file a rank",
                hint="leave out all but one, or name the ranks in the order of the files, such as --rank 0,1,2,3",
            )
