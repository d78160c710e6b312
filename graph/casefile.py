"""The case file of one diagnosis: graph and evidence while they are written, and how a measurement becomes a row.

Owns values, comparisons and the query that shows each to a reader. Which chain a row belongs to is `accuse`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rootwalk.graph.analysis import Analysis, Question, StepClock
from rootwalk.graph.columns import EXACT_SENSORS, FloatArray, JobData, ThreadState
from rootwalk.graph.contenders import ProcessNames, process_names
from rootwalk.graph.dependencies import DependencyGraph, node_id
from rootwalk.graph.model import Evidence
from rootwalk.graph.reasons import Signal
from rootwalk.graph.series import robust_z, spearman
from rootwalk.graph.told_waits import TOLD_STATES

# Columns of a series after the thread states.
_LOADER_CPU = len(ThreadState)
_THROTTLED = len(ThreadState) + 1
COLUMNS_OF_SIGNAL: dict[Signal, tuple[int, ...]] = {
    Signal.RUNNABLE: (ThreadState.FOREIGN, ThreadState.OWN, ThreadState.IDLE, ThreadState.UNSPLIT),
    Signal.FOREIGN: (ThreadState.FOREIGN,),
    Signal.OWN: (ThreadState.OWN,),
    Signal.IDLE: (ThreadState.IDLE,),
    Signal.RUNNING: (ThreadState.RUNNING,),
    Signal.BLOCKED: (ThreadState.BLOCKED,),
    Signal.GC: (ThreadState.GC,),
    Signal.LOADER_WAIT: (ThreadState.LOADER,),
    Signal.LOADER_FILES: (ThreadState.LOADER_FILES,),
    Signal.INTERPRETER: (ThreadState.INTERPRETER,),
    Signal.READ: (ThreadState.READ,),
    Signal.WRITE: (ThreadState.WRITE, ThreadState.READ),
    Signal.OUTPUT: (ThreadState.OUTPUT, ThreadState.WRITE),
    Signal.SERVICE: (ThreadState.SERVICE,),
    Signal.STOPPED: (ThreadState.STOPPED,),
    Signal.INTERRUPT: (ThreadState.INTERRUPT,),
    Signal.RECLAIM: (ThreadState.RECLAIM,),
    Signal.DEVICE_WAIT: (ThreadState.DEVICE,),
    Signal.MEMORY_MAP: (ThreadState.MEMORY_MAP,),
    Signal.FILES: (ThreadState.READ, ThreadState.WRITE, ThreadState.LOADER_FILES),
    Signal.LOADER_CPU: (_LOADER_CPU,),
    Signal.THROTTLED: (_THROTTLED,),
}
WAIT_SIGNALS = (
    Signal.INTERPRETER,
    Signal.READ,
    Signal.WRITE,
    Signal.OUTPUT,
    Signal.SERVICE,
    Signal.STOPPED,
    Signal.INTERRUPT,
    Signal.RECLAIM,
    Signal.DEVICE_WAIT,
    Signal.MEMORY_MAP,
    Signal.FILES,
)
# What only an exact sensor can tell: another one leaves these at zero beside a known total.
_SPLIT_SIGNALS = (Signal.FOREIGN, Signal.OWN, Signal.IDLE, Signal.LOADER_FILES, *WAIT_SIGNALS)
# What only a level above 0 tells.
_TOLD_SIGNALS = frozenset(
    signal for signal, columns in COLUMNS_OF_SIGNAL.items() if columns[0] in TOLD_STATES
)
# What only one reader can tell: without it a zero is no measurement.
_READER_OF = {Signal.INTERRUPT: "interrupts", Signal.RECLAIM: "memory"}
# How a reader sees the same value in the view `steps`.
_COLUMN_OF = {
    Signal.RUNNABLE: "runnable_ns",
    Signal.FOREIGN: "runnable_foreign_ns",
    Signal.OWN: "runnable_own_ns",
    Signal.IDLE: "runnable_idle_ns",
    Signal.RUNNING: "running_ns - coalesce(gc_ns, 0) AS running_ns",
    Signal.BLOCKED: "blocked_ns - coalesce(blocked_loader_running_ns, 0) AS blocked_ns",
    Signal.GC: "gc_ns",
    Signal.LOADER_WAIT: "blocked_loader_running_ns",
    Signal.LOADER_FILES: "blocked_loader_files_ns",
    **dict.fromkeys(WAIT_SIGNALS, "wait_kinds, wait_times"),
    Signal.LOADER_CPU: "loader_running_ns",
    Signal.THROTTLED: "throttled_ns",
}


@dataclass(frozen=True, slots=True)
class Series:
    """Thread states of every rank over history and window, loader workers' CPU time and throttled time behind them.

    Shape (ranks, steps, columns), seconds, NaN unknown.
    """

    ranks: tuple[int, ...]
    history: FloatArray
    window: FloatArray


@dataclass(slots=True)
class CaseFile:
    """The dependency graph and its evidence while they are written."""

    data: JobData
    clock: StepClock
    question: Question
    analysis: Analysis
    graph: DependencyGraph
    evidence: dict[str, Evidence]
    series: Series
    names: ProcessNames
    exemplar: tuple[str | None, str | None]

    @property
    def job_node(self) -> str:
        """The symptom's node."""
        return node_id("job", self.data.job)

    def host(self, rank: int) -> str:
        """Return the name of a rank's host, its id where it has no name."""
        row = self.data.host_of(rank)
        return "unknown" if row is None else (row.host_name or row.host_id)

    def rank_of(self, host: str, pid: int) -> int | None:
        """Return which rank of the job a process of a host is, if any."""
        rows = (row for row in self.data.ranks if row.pid == pid)
        return next((row.rank for row in rows if self.host(row.rank) == host), None)

    def sensor(self, rank: int) -> str | None:
        """Return the best sensor that watched a rank's threads, None where none did."""
        rows = np.flatnonzero(self.data.steps.rank == rank).tolist()
        found = {str(name) for name in (self.data.steps.sensor[row] for row in rows) if name}
        return min(found & EXACT_SENSORS or found, default=None)

    def tells_waits(self, rank: int) -> bool:
        """Return whether it is known what a rank's thread waited for in the window."""
        steps = self.data.steps
        is_mine = (steps.rank == rank) & np.isin(steps.step, self.analysis.window.step_numbers)
        return not np.isnan(steps.told_wait_s[is_mine]).any()

    def readers(self, rank: int) -> frozenset[str]:
        """Return the sensors that were there on a rank's host."""
        return self.data.readers(rank)

    def excess(self, name: str) -> float:
        """Return how far a row of evidence lies above its history, 0 without it."""
        row = self.evidence.get(name)
        return 0.0 if row is None else (row.value or 0.0) - (row.history or 0.0)

    def query(
        self, columns: str, view: str, rank: int | None, ending: str = "ORDER BY step"
    ) -> str:
        """Return the SQL that shows the window (of one rank) in a public view."""
        numbers = self.analysis.window.step_numbers
        job = self.data.job.replace("'", "''")
        of_rank = "" if rank is None else f" AND rank = {rank}"
        where = f"job = '{job}' AND attempt = {self.data.attempt}{of_rank}"
        steps = f"step BETWEEN {numbers[0]} AND {numbers[-1]}"
        return " ".join(("SELECT", columns, "FROM", view, "WHERE", where, "AND", steps, ending))


