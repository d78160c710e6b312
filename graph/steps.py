"""Build the step graph: every operation of a run of steps as one acyclic graph.

    rank 0  |-- exec --|-- exec --|~~~~ wait ~~~~|- exec -|      lane of the main thread, tiles time
                       | issue                | end
                        [----- collective ------]
                        |  barrier: starts to move when the last member is ready
    rank 1  |------- exec ------------|-exec-|~~~|- exec -|

Owns the cut of lanes into operations (phase bounds, issue times of collectives, waits of the main thread for them).
A wait has no work of its own: in a replay it ends when its lane and its collective allow. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from rootwalk.graph.align import is_symmetric
from rootwalk.graph.columns import FloatArray, IntArray, JobData, ThreadState
from rootwalk.graph.lanes import Region, cut_region, regions_of
from rootwalk.graph.model import DataQuality, QualityCode
from rootwalk.graph.slots import SlotKeys


class OpKind(IntEnum):
    """What a node of the step graph is."""

    SOURCE = 0
    EXEC = 1
    WAIT = 2
    COLLECTIVE = 3


@dataclass(frozen=True, slots=True)
class Group:
    """The members of one collective, as node numbers; `depends_on` is None for a full barrier."""

    members: IntArray
    label: str
    communicator: str
    depends_on: tuple[IntArray, ...] | None


@dataclass(frozen=True, slots=True)
class RegionTable:
    """One row per region and step: bounds, the part spent waiting, and the states of the main thread."""

    region: IntArray
    step: IntArray
    start_s: FloatArray
    end_s: FloatArray
    wait_s: FloatArray
    states: FloatArray


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Arrays over nodes; -1 where a link does not exist. `step` is the position in `step_numbers`.

    `end_s` of a collective never precedes `start_s`; `work_s` is duration for EXEC, transfer for COLLECTIVE,
    0 otherwise. `row` is the row in `JobData.collectives`, -1 for lane nodes. `order` lists lane nodes by number
    and groups as -1 - group.
    """

    step_numbers: tuple[int, ...]
    start_s: float
    end_s: float
    kind: IntArray
    rank: IntArray
    step: IntArray
    slot: IntArray
    op_start_s: FloatArray
    op_end_s: FloatArray
    work_s: FloatArray
    lane_pred: IntArray
    wait_on: IntArray
    lag_s: FloatArray
    previous: IntArray
    group: IntArray
    row: IntArray
    groups: tuple[Group, ...]
    lane_end: dict[int, int]
    order: tuple[int, ...]
    regions: RegionTable
    keys: SlotKeys
    quality: tuple[DataQuality, ...]

    def ready_s(self, nodes: IntArray) -> FloatArray:
        """Return when each of these collective members was ready to move, as recorded."""
        issued = self.op_start_s[nodes]
        before = self.previous[nodes]
        return np.where(before >= 0, np.maximum(issued, self.op_end_s[before]), issued)


class _Nodes:
    """Columns of nodes while they grow."""

    def __init__(self) -> None:
        self.kind: list[int] = []
        self.rank: list[int] = []
        self.step: list[int] = []
        self.slot: list[int] = []
        self.start: list[float] = []
        self.end: list[float] = []
        self.lane_pred: list[int] = []
        self.wait_on: list[int] = []
        self.lag: list[float] = []
        self.row: list[int] = []

    def add(
        self,
        kind: OpKind,
        place: tuple[int, int, int],
        bounds: tuple[float, float],
        lane_pred: int,
        *,
        wait_on: int = -1,
        lag: float = 0.0,
        row: int = -1,
    ) -> int:
        """Append one node at (rank, step, slot) and return its number."""
        self.kind.append(kind)
        self.rank.append(place[0])
        self.step.append(place[1])
        self.slot.append(place[2])
        self.start.append(bounds[0])
        self.end.append(bounds[1])
        self.lane_pred.append(lane_pred)
        self.wait_on.append(wait_on)
        self.lag.append(lag)
        self.row.append(row)
        return len(self.kind) - 1


def build(
    data: JobData, step_numbers: tuple[int, ...], start_s: float, keys: SlotKeys
) -> StepGraph:
    """Return the step graph of a run of steps.

    Args:
        data: Telemetry on the aligned clock.
        step_numbers: Steps in order, without a gap; every rank that has them all gets a lane.
        start_s: When the first of them began for the job: the end of the step before, over all ranks.
        keys: Numbers shared with other graphs of the same diagnosis.

    Returns:
        A graph whose lanes tile each rank's steps exactly.
    """
    nodes = _Nodes()
    node_of_row: dict[int, int] = {}
    table: list[tuple[Region, int, int, float]] = []
    lane_end: dict[int, int] = {}
    for rank, regions_by_step in regions_of(data, step_numbers).items():
        first = regions_by_step[0][0]
        last = nodes.add(OpKind.SOURCE, (rank, 0, -1), (first.start_s, first.start_s), -1)
        for index, regions in enumerate(regions_by_step):
            for region in regions:
                number = keys.region(rank, region.name, region.ordinal)
                last, waited_s = _add_region(
                    nodes, node_of_row, region, (rank, index), number, keys, last
                )
                table.append((region, number, index, waited_s))
        lane_end[rank] = last
    _link_waits(nodes, node_of_row)
    return _finish(data, step_numbers, start_s, keys, nodes, node_of_row, lane_end, table)


