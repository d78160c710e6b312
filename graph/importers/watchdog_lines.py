r"""Lines of PyTorch's NCCL watchdog on stderr: what each says of a rank, whatever stands around it. Opens nothing.

    [rank1]:[E1116 05:20:01.118 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught … WorkNCCL(…)
    ^rank of the job              month, day, time              ^rank in the group

Source:
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of PyTorch 1.13 to 2.15, whose wordings these are; public reports
    with such lines: hiyouga/LlamaFactory#7396, XPixelGroup/BasicSR#737, NVIDIA/nccl#1730, sgl-project/sglang#1693.

| PyTorch | says |
|---|---|
| 1.13 to 2.1 | operation and number of what timed out, and the rank in its group |
| 2.2, 2.3 | the rank of the job (`[rankN]:`) besides; `[PG n Rank r] Timeout at NCCL work: …` |
| 2.4 | last enqueued and last completed work of the group, by its number |
| 2.5, 2.6 | the group's number, id and description: `[PG ID 0 PG GUID 0(default_pg) Rank r]` |
| 2.7 on | `failure detected by watchdog at work sequence id: … PG status: last enqueued work: …` |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Frame", "Line", "parse_line"]

# Colours and cursor movements of terminals.
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
# One message begins here, wherever in the line: several processes write to one pipe.
_HEAD: Final = re.compile(
    r"(?:\[rank(?P<rank>\d{1,7})\]:\s*)?"
    r"\[(?P<level>[EWIF])(?:(?P<month>\d{1,2})(?P<day>\d{2}) (?P<time>\d{2}:\d{2}:\d{2}(?:\.\d+)?))?"
    r"[^\]\[]{0,40}?ProcessGroupNCCL\w*\.cpp:\d+\]"
)
_RANK_PREFIX: Final = re.compile(r"\[rank(\d{1,7})\]:")
# What log collectors put before a line: ISO 8601, with or without a zone.
_STAMP: Final = re.compile(
    r"(?<!\d)(\d{4})-(\d{2})-(\d{2})[T ](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,9}))?"
)
_GROUP: Final = re.compile(
    r"\[PG(?: ID)? (?P<id>\d{1,9})(?: PG GUID (?P<uid>[^\s()\]]{1,200})(?:\((?P<name>[^)\]]{0,200})\))?)?"
    r" Rank (?P<place>\d{1,7})\]"
)
_PLACE: Final = re.compile(r"\[Rank (\d{1,7})\]")
_TIMEOUT: Final = re.compile(
    r"caught collective operation timeout: WorkNCCL\((?P<fields>[^()]*(?:\([^()]*\)[^()]*)*)\)"
    r"(?: ran for (?P<ran>\d{1,12}) milliseconds)?"
)
_FIELD: Final = re.compile(r"(SeqNum|OpType|NumelIn|NumelOut|Timeout\(ms\))\s*=\s*(-?\w+)")
_FAILED: Final = re.compile(
    r"(?:detected by watchdog at work(?: sequence id)?|Timeout at NCCL work)\s*:\s*(\d{1,18})"
)
_ENQUEUED: Final = re.compile(r"last enqueued (?:\w+ )?work: (-?\d{1,18})", re.IGNORECASE)
_COMPLETED: Final = re.compile(r"last completed (?:\w+ )?work: (-?\d{1,18})", re.IGNORECASE)
_FROM: Final = re.compile(r"collective timeout from\s+(?:global )?rank (\d{1,7})")
_BEGUN: Final = re.compile(
    r"caught collective operation timeout|last enqueued (?:\w+ )?work", re.IGNORECASE
)
_STACK: Final = re.compile(r"Stack trace of the failed collective:\s*$")
_FRAME: Final = re.compile(r"(?:^|\s|:)#(\d{1,3}) (\S{1,200}) from (\S{1,1000}?):(\d{1,9})\s*$")
_WORLD: Final = re.compile(
    r"(?:\bnranks[ =:]|\bworld[_ ]?size[\"']?\s*[=:]\s*)(\d{1,7})\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the stack of a rank's failed call, innermost first."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """What one message says; None where it does not.

    Attributes:
        rank: Rank of the job, if the message has PyTorch's own prefix.
        place: Rank in the group.
        clock: Month, day, hour, minute and seconds that PyTorch wrote; on the host's own clock, without the year.
        stamp: Year, month, day, hour, minute and seconds that a log collector wrote.
        group: Id of the group, the same at all members; empty where the message names none.
        group_name: What the job calls it.
        sequence: Number of the collective that timed out.
        operation: PyTorch's name of it, such as `ALLREDUCE`.
        elements_in: Numbers that each member gives.
        elements_out: Numbers that each member takes.
        timeout_ms: How long it was allowed to take.
        ran_ms: How long it took so far.
        enqueued: Number of the last collective that the rank has issued in the group.
        completed: Number of the last one that has ended there.
        other_rank: Another rank of the job that the message names.
        world_size: Ranks of the job or of a communicator, where a line names them.
        is_cut: Whether the message is one of the watchdog's and its end is missing.
        is_stack: Whether the lines that follow are the stack of the rank's failed call.
        frame: A line of such a stack.
    """

    rank: int | None = None
    place: int | None = None
    clock: tuple[int, int, int, int, float] | None = None
    stamp: tuple[int, int, int, int, int, float] | None = None
    group: str | None = None
    group_name: str = ""
    sequence: int | None = None
    operation: str | None = None
    elements_in: int | None = None
    elements_out: int | None = None
    timeout_ms: int | None = None
    ran_ms: int | None = None
    enqueued: int | None = None
    completed: int | None = None
    other_rank: int | None = None
    world_size: int | None = None
    is_cut: bool = False
    is_stack: bool = False
    frame: Frame | None = None


def parse_line(text: str) -> Iterator[Line]:
    """Yield what a line of a log says of ranks and their collectives: one item for each message in it."""
    plain = _ANSI.sub("", text)
    frame = _FRAME.search(plain)
    if frame is not None:
        file = re.split(r"[/\\]", frame[3])[-1]
        prefix = _RANK_PREFIX.search(plain)
        yield Line(
            rank=int(prefix[1]) if prefix else None,
            frame=Frame(int(frame[1]), f"{frame[2]} ({file}:{frame[4]})"),
        )
        return
    heads = list(_HEAD.finditer(plain))
    if not heads:
        yield from _without_head(plain)
        return
    stamp = _stamp(plain[: heads[0].start()])
    ends = [head.start() for head in heads[1:]] + [len(plain)]
    for head, end in zip(heads, ends, strict=True):
        yield _message(plain[head.end() : end], head, stamp)


def _without_head(plain: str) -> Iterator[Line]:
    """Yield what a line without PyTorch's head says: the text of an exception, and the size of the job."""
    world = _WORLD.search(plain)
    if world is not None:
        yield Line(world_size=int(world[1]))
    if _BEGUN.search(plain) is not None:
        yield _message(plain, None, _stamp(plain))


