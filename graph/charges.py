"""Charge the excess of a window to causes: what the main threads went through, and what delayed transfers.

    foreign -> the process that ran     own -> the rank's threads, or its loader workers where they work more
               where ranks always share the CPU: the work of the rank that ran, or nobody (`sharing`)
    idle    -> the CPU limit            running -> more work, or decoding where it is in data_load
    gc      -> the collector            blocked while a worker ran -> decoding, as far as the workers work more
    waits   -> what they were for (`waited`)

Owns which cause a state speaks for; how much it is comes from measures, loaders and `throttled`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from rootwalk.graph.causes import IN_WORKERS, Amounts, CauseKey
from rootwalk.graph.charge_case import ChargeCase
from rootwalk.graph.columns import FloatArray, JobData, ThreadState
from rootwalk.graph.contenders import follow_strangers, own_pids
from rootwalk.graph.cpu_speed import common_slowdown, slowed_part, times_of_all
from rootwalk.graph.given_away import give_away
from rootwalk.graph.loaders import (
    DATA_LOAD,
    behind_children_ratio,
    grown_s,
    held_up,
    loader_share,
    loading_part,
    reading_s,
    times_there,
)
from rootwalk.graph.lock_queue import lock_queue_ratio
from rootwalk.graph.measures import Behind, Excess, is_loading
from rootwalk.graph.reasons import Reason
from rootwalk.graph.runners import open_runners
from rootwalk.graph.sharing import GLOBAL_SLOW
from rootwalk.graph.spread import Spread, rank_of_slot
from rootwalk.graph.steps import StepGraph
from rootwalk.graph.throttled import elsewhere_s, hidden_s, is_limit
from rootwalk.graph.waited import (
    common_reason,
    copied_s,
    split_devices,
    split_locks,
    unclaimed_s,
    wait_charges,
)

# Workers whose growth covers at least this part of a queue behind them have made all of it. Measured 0.93 with one
# worker that decodes as long as the step computes.
MIN_QUEUE_RATIO = 0.75


def charge(
    data: JobData,
    history_steps: tuple[int, ...],
    window: StepGraph,
    excess: Excess,
    spread: Spread,
) -> Amounts:
    """Return the window's excess by cause.

    Args:
        data: Telemetry on the aligned clock.
        history_steps: Healthy steps, may be empty.
        window: Graph of the steps in question.
        excess: What its operations and states cost above their references.
        spread: Distributes regions over operations.
    """
    steps, numbers, own = data.steps, window.step_numbers, own_pids(data)
    case = ChargeCase(
        data=data,
        window=window,
        excess=excess,
        spread=spread,
        amounts=Amounts(),
        runners=open_runners(data, own, history_steps, window),
        rank_of_region=np.array([key[0] for key in window.keys.regions], dtype=np.int64),
        rank_of_slot=rank_of_slot(window),
        held=held_up(data, history_steps, window, excess.states[:, :, ThreadState.BLOCKED]),
        budget_s=grown_s(steps, steps.loader_running_s, history_steps, numbers, is_lost=True),
        children=behind_children_ratio(data, numbers),
        lock_queue=lock_queue_ratio(data, own, numbers),
        throttled_s=grown_s(steps, steps.throttled_s, history_steps, numbers, is_lost=True),
        speeds=times_of_all(data.probes, sorted(window.lane_end), history_steps, numbers),
    )
    strange, own_s = excess.behind_s[Behind.FOREIGN], excess.behind_s[Behind.OWN]
    follow_strangers(strange, own_s, case.rank_of_slot, case.runners.sharing.fellows)
    own_parts = _charge_threads(case, history_steps)
    _charge_transfers(case, own_parts)
    return case.amounts


def _charge_threads(case: ChargeCase, history_steps: tuple[int, ...]) -> dict[int, float]:
    """Charge the states of the main threads; return by rank which part of 'behind its own' is its loader workers'."""
    states, held = case.excess.states, case.held
    foreign = np.maximum(states[:, :, ThreadState.FOREIGN], 0.0) + held.covered_s[Behind.FOREIGN]
    own = states[:, :, ThreadState.OWN].copy()
    idle = states[:, :, ThreadState.IDLE] + held.covered_s[Behind.IDLE]
    covered = sum(held.covered_s.values(), np.zeros(own.shape))
    lost = states[:, :, ThreadState.BLOCKED] - covered
    decoding = _share_loading(case, foreign, own, idle, lost)
    follow_strangers(foreign, own, case.rank_of_region, case.runners.sharing.fellows)
    own_parts = _workers_part(case, own)
    part = _by_region(case, own_parts)
    # Workers that stood behind the rank's other threads are part of the queue for its CPUs, not of the decoding.
    own_threads = own * (1.0 - part) + held.covered_s[Behind.OWN]
    behind_lock = np.maximum(own_threads, 0.0) * _by_region(case, case.lock_queue)
    own_threads -= behind_lock
    decoding += own * part
    lost += states[:, :, ThreadState.UNSPLIT] + case.excess.unknown_s
    lost += unclaimed_s(case.window, states)
    locks, others = split_locks(case.data, case.window, states)
    device, unseen = split_devices(case.data, case.window, states)
    lost += others + unseen
    awaited = np.zeros(lost.shape)
    if not history_steps:
        awaited = np.maximum(lost, 0.0) * is_loading(case.window)[:, None]
        lost = lost - awaited
    _split_throttled(case, idle, foreign, lost)
    work, in_load = _split_running(case)
    files_s = states[:, :, ThreadState.READ]
    reading = reading_s(case.window, in_load, files_s, case.rank_of_region)
    in_load = in_load - reading
    unseen_reading = reading_s(case.window, in_load, lost, case.rank_of_region)
    in_load, lost = in_load - unseen_reading, lost + unseen_reading
    given = give_away(case, work, own_threads, lost)
    _charge_strangers(case, foreign, work)
    for reason, region_s in (
        (Reason.THREAD_OVERSUBSCRIPTION, own_threads),
        (Reason.CPU_QUOTA, idle),
    ):
        for rank in case.ranks:
            _add(case, CauseKey(reason, rank, None), rank, region_s)
    unknown = {Reason.UNKNOWN_HOST: lost, Reason.UNKNOWN_GPU: device}
    found = (in_load, decoding, reading, awaited, locks, behind_lock)
    _charge_own_work(case, work - given, unknown, *found)
    return own_parts


