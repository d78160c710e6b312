"""How fast a job goes now, what is found, and for how long it has been so, in words: `diagnose --watch`, and `run`.

On a terminal `--watch` writes one line over and over, and what opens or closes stays above it; elsewhere there is a
line when something changes, and one a minute. `run` shares its terminal with the job: there it is the bottom row, or
a line a minute. Knows no clock and no screen of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from rootwalk.graph.job_choice import JobKey, choose_job
from rootwalk.graph.live.store import stamp_of
from rootwalk.graph.passages import JOINT, visible
from rootwalk.graph.render.digits import seconds
from rootwalk.graph.serve.answers import findings_answer
from rootwalk.graph.serve.reading import Pulse, read_pulse
from rootwalk.graph.serve.snapshots import Snapshots
from rootwalk.instrumentation.errors import ConfigError, StoreError
from rootwalk.otel_receiver import store

__all__ = ["SignOfLife", "Watch", "status_line", "status_parts"]

LOOK_S: Final = 1.0
# Without a terminal so often although nothing has changed: a sign of life that fills no log.
QUIET_S: Final = 60.0
# Without a new step for so long, and so many usual steps, it is said for how long: the hosts' clocks may differ.
STALE_S: Final = 60.0
STALE_STEPS: Final = 10.0
CLEAR_LINE: Final = "\r\x1b[K"


def status_line(pulse: Pulse, findings: list[dict[str, Any]], now_unix_ns: int) -> str:
    """Return how a job does now, on one line: last step, rate, and the finding that has been open longest."""
    return "".join(status_parts(pulse, findings, now_unix_ns))


def status_parts(
    pulse: Pulse, findings: list[dict[str, Any]], now_unix_ns: int
) -> tuple[str, str, str, str]:
    """Return the pieces of a status line: step and rate, seconds of a step, what is found, and for how long."""
    if pulse.last_step is None:
        return "no complete step yet", "", "", ""
    begin, pace = f"step {pulse.last_step}", ""
    silent_s = (now_unix_ns - (pulse.last_unix_ns or now_unix_ns)) / 1e9
    if silent_s >= max(STALE_S, STALE_STEPS * (pulse.step_s or 0.0)):
        begin += f", no new one for {_age(silent_s)}"
    elif pulse.step_s:
        begin += f", {1.0 / pulse.step_s:.2g} steps/s"
        pace = f", {seconds(pulse.step_s)} a step".replace(JOINT, " ")
    opened = [row for row in findings if row["state"] == "open"]
    if not opened:
        return begin, pace, "; nothing found", ""
    first = min(opened, key=lambda row: row["onset_unix_ns"] or now_unix_ns)
    age = ", open"
    if first["onset_unix_ns"] is not None:
        age = f", for {_age(max(now_unix_ns - first['onset_unix_ns'], 0) / 1e9)}"
    more = f" and {len(opened) - 1} more" if len(opened) > 1 else ""
    return begin, pace, visible(f"; {first['text']}".replace(JOINT, " ")), age + more


def _age(seconds_: float) -> str:
    """Return for how long something has been so: nobody wants the milliseconds of that."""
    for length_s, unit in ((7200.0, "h"), (120.0, "min")):
        if seconds_ >= length_s:
            return f"{seconds_ / (length_s / 2.0):.0f} {unit}"
    return f"{seconds_:.0f} s"


@dataclass(slots=True)
class SignOfLife:
    """Says once a minute how the job of a store does, from what live detection keeps there; diagnoses nothing itself.

    Attributes:
        path: The store.
        now_s: A clock for pauses.
    """

    path: Path
    now_s: Callable[[], float] = time.monotonic
    _said_s: float = field(init=False)
    _stamp: tuple[int, ...] = field(init=False, default=())
    _known: tuple[JobKey, Pulse] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Begin with a pause."""
        self._said_s = self.now_s()

    def take(self, now_unix_ns: int) -> str | None:
        """Return a line where one is due; None before that, and while the store has no job or several."""
        if self.now_s() - self._said_s < QUIET_S:
            return None
        try:
            found = self._read(None)
        except (StoreError, ConfigError):
            return None
        self._said_s = self.now_s()
        if found is None:
            return None
        return f"{visible(found[0].job)}: {''.join(_parts(found[1], now_unix_ns))}"

    def parts(self, job: str | None, now_unix_ns: int) -> tuple[str, ...] | None:
        """Return how a job does now, in pieces; the store is read only where it has news. None without the job."""
        stamp = stamp_of(self.path)
        if stamp != self._stamp:
            try:
                self._known = self._read(job)
                self._stamp = stamp
            except (StoreError, ConfigError):
                pass  # in use, or not there yet: the next look says more
        return None if self._known is None else _parts(self._known[1], now_unix_ns)

    def _read(self, job: str | None) -> tuple[JobKey, Pulse] | None:
        with store.reading(self.path) as connection:
            key = choose_job(connection, job)
            return None if key is None else (key, read_pulse(connection, key))


