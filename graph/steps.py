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
from rootwalk.graph.columns import BoolArray, FloatArray, IntArray, JobData, ThreadState
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
    groups, group, unequal = _join_members(data, row, begin, end, previous)
    work = np.where(kind == OpKind.EXEC, end - begin, 0.0)
    for members in groups:
        work[members.members] = _transfers(members, begin, end, previous)
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
    ordered = sorted(node_of_row, key=lambda r: (int(rows.rank[r]), int(rows.sequence[r])))
    for row in ordered:
        lane = (int(rows.rank[row]), int(rows.communicator[row]))
        node = node_of_row[row]
        before = latest.get(lane)
        if before is not None and end[before] <= end[node]:
            previous[node] = before
        if before is None or end[before] <= end[node]:
            latest[lane] = node
    return previous


def _join_members(
    data: JobData, row: IntArray, begin: FloatArray, end: FloatArray, previous: IntArray
) -> tuple[tuple[Group, ...], IntArray, int]:
    """Return the groups, each node's group and how many groups lack a member."""
    rows = data.collectives
    group = np.full(row.size, -1, dtype=np.int64)
    members: dict[int, list[int]] = {}
    for node in np.flatnonzero(row >= 0):
        members.setdefault(int(rows.group[row[node]]), []).append(int(node))
    groups: list[Group] = []
    unequal = 0
    for listed in members.values():
        first = int(row[listed[0]])
        array = np.array(listed, dtype=np.int64)
        unequal += len(listed) != int(rows.size[first])
        label = f"{rows.communicator_name[first]}/{int(rows.sequence[first])}"
        depends = None
        if not is_symmetric(rows.operation[first]):
            depends = _causal_members(array, begin, end, previous)
        group[array] = len(groups)
        groups.append(Group(array, label, rows.communicator_name[first], depends))
    return tuple(groups), group, unequal


def _causal_members(
    members: IntArray, begin: FloatArray, end: FloatArray, previous: IntArray
) -> tuple[IntArray, ...]:
    """Return for each member of a one-sided operation those that were ready before it ended."""
    before = previous[members]
    ready = np.where(before >= 0, np.maximum(begin[members], end[before]), begin[members])
    return tuple(members[(ready <= end[node]) | (members == node)] for node in members)


def _transfers(group: Group, begin: FloatArray, end: FloatArray, previous: IntArray) -> FloatArray:
    """Return each member's seconds after the last arrival that concerns it, at least 0."""
    members = group.members
    before = previous[members]
    ready = np.where(before >= 0, np.maximum(begin[members], end[before]), begin[members])
    if group.depends_on is None:
        return np.asarray(np.maximum(end[members] - ready.max(), 0.0), dtype=np.float64)
    by_node = dict(zip(members.tolist(), ready.tolist(), strict=True))
    arrived = [max(by_node[node] for node in others.tolist()) for others in group.depends_on]
    return np.asarray(np.maximum(end[members] - np.array(arrived), 0.0), dtype=np.float64)


def _order(
    kind: IntArray,
    lane_pred: IntArray,
    wait_on: IntArray,
    previous: IntArray,
    group: IntArray,
) -> tuple[tuple[int, ...], int]:
    """Return lane nodes and groups so that each comes after all it depends on; and how many cannot."""
    unit: BoolArray = kind == OpKind.COLLECTIVE
    of_node = np.where(unit, -1 - group, np.arange(kind.size)).tolist()
    waiting: dict[int, int] = dict.fromkeys(of_node, 0)
    after: dict[int, list[int]] = {}
    for links in (lane_pred, wait_on, previous):
        for node in np.flatnonzero(links >= 0).tolist():
            source, target = of_node[links[node]], of_node[node]
            waiting[target] += 1
            after.setdefault(source, []).append(target)
    ready = [item for item, count in waiting.items() if count == 0]
    order: list[int] = []
    while ready:
        item = ready.pop()
        order.append(item)
        for target in after.get(item, ()):
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return tuple(order), len(waiting) - len(order)