def _share_loading(
    case: ChargeCase, foreign: FloatArray, own: FloatArray, idle: FloatArray, lost: FloatArray
) -> FloatArray:
    """Split the time blocked while a loader worker ran; return the decoding's part, add the rest to the others.

    The workers' CPU time bounds what is theirs. The rest follows whoever kept the workers from running, as far as
    they were kept longer than before; what nobody explains is lost.
    """
    loading = case.excess.states[:, :, ThreadState.LOADER]
    part = _by_region(case, loader_share(loading, case.rank_of_region, case.budget_s))
    rest = loading * (1.0 - part)
    unexplained = rest.copy()
    by_kind = {Behind.FOREIGN: foreign, Behind.OWN: own, Behind.IDLE: idle}
    for rank, delay_s in case.held.delay_s.items():
        mine = case.rank_of_region == rank
        rest_s, delayed_s = case.total_s(rest, rank), sum(delay_s.values())
        if rest_s <= 0.0 or delayed_s <= 0.0:
            continue
        for kind, seconds in delay_s.items():
            moved = rest[mine] * (seconds / max(delayed_s, rest_s))
            by_kind[kind][mine] += moved
            unexplained[mine] -= moved
    lost += unexplained
    return np.asarray(loading * part, dtype=np.float64)


def _workers_part(case: ChargeCase, own: FloatArray) -> dict[int, float]:
    """Return by rank which part of its time behind its own stood behind loader workers that work more than before.

    Threads of the transfers draw on the same growth. A queue that the growth made, all but a small part, is all its:
    main thread and transfers wait behind one worker at once, and are counted twice.
    """
    result = {}
    for rank, left_s in case.budget_s.items():
        ratio = case.children.get(rank, 1.0)
        total_s = max(case.total_s(own, rank), 0.0) + _transfer_s(case, Behind.OWN, rank)
        if total_s > 0.0 and left_s > 0.0:
            part = left_s / total_s
            result[rank] = min(ratio, 1.0 if part >= MIN_QUEUE_RATIO else part)
    return result