def _parts(pulse: Pulse, now_unix_ns: int) -> tuple[str, ...]:
    return status_parts(pulse, findings_answer(pulse.findings, None), now_unix_ns)


@dataclass(slots=True)
class Watch:
    """Follows one job of a store; `look` as often as a second.

    Attributes:
        path: The store.
        job: Which job; None for the store's only one.
        out: Where lines go.
        width: Columns of the terminal, None where there is none.
        now_s: A clock for pauses.
    """

    path: Path
    job: str | None
    out: TextIO
    width: int | None
    now_s: Callable[[], float] = time.monotonic
    _snapshots: Snapshots = field(init=False)
    _states: dict[str, str] = field(init=False, default_factory=dict)
    _said_s: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        """Begin with nothing seen."""
        self._snapshots = Snapshots(self.path, lambda report: "", self.now_s)

    def look(self, now_unix_ns: int) -> None:
        """Read the store, diagnose it again where that is due, and say what has changed."""
        found = self._read()
        if found is None:
            return
        key, pulse = found
        mark = tuple((f.id, f.closed_unix_ns) for f in pulse.findings)
        self._snapshots.want(key.job, mark)
        if self._snapshots.due() is not None:
            self._snapshots.make(key.job)
        snapshot, _ = self._snapshots.want(key.job, mark)
        verdict = snapshot.report.verdict if snapshot is not None else None
        findings = findings_answer(pulse.findings, verdict)
        self._tell_changes(findings)
        self._tell_status(status_line(pulse, findings, now_unix_ns))

    def _read(self) -> tuple[JobKey, Pulse] | None:
        try:
            with store.reading(self.path) as connection:
                key = choose_job(connection, self.job)
                return None if key is None else (key, read_pulse(connection, key))
        except StoreError:
            if self._states or self._said_s > 0:
                return None  # in use for a while: the next look says more
            raise

    def _tell_changes(self, findings: list[dict[str, Any]]) -> None:
        """Say what opened and closed; a finding that nobody names any more has ended, too."""
        states = {row["id"]: row["state"] for row in findings}
        texts = {row["id"]: row["text"] for row in findings}
        for id_, state in states.items():
            if self._states.get(id_) != state:
                self._line(f"{state}: {texts[id_]}")
        for id_ in [i for i, s in self._states.items() if s == "open" and i not in states]:
            self._line(f"no longer named: {id_}")
        self._states = states

    def _tell_status(self, words: str) -> None:
        if self.width is not None:
            self.out.write(CLEAR_LINE + words[: self.width - 1])
            self.out.flush()
        elif self.now_s() - self._said_s >= QUIET_S:
            self._line(words)
        else:
            return
        self._said_s = self.now_s()

    def _line(self, words: str) -> None:
        before = CLEAR_LINE if self.width is not None else ""
        self.out.write(f"{before}{words}\n".replace(JOINT, " "))
        self.out.flush()