def open_case(data: JobData, clock: StepClock, question: Question, analysis: Analysis) -> CaseFile:
    """Return an empty case file for a window."""
    return CaseFile(
        data=data,
        clock=clock,
        question=question,
        analysis=analysis,
        graph=DependencyGraph(),
        evidence={},
        series=_series(data, clock, question, tuple(sorted(analysis.window.lane_end))),
        names=process_names(data),
        exemplar=_exemplar(data, clock, question),
    )


def _series(data: JobData, clock: StepClock, question: Question, ranks: tuple[int, ...]) -> Series:
    row_of = {
        (int(r), int(k)): i
        for i, (r, k) in enumerate(zip(data.steps.rank, data.steps.step, strict=True))
    }

    steps = data.steps
    beside = np.stack([steps.loader_running_s, steps.throttled_s], axis=1)
    columns = np.concatenate([steps.states, beside], axis=1)

    def take(positions: list[int]) -> FloatArray:
        rows = [[row_of[rank, clock.numbers[p]] for p in positions] for rank in ranks]
        index = np.array(rows, dtype=np.int64).reshape(len(ranks), len(positions))
        return np.asarray(columns[index], dtype=np.float64)

    return Series(
        ranks, take(list(question.history)), take(list(range(question.start, question.stop)))
    )


def _exemplar(data: JobData, clock: StepClock, question: Question) -> tuple[str | None, str | None]:
    """Return trace and span id of the slowest step of the window."""
    window = clock.step_s[question.start : question.stop]
    number = clock.numbers[question.start + int(np.argmax(window))]
    for row in np.flatnonzero(data.steps.step == number).tolist():
        return data.steps.trace_id[row], data.steps.span_id[row]
    return None, None