def _transfer_s(case: ChargeCase, kind: Behind, rank: int) -> float:
    """Return how much longer a rank's other threads waited for a CPU in the transfers of the window."""
    return float(case.excess.behind_s[kind][case.rank_of_slot == rank].sum())


def _split_throttled(
    case: ChargeCase, idle: FloatArray, foreign: FloatArray, lost: FloatArray
) -> None:
    """Give the limit what its throttling explains, and take from it idle time that no throttling supports; in place.

    A sensor that cannot say what ran leaves runnable time unsplit; the group's own time can.
    """
    unsplit = case.excess.states[:, :, ThreadState.UNSPLIT]
    blocked_s = elsewhere_s(case.window)
    for rank, throttled_s in case.throttled_s.items():
        mine = case.rank_of_region == rank
        idle_s = case.total_s(idle, rank)
        if is_limit(throttled_s, idle_s):
            foreign_s = case.total_s(foreign, rank)
            filled_s = hidden_s(throttled_s, idle_s, foreign_s, blocked_s.get(rank, 0.0))
            if filled_s > 0.0:
                moved = foreign[mine] * (filled_s / foreign_s)
                idle[mine] += moved
                foreign[mine] -= moved
                # What the main thread leaves over, the other threads stood for in transfers.
                left_s = throttled_s - idle_s - filled_s - _transfer_s(case, Behind.IDLE, rank)
                behind_s = _transfer_s(case, Behind.FOREIGN, rank)
                case.hidden[rank] = min(max(left_s, 0.0) / max(behind_s, 1e-9), 1.0)
        else:
            lost[mine] += idle[mine]
            idle[mine] = 0.0
        unsplit_s = case.total_s(unsplit, rank)
        left_s = throttled_s - case.total_s(idle, rank)
        if unsplit_s > 0.0 and left_s > 0.0:
            moved = unsplit[mine] * min(left_s / unsplit_s, 1.0)
            idle[mine] += moved
            lost[mine] -= moved


def _charge_strangers(case: ChargeCase, foreign: FloatArray, work: FloatArray) -> None:
    behind = case.excess.behind_s[Behind.FOREIGN]
    case.runners.measure(
        case.data,
        {rank: case.total_s(work, rank) for rank in case.ranks},
        {
            rank: foreign[case.rank_of_region == rank].sum(axis=0)
            + behind[case.rank_of_slot == rank].sum(axis=0)
            for rank in case.ranks
        },
    )
    for crowd in case.runners.crowd_of.values():
        case.amounts.crowds[crowd.key] = crowd
    seconds = case.spread.place(foreign)
    rank_of_node = case.window.rank[case.spread.nodes]
    for rank in case.ranks:
        mine = rank_of_node == rank
        nodes, steps = case.spread.nodes[mine], case.spread.step_of_node[mine]
        shares = case.runners.of(rank)
        for pid, share in zip(shares.pids, shares.shares, strict=True):
            for key, part in case.runners.blame(rank, pid):
                case.amounts.add(key, nodes, seconds[mine] * share[steps] * part)


