"""Log events of a rank that makes no progress: its activity, its position in each communicator, its stacks.

Pure: takes what was read and returns the events of one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rootwalk.ebpf.process_facts import ProcessFacts, Usage
from rootwalk.ebpf.reader import EventValue, Occurrence
from rootwalk.ebpf.stack_taking import ThreadFrames
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.redact import redact_thread_name
from rootwalk.instrumentation.shared_ring import Frontier, LiveState, Stage

__all__ = ["RankView", "collective_events", "flight_event", "progress_event", "stack_events"]

NS_PER_S = 1e9


class RankView(NamedTuple):
    """A rank as it is seen at one moment.

    Attributes:
        slot: Its number in this agent.
        pid: Its process.
        stage: How far it has come; None without hooks.
        idle_ns: Since when it has not moved, ns; 0 when it has just moved again.
        usual_ns: The longest that this has taken before; None where not known.
        is_compiling: Whether a compilation is open; None without hooks.
        live: Its step and phase; None before the first.
        frontiers: How far it has come in each communicator.
        world_size: Number of ranks of its job; 0 where not known.
    """

    slot: int
    pid: int
    stage: Stage | None
    idle_ns: int
    usual_ns: int | None
    is_compiling: bool | None
    live: LiveState | None
    frontiers: tuple[Frontier, ...]
    world_size: int


def progress_event(
    view: RankView,
    now_ns: int,
    facts: ProcessFacts | None,
    before: Usage | None,
    usage: Usage | None,
) -> Occurrence:
    """Return the event of one rank.

    Args:
        view: The rank.
        now_ns: When, CLOCK_MONOTONIC.
        facts: What its training thread does; None for a rank that has moved again.
        before: Its use of CPU and I/O soon after it last moved.
        usage: Its use up to now.
    """
    live = view.live if view.live is not None and view.live.step_start_mono_ns else None
    values: dict[str, EventValue | None] = {
        semconv.PROCESS_PID: view.pid,
        semconv.TRAINING_PROGRESS_STAGE: view.stage.name.lower() if view.stage else None,
        semconv.TRAINING_PROGRESS_IDLE_TIME: view.idle_ns / NS_PER_S,
        semconv.TRAINING_PROGRESS_USUAL_TIME: _seconds(view.usual_ns),
        semconv.TRAINING_PROGRESS_IS_COMPILING: view.is_compiling,
        semconv.TRAINING_STEP_NUMBER: live.step if live else None,
        semconv.TRAINING_PHASE: (live.phase or None) if live else None,
    }
    if facts is not None:
        values[semconv.TRAINING_PROCESS_STATE] = facts.state.value if facts.state else None
        values[semconv.TRAINING_WAIT_KIND] = facts.wait.value if facts.wait else None
        values[semconv.TRAINING_WAIT_SYSTEM_CALL] = facts.system_call
    if before is not None and usage is not None:
        values |= {
            semconv.TRAINING_PROGRESS_CPU_TIME: _seconds(_more(before.cpu_ns, usage.cpu_ns)),
            semconv.TRAINING_PROGRESS_MAIN_CPU_TIME: _seconds(
                _more(before.main_cpu_ns, usage.main_cpu_ns)
            ),
            semconv.TRAINING_PROGRESS_WAKEUPS: _more(before.wakeups, usage.wakeups),
            semconv.TRAINING_PROGRESS_IO_SIZE: _more(before.io_bytes, usage.io_bytes),
        }
    return Occurrence(
        semconv.EVENT_TRAINING_RANK_PROGRESS,
        now_ns,
        _describe(view, facts),
        _known(values),
        is_bad=False,
        slot=view.slot,
    )


def collective_events(
    view: RankView, now_ns: int, passed: Callable[[int, int], int]
) -> list[Occurrence]:
    """Return an event for each communicator in which the rank has called something.

    Args:
        view: The rank.
        now_ns: When, CLOCK_MONOTONIC.
        passed: Returns the time that counts between two moments, ns.
    """
    return [
        _collective_event(view, one, now_ns, passed) for one in view.frontiers if one.called > 0
    ]


def _collective_event(
    view: RankView, one: Frontier, now_ns: int, passed: Callable[[int, int], int]
) -> Occurrence:
    number, size_text, backend, name = (one.communicator.split("|", 3) + [""] * 4)[:4]
    size = int(size_text) if size_text.isdigit() else 0
    members = one.members
    if not members and size and size == view.world_size:
        members = tuple(range(size))
    pending_ns = None
    if one.pending_mono_ns is not None:
        pending_ns = passed(one.pending_mono_ns, now_ns)
    values: dict[str, EventValue | None] = {
        semconv.COLLECTIVE_COMMUNICATOR_ID: number,
        semconv.COLLECTIVE_COMMUNICATOR_NAME: name,
        semconv.COLLECTIVE_COMMUNICATOR_SIZE: size,
        semconv.COLLECTIVE_COMMUNICATOR_RANKS: members or None,
        semconv.COLLECTIVE_BACKEND: backend or None,
        semconv.COLLECTIVE_IS_POINT_TO_POINT: one.is_p2p,
        semconv.COLLECTIVE_SEQUENCE: one.called,
        semconv.COLLECTIVE_ENDED_SEQUENCE: one.ended,
        semconv.COLLECTIVE_OPERATION: one.operation,
        semconv.COLLECTIVE_SIZE: one.size_bytes,
        semconv.COLLECTIVE_ROOT: one.root,
        semconv.COLLECTIVE_PENDING_TIME: _seconds(pending_ns),
    }
    if one.ended >= one.called:
        end = "all have ended"
    elif pending_ns is None:
        end = f"known to have ended up to #{one.ended}"
    else:
        end = f"ended up to #{one.ended}, the next waits for {pending_ns / NS_PER_S:.0f} s"
    return Occurrence(
        semconv.EVENT_TRAINING_COLLECTIVE_PROGRESS,
        now_ns,
        f"{name or number}: {one.operation} #{one.called} was called, {end}",
        _known(values),
        is_bad=False,
        slot=view.slot,
    )


def flight_event(slot: int, pid: int, dump: str, mono_ns: int) -> Occurrence:
    """Return what PyTorch's Flight Recorder of a rank held, as the rank has written it."""
    return Occurrence(
        semconv.EVENT_TRAINING_FLIGHT_RECORDER_DUMP,
        mono_ns,
        dump,
        {semconv.PROCESS_PID: pid},
        is_bad=False,
        slot=slot,
    )