def _message(text: str, head: re.Match[str] | None, stamp: tuple[int, ...] | None) -> Line:
    group = _GROUP.search(text)
    place = group["place"] if group else (m[1] if (m := _PLACE.search(text)) else None)
    prefix = head["rank"] if head else (m[1] if (m := _RANK_PREFIX.search(text)) else None)
    timeout = _TIMEOUT.search(text)
    fields = dict(_FIELD.findall(timeout["fields"])) if timeout else {}
    failed, other = _FAILED.search(text), _FROM.search(text)
    enqueued, completed = _ENQUEUED.search(text), _COMPLETED.search(text)
    is_whole = timeout is not None and "SeqNum" in fields and "OpType" in fields
    return Line(
        rank=_integer(prefix),
        place=_integer(place),
        clock=_clock(head),
        stamp=_numbers(stamp),
        group=None if group is None else (group["uid"] or group["id"]),
        group_name=(group["name"] or "") if group else "",
        sequence=_integer(fields.get("SeqNum") if is_whole else (failed[1] if failed else None)),
        operation=fields.get("OpType") if is_whole else None,
        elements_in=_integer(fields.get("NumelIn")),
        elements_out=_integer(fields.get("NumelOut")),
        timeout_ms=_integer(fields.get("Timeout(ms)")),
        ran_ms=_integer(timeout["ran"]) if timeout else None,
        enqueued=_integer(enqueued[1]) if enqueued else None,
        completed=_integer(completed[1]) if completed else None,
        other_rank=_integer(other[1]) if other else None,
        is_cut=_BEGUN.search(text) is not None and not is_whole and enqueued is None,
        is_stack=_STACK.search(text) is not None,
    )


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None


def _clock(head: re.Match[str] | None) -> tuple[int, int, int, int, float] | None:
    if head is None or head["time"] is None:
        return None
    hour, minute, second = head["time"].split(":")
    return int(head["month"]), int(head["day"]), int(hour), int(minute), float(second)


def _stamp(text: str) -> tuple[int, ...] | None:
    found = list(_STAMP.finditer(text))
    if not found:
        return None
    *whole, fraction = found[-1].groups()
    return (*map(int, whole), int((fraction or "0").ljust(9, "0")[:9]))


def _numbers(stamp: tuple[int, ...] | None) -> tuple[int, int, int, int, int, float] | None:
    if stamp is None:
        return None
    year, month, day, hour, minute, second, fraction = stamp
    return year, month, day, hour, minute, second + fraction / 1e9