def _charge_own_work(
    case: ChargeCase,
    work: FloatArray,
    unseen: Mapping[Reason, FloatArray],
    in_load: FloatArray,
    decoding: FloatArray,
    reading: FloatArray,
    awaited: FloatArray,
    *locks: FloatArray,
) -> None:
    """Charge what a rank did itself, and what nobody saw; what all ranks have in common is no single rank's."""
    several, key = len(case.ranks) > 1, CauseKey(Reason.WORK_IMBALANCE, -1, None)
    slowed = work * _by_region(case, _slowed_parts(case, work))
    _charge_each(case, slowed, GLOBAL_SLOW)
    work = work - slowed
    if case.is_in_turn(work):
        _charge_each(case, work, replace(key, rank=None))
    elif case.is_alike(work):
        # As when their cores have become slower, not all of them by as much: nobody does more than the others.
        _charge_each(case, work, GLOBAL_SLOW)
    else:
        _charge_common(case, work, key, GLOBAL_SLOW)
    for reason, region_s in unseen.items():
        if several:
            _charge_common(case, region_s, CauseKey(reason, -1, None), GLOBAL_SLOW)
        else:
            _charge_each(case, region_s, CauseKey(reason, -1, None))
    for reason, place, region_s in (
        (Reason.PY_GC, "", case.excess.states[:, :, ThreadState.GC]),
        (Reason.DATALOADER_CPU, "", in_load),
        (Reason.DATALOADER_CPU, IN_WORKERS, decoding),
        (Reason.KERNEL_LOCK, "", locks[0]),
        (Reason.PY_GIL, "", locks[1]),
        (Reason.UNKNOWN_HOST, DATA_LOAD, awaited),
        *wait_charges(case.window, case.excess.states, reading),
        *((reason, DATA_LOAD, seconds) for reason, seconds in case.excess.input_s.items()),
    ):
        each = CauseKey(reason, -1, None, place)
        common = CauseKey(common_reason(case.data, reason), None, None)
        least_s = min(case.total_s(region_s, rank) for rank in case.ranks)
        if case.is_alike(region_s) or case.is_in_turn(region_s):
            _charge_each(case, region_s, common)
        elif not several or least_s <= 0.0:
            _charge_each(case, region_s, each)
        else:
            _charge_common(case, region_s, each, common)


def _split_running(case: ChargeCase) -> tuple[FloatArray, FloatArray]:
    """Return how much longer the main threads ran outside their input and in it."""
    states = case.excess.states
    running = states[:, :, ThreadState.RUNNING] - copied_s(case.window, states)
    usual = case.excess.usual_states[:, ThreadState.RUNNING]
    in_load = running * loading_part(case.window, running, usual, case.rank_of_region)
    return running - in_load, in_load


def _slowed_parts(case: ChargeCase, work: FloatArray) -> dict[int, float]:
    """Return by rank which part of its longer running time is that all ranks' CPUs are slower, at once or in turn."""
    if case.is_of_cpus(work):
        return dict.fromkeys(case.ranks, 1.0)
    slowdown = common_slowdown(case.speeds)
    usual = case.excess.usual_states[:, ThreadState.RUNNING]
    usual = usual * times_there(case.window, usual.size)
    return {
        rank: slowed_part(
            slowdown,
            float(usual[case.rank_of_region == rank].sum()),
            case.total_s(work, rank),
        )
        for rank in case.ranks
    }


def _charge_each(case: ChargeCase, region_s: FloatArray, key: CauseKey) -> None:
    """Charge every rank's seconds to one cause; with rank -1, to that of the rank."""
    for rank in case.ranks:
        _add(case, replace(key, rank=rank) if key.rank == -1 else key, rank, region_s)


def _charge_common(
    case: ChargeCase, region_s: FloatArray, each: CauseKey, common: CauseKey
) -> None:
    """Charge what all ranks have in common to one cause, and each rank's remainder to the rank."""
    alike_s = region_s * ~case.excess.is_alone[:, None]
    totals = {rank: case.total_s(alike_s, rank) for rank in case.ranks}
    common_s = max(min(totals.values()), 0.0)
    for rank, total_s in totals.items():
        part_s = alike_s * (common_s / total_s if total_s > 0.0 else 0.0)
        _add(case, common, rank, part_s)
        _add(case, replace(each, rank=rank), rank, region_s - part_s)