def _add_region(
    nodes: _Nodes,
    node_of_row: dict[int, int],
    region: Region,
    place: tuple[int, int],
    number: int,
    keys: SlotKeys,
    last: int,
) -> tuple[int, float]:
    """Append one region's operations to a lane; return its last node and the seconds waited."""
    rank, step = place
    position = 0
    waited_s = 0.0
    for piece in cut_region(region):
        slot = keys.slot(number, position, False)
        if piece.issued_row is not None:
            own = keys.slot(number, position, True)
            end_s = max(piece.collective_end_s, piece.start_s)
            # The lane may pass the issue time inside a wait when another thread issued it.
            lag = piece.start_s - nodes.end[last]
            node_of_row[piece.issued_row] = nodes.add(
                OpKind.COLLECTIVE,
                (rank, step, own),
                (piece.start_s, end_s),
                last,
                lag=lag,
                row=piece.issued_row,
            )
            position += 1
        elif piece.waited_row is not None:
            lag = piece.end_s - piece.collective_end_s
            bounds = (piece.start_s, piece.end_s)
            last = nodes.add(
                OpKind.WAIT, (rank, step, slot), bounds, last, wait_on=piece.waited_row, lag=lag
            )
            waited_s += piece.end_s - piece.start_s
        else:
            last = nodes.add(OpKind.EXEC, (rank, step, slot), (piece.start_s, piece.end_s), last)
    return last, waited_s


def _link_waits(nodes: _Nodes, node_of_row: dict[int, int]) -> None:
    """Replace rows by nodes; a wait for something outside the graph becomes execution."""
    for node, row in enumerate(nodes.wait_on):
        if row < 0:
            continue
        target = node_of_row.get(row, -1)
        nodes.wait_on[node] = target
        if target < 0:
            nodes.kind[node] = OpKind.EXEC


def _finish(
    data: JobData,
    step_numbers: tuple[int, ...],
    start_s: float,
    keys: SlotKeys,
    nodes: _Nodes,
    node_of_row: dict[int, int],
    lane_end: dict[int, int],
    table: list[tuple[Region, int, int, float]],
) -> StepGraph:
    """Turn columns into arrays, join members of collectives and order the whole."""
    kind = np.array(nodes.kind, dtype=np.int64)
    begin, end = np.array(nodes.start), np.array(nodes.end)
    row = np.array(nodes.row, dtype=np.int64)
    previous = _previous_in_communicator(data, node_of_row, end)
    lane_pred = np.array(nodes.lane_pred, dtype=np.int64)
    wait_on = np.array(nodes.wait_on, dtype=np.int64)
    ready = np.where(previous >= 0, np.maximum(begin, end[previous]), begin) if end.size else begin
    groups, group, unequal = _join_members(data, row, end, ready)
    work = np.where(kind == OpKind.EXEC, end - begin, 0.0)
    _add_transfers(work, groups, group, end, ready)
    order, left_over = _order(kind, lane_pred, wait_on, previous, group)
    quality = []
    if unequal:
        text = f"{unequal} collectives lack a member's record"
        quality.append(DataQuality(QualityCode.UNEQUAL_MEMBERS, text, unequal))
    if left_over:
        text = f"{left_over} operations wait for each other in a circle"
        quality.append(DataQuality(QualityCode.BAD_TIME, text, left_over))
    return StepGraph(
        step_numbers=step_numbers,
        start_s=start_s,
        end_s=max((float(end[node]) for node in lane_end.values()), default=start_s),
        kind=kind,
        rank=np.array(nodes.rank, dtype=np.int64),
        step=np.array(nodes.step, dtype=np.int64),
        slot=np.array(nodes.slot, dtype=np.int64),
        op_start_s=begin,
        op_end_s=end,
        work_s=work,
        lane_pred=lane_pred,
        wait_on=wait_on,
        lag_s=np.array(nodes.lag),
        previous=previous,
        group=group,
        row=row,
        groups=groups,
        lane_end=lane_end,
        order=order,
        regions=_region_table(table),
        keys=keys,
        quality=tuple(quality),
    )


def _region_table(table: list[tuple[Region, int, int, float]]) -> RegionTable:
    states = np.array([entry[0].states for entry in table], dtype=np.float64).reshape(
        -1, len(ThreadState)
    )
    return RegionTable(
        region=np.array([entry[1] for entry in table], dtype=np.int64),
        step=np.array([entry[2] for entry in table], dtype=np.int64),
        start_s=np.array([entry[0].start_s for entry in table]),
        end_s=np.array([entry[0].end_s for entry in table]),
        wait_s=np.array([entry[3] for entry in table]),
        states=states,
    )