def stack_events(slot: int, stacks: Iterable[ThreadFrames], now_ns: int) -> list[Occurrence]:
    """Return an event for each thread whose functions are known."""
    return [_stack_event(slot, one, now_ns) for one in stacks if one.frames]


def _stack_event(slot: int, one: ThreadFrames, now_ns: int) -> Occurrence:
    name = redact_thread_name(one.name)
    values: dict[str, EventValue | None] = {
        semconv.PROCESS_PID: one.pid,
        semconv.THREAD_ID: one.tid,
        semconv.THREAD_NAME: name or None,
        semconv.TRAINING_THREAD_ROLE: one.role,
        semconv.TRAINING_STACK_FRAMES: tuple(one.frames),
        semconv.TRAINING_WAIT_SYSTEM_CALL: one.system_call,
    }
    return Occurrence(
        semconv.EVENT_TRAINING_RANK_STACK,
        now_ns,
        f"thread {one.tid} ({name}) is in {one.frames[0]}",
        _known(values),
        is_bad=False,
        slot=slot,
    )


def _describe(view: RankView, facts: ProcessFacts | None) -> str:
    if not view.idle_ns:
        return "the rank makes progress again"
    where = f"{view.stage.name.lower()}" if view.stage else "stage not known"
    if view.live is not None and view.live.step_start_mono_ns:
        where = f"step {view.live.step}, {view.live.phase or 'between phases'}"
    text = f"the rank has made no progress for {view.idle_ns / NS_PER_S:.0f} s: {where}"
    if facts is not None and facts.state is not None:
        text += f"; {facts.state.value}"
        if facts.system_call is not None:
            text += f" in {facts.system_call}"
    return text


def _known(values: dict[str, EventValue | None]) -> dict[str, EventValue]:
    return {key: value for key, value in values.items() if value is not None}


def _seconds(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / NS_PER_S


def _more(before: int | None, after: int | None) -> int | None:
    """Return how much a sum has grown; a child that has ended without being waited for takes its part with it."""
    return None if before is None or after is None else max(0, after - before)