def _add(case: ChargeCase, key: CauseKey, rank: int, region_s: FloatArray) -> None:
    """Charge one rank's seconds per region and step to a cause."""
    mine = case.window.rank[case.spread.nodes] == rank
    case.amounts.add(key, case.spread.nodes[mine], case.spread.place(region_s)[mine])


def _by_region(case: ChargeCase, ratio_by_rank: dict[int, float]) -> FloatArray:
    """Return a rank's number for each of its regions, 0 for ranks without one, (regions, 1)."""
    column = [ratio_by_rank.get(rank, 0.0) for rank in case.rank_of_region.tolist()]
    return np.array(column, dtype=np.float64).reshape(-1, 1)


def _charge_transfers(case: ChargeCase, own_parts: dict[int, float]) -> None:
    """Charge slower transfers to what the members' other threads stood behind, and the rest to the network."""
    window, excess = case.window, case.excess
    if not window.groups:
        return
    # By operation, looked up once: there are thousands of groups.
    calls = np.maximum(window.slot, 0), window.step
    slow_s = excess.slot_s[calls]
    behind_s = {kind: s[calls] for kind, s in excess.behind_s.items()}
    is_behind = sum(behind_s.values(), np.zeros(slow_s.size)) > 0.0
    unknown = CauseKey(Reason.UNKNOWN_NET, None, None)
    for group in window.groups:
        nodes = group.members
        slow = slow_s[nodes]
        if not is_behind[nodes].any():
            case.amounts.add(unknown, nodes, slow)
            continue
        step = int(window.step[nodes[0]])
        behind = {kind: s[nodes] for kind, s in behind_s.items()}
        total = sum(float(seconds.sum()) for seconds in behind.values())
        explained = np.minimum(np.maximum(slow, 0.0), total)
        for kind, seconds in behind.items():
            for index in np.flatnonzero(seconds > 0.0).tolist():
                rank = int(window.rank[nodes[index]])
                mine = explained * float(seconds[index]) / total
                for key, share in _blame(case, kind, rank, step, own_parts):
                    case.amounts.add(key, nodes, mine * share)
        case.amounts.add(unknown, nodes, slow - explained)


def _blame(
    case: ChargeCase, kind: Behind, rank: int, step: int, own_parts: dict[int, float]
) -> Iterable[tuple[CauseKey, float]]:
    """Yield who made a rank's other threads wait in a transfer, with their parts."""
    if kind is Behind.FOREIGN:
        hidden, shares = case.hidden.get(rank, 0.0), case.runners.of(rank)
        yield CauseKey(Reason.CPU_QUOTA, rank, None), hidden
        for pid, share in zip(shares.pids, shares.shares, strict=True):
            foreign_part = float(share[step]) * (1.0 - hidden)
            for key, key_part in case.runners.blame(rank, pid):
                yield key, foreign_part * key_part
    elif kind is Behind.OWN:
        part = own_parts.get(rank, 0.0)
        yield CauseKey(Reason.DATALOADER_CPU, rank, None, IN_WORKERS), part
        locked = (1.0 - part) * case.lock_queue.get(rank, 0.0)
        yield CauseKey(Reason.PY_GIL, rank, None), locked
        yield CauseKey(Reason.THREAD_OVERSUBSCRIPTION, rank, None), 1.0 - part - locked
    else:
        idle_s = _transfer_s(case, Behind.IDLE, rank)
        is_held = is_limit(case.throttled_s.get(rank), idle_s)
        reason = Reason.CPU_QUOTA if is_held else Reason.UNKNOWN_HOST
        yield CauseKey(reason, rank, None), 1.0
