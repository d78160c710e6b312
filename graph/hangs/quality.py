"""What is wrong with the dumps that a verdict about a hang rests on (contract section 2), in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from rootwalk.graph.hangs.flight_records import RankRecord
from rootwalk.graph.hangs.judge import Hang
from rootwalk.graph.hangs.moments import Doubled
from rootwalk.graph.model import DataQuality, QualityCode

__all__ = ["find_problems"]


def find_problems(
    hang: Hang, records: Sequence[RankRecord], doubled: Doubled
) -> tuple[DataQuality, ...]:
    """Return what is wrong with the dumps of a job.

    Args:
        hang: What they say.
        records: One a rank, also those that are not used.
        doubled: Ranks with several dumps.
    """
    unlike = hang.unlike
    bad_times = sum(record.bad_times for record in records)
    found = [
        _about(QualityCode.RANK_MISSING, hang.missing, f"no dump from {{}} of {hang.world} ranks"),
        _about(
            QualityCode.DUPLICATE_RANK,
            doubled.settled,
            "several dumps from {} ranks, the later used",
        ),
        _about(
            QualityCode.DUPLICATE_RANK,
            doubled.unsettled,
            "dumps that contradict each other from {} ranks, none used",
        ),
        _about(
            QualityCode.UNEQUAL_MEMBERS,
            unlike.members,
            "dumps of {} ranks name other members of a communicator than most: not used",
        ),
        _about(
            QualityCode.UNEQUAL_MEMBERS,
            unlike.progress,
            "dumps of {} ranks are older than others, which show later calls as ended: not used",
        ),
        _about(
            QualityCode.CLOCK_UNALIGNED,
            unlike.times,
            "dumps of {} ranks are of another time than the others: not used",
        ),
        _mixed("format", ((record.rank, record.version) for record in records)),
        _mixed("library", ((record.rank, record.library) for record in records)),
    ]
    untold = _untold(hang, records)
    if untold:
        text = (
            "not known who else is waited for: the dumps do not list all members of"
            f" {untold} communicators in which ranks wait"
        )
        found.append(DataQuality(QualityCode.MISSING_EDGE, text, untold))
    if bad_times:
        text = (
            f"{bad_times} calls end before they begin, or were issued before the call before them"
        )
        found.append(DataQuality(QualityCode.BAD_TIME, text, bad_times))
    return tuple(item for item in found if item is not None)


def _untold(hang: Hang, records: Iterable[RankRecord]) -> int:
    """Return in how many communicators ranks wait whose members are not all told, where nobody is to blame."""
    waited = set() if hang.blames else {operation.communicator for operation in hang.operations}
    return len(
        {
            frontier.communicator
            for record in records
            for frontier in record.frontiers
            if frontier.communicator in waited and not frontier.is_whole
        }
    )


def _about(code: QualityCode, ranks: Collection[int], text: str) -> DataQuality | None:
    """Return a statement about some ranks; None without any. `{}` stands for their number."""
    if not ranks:
        return None
    ordered = sorted(ranks)
    listed = ", ".join(str(rank) for rank in ordered[:8]) + (", …" if len(ordered) > 8 else "")
    return DataQuality(code, f"{text.format(len(ordered))} ({listed})", len(ordered))


def _mixed(what: str, versions: Iterable[tuple[int, str]]) -> DataQuality | None:
    """Return a statement if the ranks' versions differ, about the ranks outside the largest group."""
    version_by_rank = {rank: version for rank, version in versions if version}
    counts = Counter(version_by_rank.values())
    if len(counts) < 2:
        return None
    usual = min(counts, key=lambda version: (-counts[version], version))
    others = [rank for rank, version in version_by_rank.items() if version != usual]
    listed = ", ".join(sorted(counts))
    text = f"dumps of {len(counts)} versions of the {what}: {listed}; not {usual}: {{}} ranks"
    return _about(QualityCode.MIXED_VERSIONS, others, text)