def _previous_in_communicator(
    data: JobData, node_of_row: dict[int, int], end: FloatArray
) -> IntArray:
    """Return for each node the collective before it in the same communicator on the same rank.

    Only one that ended before this one: two that overlap do not wait for each other.
    """
    previous = np.full(end.size, -1, dtype=np.int64)
    rows = data.collectives
    latest: dict[tuple[int, int], int] = {}
    made = np.fromiter(node_of_row, dtype=np.int64, count=len(node_of_row))
    ordered = made[np.lexsort((rows.sequence[made], rows.rank[made]))]
    ends = end.tolist()
    for row, rank, communicator in zip(
        ordered.tolist(),
        rows.rank[ordered].tolist(),
        rows.communicator[ordered].tolist(),
        strict=True,
    ):
        lane, node = (rank, communicator), node_of_row[row]
        before = latest.get(lane)
        if before is not None and ends[before] <= ends[node]:
            previous[node] = before
        if before is None or ends[before] <= ends[node]:
            latest[lane] = node
    return previous


def _join_members(
    data: JobData, row: IntArray, end: FloatArray, ready: FloatArray
) -> tuple[tuple[Group, ...], IntArray, int]:
    """Return the groups, each node's group and how many groups lack a member."""
    rows = data.collectives
    group = np.full(row.size, -1, dtype=np.int64)
    members: dict[int, list[int]] = {}
    called = np.flatnonzero(row >= 0)
    for node, number in zip(called.tolist(), rows.group[row[called]].tolist(), strict=True):
        members.setdefault(number, []).append(node)
    # A rank of which there is no record at all is in no collective: the others can be compared all the same.
    there: dict[int, set[int]] = {}
    for one in row[called].tolist():
        there.setdefault(int(rows.communicator[one]), set()).add(int(rows.rank[one]))
    is_one_sided = {name: not is_symmetric(name) for name in set(rows.operation)}
    groups: list[Group] = []
    unequal = 0
    for listed in members.values():
        first = int(row[listed[0]])
        array = np.array(listed, dtype=np.int64)
        present = len(there[int(rows.communicator[first])])
        is_whole = len(listed) == min(int(rows.size[first]), max(present, 2))
        unequal += int(rows.size[first]) != 0 and not is_whole  # 0 where it is not known
        label = f"{rows.communicator_name[first]}/{int(rows.sequence[first])}"
        depends = None
        if is_one_sided[rows.operation[first]]:
            depends = _causal_members(array, end, ready)
        group[array] = len(groups)
        groups.append(Group(array, label, rows.communicator_name[first], depends))
    return tuple(groups), group, unequal


def _causal_members(members: IntArray, end: FloatArray, ready: FloatArray) -> tuple[IntArray, ...]:
    """Return for each member of a one-sided operation those that were ready before it ended."""
    return tuple(members[(ready[members] <= end[node]) | (members == node)] for node in members)


def _add_transfers(
    work: FloatArray,
    groups: tuple[Group, ...],
    group: IntArray,
    end: FloatArray,
    ready: FloatArray,
) -> None:
    """Set the work of members to their seconds after the last arrival that concerns them, at least 0; in place."""
    nodes = np.flatnonzero(group >= 0)
    latest = np.full(len(groups), -np.inf)
    np.maximum.at(latest, group[nodes], ready[nodes])
    work[nodes] = np.maximum(end[nodes] - latest[group[nodes]], 0.0)
    for one in groups:
        for node, others in zip(one.members.tolist(), one.depends_on or (), strict=False):
            work[node] = max(float(end[node] - ready[others].max()), 0.0)


def _order(
    kind: IntArray,
    lane_pred: IntArray,
    wait_on: IntArray,
    previous: IntArray,
    group: IntArray,
) -> tuple[tuple[int, ...], int]:
    """Return lane nodes and groups so that each comes after all it depends on; and how many cannot."""
    size = kind.size
    unit = np.where(kind == OpKind.COLLECTIVE, size + group, np.arange(size))
    sources, targets = [], []
    for links in (lane_pred, wait_on, previous):
        nodes = np.flatnonzero(links >= 0)
        sources.append(unit[links[nodes]])
        targets.append(unit[nodes])
    source, target = np.concatenate(sources), np.concatenate(targets)
    count = size + int(group.max(initial=-1)) + 1
    by_source = np.argsort(source, kind="stable")
    starts = np.searchsorted(source[by_source], np.arange(count + 1)).tolist()
    after, waiting = target[by_source].tolist(), np.bincount(target, minlength=count).tolist()
    items = np.unique(unit).tolist()
    ready = [item for item in items if waiting[item] == 0]
    order: list[int] = []
    while ready:
        item = ready.pop()
        order.append(item if item < size else size - 1 - item)
        for following in after[starts[item] : starts[item + 1]]:
            waiting[following] -= 1
            if waiting[following] == 0:
                ready.append(following)
    return tuple(order), len(items) - len(order)