def add_evidence(
    file: CaseFile, name: str, signal: str, value: float, **parts: float | str | None
) -> str:
    """Add one row; parts: peers, history, z, dose, query, and unit where it is not seconds."""
    trace_id, span_id = file.exemplar
    dose = parts.get("dose")
    file.evidence[name] = Evidence(
        id=name,
        signal=signal,
        value=rounded(value),
        unit=str(parts.get("unit") or "s"),
        peers=_number(parts.get("peers")),
        history=_number(parts.get("history")),
        z=_number(parts.get("z")),
        trace_id=trace_id,
        span_id=span_id,
        query=str(parts["query"]) if parts.get("query") else None,
        attributes={"dose": _number(dose)},
    )
    return name


def rounded(value: float) -> float:
    """Return seconds to the nanosecond: what the records resolve, so that every machine stores the same."""
    return round(float(value), 9) + 0.0


def _number(value: float | str | None) -> float | None:
    return None if value is None or isinstance(value, str) or np.isnan(value) else rounded(value)


def add_step_evidence(file: CaseFile) -> str:
    """Add the step time of the window beside its history; return the row's id."""
    step_s = file.clock.step_s
    value = float(step_s[file.question.start : file.question.stop].mean())
    history = step_s[list(file.question.history)]
    return add_evidence(
        file,
        "step",
        Signal.STEP,
        value,
        history=float(np.median(history)) if history.size else None,
        z=robust_z(value, history),
        query=file.query("step, max(duration_ns)", "steps", None, "GROUP BY step ORDER BY step"),
    )


def add_state_evidence(file: CaseFile, rank: int, signal: Signal) -> str | None:
    """Add what a rank's steps say of one signal; None where no sensor gave it."""
    series = file.series
    if signal in _SPLIT_SIGNALS and file.sensor(rank) not in EXACT_SENSORS:
        return None
    if signal in _TOLD_SIGNALS and not file.tells_waits(rank):
        return None
    columns = list(COLUMNS_OF_SIGNAL[signal])
    window, history = _sums(series.window, columns), _sums(series.history, columns)
    index = series.ranks.index(rank)
    if np.isnan(window[index]).all():
        return None
    is_read = signal not in _READER_OF or _READER_OF[signal] in file.readers(rank)
    if not is_read and not np.nansum(window[index]):
        return None
    value = float(np.nanmean(window[index]))
    means = [np.nanmean(row) for row in np.delete(window, index, axis=0) if not np.isnan(row).all()]
    before = history[index][~np.isnan(history[index])]
    lag = np.concatenate([file.clock.step_s[list(file.question.history)], window_times_s(file)])
    return add_evidence(
        file,
        f"{signal}/rank{rank}",
        signal,
        value,
        peers=float(np.median(means)) if means else None,
        history=float(np.median(before)) if before.size else None,
        z=robust_z(value, before),
        dose=spearman(np.concatenate([history[index], window[index]]), lag),
        query=file.query(f"step, {_COLUMN_OF[signal]}", "steps", rank),
    )


def add_host_evidence(file: CaseFile, ranks: tuple[int, ...], signal: Signal) -> str | None:
    """Add what all ranks of a host have of one signal: means, and no surer than the least sure of them.

    Returns:
        The row's id; None where no sensor gave it for each of them.
    """
    known = dict(file.evidence)
    found = [add_state_evidence(file, rank, signal) for rank in ranks]
    rows = [file.evidence[item] for item in found if item is not None]
    file.evidence = known
    if len(rows) < len(ranks):
        return None
    history, z = [row.history for row in rows], [row.z for row in rows]
    doses = [row.attributes.get("dose") for row in rows]
    return add_evidence(
        file,
        f"{signal}/{file.host(ranks[0])}",
        signal,
        float(np.mean([row.value or 0.0 for row in rows])),
        history=None if None in history else float(np.mean([one or 0.0 for one in history])),
        z=None if None in z else min(one or 0.0 for one in z),
        dose=None if None in doses else min(float(one or 0.0) for one in doses),
        query=query_of_ranks(file, f"step, rank, {_COLUMN_OF[signal]}", "steps", ranks),
    )


def query_of_ranks(file: CaseFile, columns: str, view: str, ranks: tuple[int, ...]) -> str:
    """Return the SQL that shows the window of some ranks in a public view."""
    listed = ", ".join(map(str, ranks))
    return file.query(columns, view, None, f"AND rank IN ({listed}) ORDER BY step, rank")


def _sums(series: FloatArray, columns: list[int]) -> FloatArray:
    """Return the sum of some columns, (ranks, steps); NaN where none of them is known."""
    chosen = series[:, :, columns]
    total = np.nansum(chosen, axis=2)
    total[np.isnan(chosen).all(axis=2)] = np.nan
    return np.asarray(total, dtype=np.float64)


def window_times_s(file: CaseFile) -> FloatArray:
    """Return the time of each step of the window."""
    return file.clock.step_s[file.question.start : file.question.stop]
