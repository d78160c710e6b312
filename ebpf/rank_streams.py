"""The streams of all rings that an agent reads: one that fails ends alone.

A ring is a file that another user may write. What it provokes, whatever that is, must not end the round, the stream of
another rank, or the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rootwalk.ebpf.rank_stream import RankStream
from rootwalk.ebpf.ring_files import RingFiles
from rootwalk.ebpf.watched import WatchedRanks

__all__ = ["RankStreams"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class RankStreams(dict[Path, RankStream]):
    """Streams by the path of their ring.

    Args:
        files: Where the rings are from.
        ranks: Whose streams they are.
    """

    def __init__(self, files: RingFiles, ranks: WatchedRanks) -> None:
        super().__init__()
        self._files = files
        self._ranks = ranks

    def each(self, turn: Callable[[RankStream], T]) -> list[tuple[RankStream, T]]:
        """Do something for every stream, and return what came of it; one for which it fails is left out for good."""
        results = []
        for path, stream in list(self.items()):
            try:
                result = turn(stream)
            except Exception as error:  # noqa: BLE001  (whatever a file of another user provokes)
                self._leave_out(path, f"what provoked {type(error).__name__} ({error})")
                continue
            if stream.broken is None:
                results.append((stream, result))
            else:
                self._leave_out(path, stream.broken)
        return results

    def _leave_out(self, path: Path, saw: str) -> None:
        self._files.reject(path, saw)
        self.drop(path)

    def drop(self, path: Path) -> None:
        """Close a stream and forget it."""
        stream = self.pop(path)
        stream.close()
        rank = self._ranks.find(stream.identity.pid)
        if rank is not None and stream in rank.streams:
            rank.streams.remove(stream)
