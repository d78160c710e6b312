"""Which GPUs no longer answer, around the moment from which ranks wait: by NVML's word and by the driver's.

    NVML          says of each GPU, and whose it is: `hw.status` of a rank's own is failed, or it is ok
    Xid           the driver's word of a PCI address (79, 119, 120): NVML tells which GPU is there. Where it does not,
                  the word counts on the rank's host, where NVML has had no answer of the rank's own GPUs since, and
                  calls no other one failed

GPUs of all ranks that do not answer are the end of the job, and no rank's fault. What is said later than seconds after
the ranks began to wait is said while the job is being ended, and counts for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from rootwalk.graph.counters.devices import XID_LOST
from rootwalk.graph.hangs.host_waits import Word
from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.semconv import TrainingKernelMessageKind

__all__ = ["LostDevices"]

NS: Final = 1_000_000_000
# Of the first wait of another rank: the driver tells that a GPU is gone when somebody asks it.
BEFORE_NS, AFTER_NS = 60 * NS, 10 * NS
# What stands still is told again once a minute: until then nobody has heard that a GPU answers.
AGAIN_NS: Final = 75 * NS
# A GPU that is lost tells no clock any more, and what stands still is told once a minute.
KNOWN_NS: Final = 600 * NS
# Of `hw.state` (OpenTelemetry, hardware conventions).
OK, FAILED = "ok", "failed"
# Priors, as those of `judge`: an Xid of an address that nobody knows may speak of another GPU of the host.
BY_NVML, BY_LOG = 0.9, 0.6

_OWNERS: Final = (
    "SELECT DISTINCT rank, attributes ->> ? FROM metrics WHERE name = ? AND job = ?"
    " AND coalesce(attempt, ?) = ? AND rank IS NOT NULL AND unix_ns BETWEEN ? AND ?"
)
_STATES: Final = (
    "SELECT attributes ->> ?, attributes ->> ?, host_id, min(unix_ns), max(unix_ns) FROM metrics WHERE name = ?"
    " AND value = 1 AND unix_ns BETWEEN ? AND ? GROUP BY ALL"
)
_ADDRESSES: Final = (
    "SELECT DISTINCT host_id, attributes ->> ?, attributes ->> ? FROM metrics WHERE name = ?"
    " AND unix_ns BETWEEN ? AND ?"
)
_HOSTS: Final = (
    "SELECT DISTINCT rank, host_id FROM profiles WHERE job = ? AND coalesce(attempt, ?) = ?"
    " AND rank IS NOT NULL"
)
_LINES: Final = (
    "SELECT host_id, attributes ->> ?, max(unix_ns) FROM logs WHERE event_name = ? AND attributes ->> ? = ?"
    " AND list_contains(?, attributes ->> ?) AND unix_ns BETWEEN ? AND ? GROUP BY ALL ORDER BY ALL"
)


class LostDevices:
    """What was said of the GPUs of a job around one moment.

    Args:
        connection: An open store.
        job: Its name.
        attempt: Of the job; metrics that tell none are of every one.
        since_ns: Since when others wait, Unix ns.
    """

    def __init__(self, connection: Any, job: str, attempt: int, since_ns: int) -> None:
        self._span_ns = since_ns - BEFORE_NS, since_ns + AFTER_NS
        self._own = defaultdict[int, set[str]](set)
        known = [_path(semconv.HW_ID), semconv.METRIC_TRAINING_GPU_FREQUENCY, job, attempt, attempt]
        for rank, device in connection.execute(
            _OWNERS, [*known, since_ns - KNOWN_NS, self._span_ns[1]]
        ).fetchall():
            self._own[int(rank)].add(device)
        # GPUs that are failed, with their hosts, and when each was last known to answer.
        self._failed: dict[str, str] = {}
        self._ok_ns: dict[str, int] = {}
        told = [_path(semconv.HW_ID), _path(semconv.HW_STATE), semconv.METRIC_HW_STATUS]
        for device, state, host, first_ns, last_ns in connection.execute(
            _STATES, [*told, self._span_ns[0], since_ns + AGAIN_NS]
        ).fetchall():
            if state == OK:
                self._ok_ns[device] = int(last_ns)
            elif state == FAILED and first_ns <= self._span_ns[1]:
                self._failed[device] = host
        self._gpus: dict[tuple[str, str], str] = {}
        about = [_path(semconv.TRAINING_GPU_PCI_ADDRESS), _path(semconv.HW_ID)]
        about.append(semconv.METRIC_TRAINING_GPU_PCIE_WIDTH)
        for host, bus, device in connection.execute(
            _ADDRESSES, [*about, since_ns - KNOWN_NS, self._span_ns[1]]
        ).fetchall():
            self._gpus[host, bus] = device
        self._hosts = defaultdict[int, set[str]](set)
        for rank, host in connection.execute(_HOSTS, [job, attempt, attempt]).fetchall():
            self._hosts[int(rank)].add(host)
        self._lines: list[tuple[str, str, int]] = connection.execute(
            _LINES,
            [
                *(
                    _path(semconv.TRAINING_KERNEL_MESSAGE_DEVICE),
                    semconv.EVENT_TRAINING_KERNEL_MESSAGE,
                ),
                *(
                    _path(semconv.TRAINING_KERNEL_MESSAGE_KIND),
                    TrainingKernelMessageKind.GPU_ERROR.value,
                ),
                *(list(XID_LOST), _path(semconv.TRAINING_KERNEL_MESSAGE_CODE), *self._span_ns),
            ],
        ).fetchall()

    def word_of(self, rank: int) -> Word | None:
        """Return who says that a rank's GPU no longer answers; None where nobody does."""
        own, failed = self._own.get(rank, set()), self._failed.keys()
        if own & failed:
            is_end = len(self._own) > 1 and all(devices <= failed for devices in self._own.values())
            return None if is_end else self._by_nvml(min(own & failed))
        for host, bus, unix_ns in self._lines:
            device = self._gpus.get((host, bus)) if own else None
            meant = own if device is None else {device}
            has_answered = bool(own) and all(self._ok_ns.get(one, 0) > unix_ns for one in meant)
            is_of_another = device not in own if device else own and host in self._failed.values()
            if host in self._hosts.get(rank, set()) and not has_answered and not is_of_another:
                return self._by_log(host, bus, device)
        return None

    def answers(self, rank: int) -> bool:
        """Return whether NVML has had answers of all GPUs of a rank since the others have been waiting for a while."""
        own = self._own.get(rank, set())
        has_answered = all(self._ok_ns.get(device, 0) >= self._span_ns[1] for device in own)
        return bool(own) and has_answered and not own & self._failed.keys()

    def _by_nvml(self, device: str) -> Word:
        query = (
            f"{_shown('metrics', semconv.METRIC_HW_STATUS, 'name')} AND value = 1"
            f" AND attributes ->> '{_path(semconv.HW_ID)}' = {_quoted(device)}"
            f" AND attributes ->> '{_path(semconv.HW_STATE)}' = '{FAILED}'"
        )
        return Word(device, semconv.METRIC_HW_STATUS, self._within(query), BY_NVML)

    def _by_log(self, host: str, bus: str, device: str | None) -> Word:
        event, codes = semconv.EVENT_TRAINING_KERNEL_MESSAGE, ", ".join(map(_quoted, XID_LOST))
        query = (
            f"{_shown('logs', event, 'event_name')} AND host_id = {_quoted(host)}"
            f" AND attributes ->> '{_path(semconv.TRAINING_KERNEL_MESSAGE_DEVICE)}' = {_quoted(bus)}"
            f" AND attributes ->> '{_path(semconv.TRAINING_KERNEL_MESSAGE_CODE)}' IN ({codes})"
        )
        return Word(device, event, self._within(query), BY_NVML if device else BY_LOG)

    def _within(self, query: str) -> str:
        begin_ns, end_ns = self._span_ns
        return f"{query} AND unix_ns BETWEEN {begin_ns} AND {end_ns} ORDER BY unix_ns"


def _path(attribute: str) -> str:
    return f'$."{attribute}"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _shown(view: str, name: str, column: str) -> str:
    return f"SELECT * FROM {view} WHERE {column} = '{name}'"  # noqa: S608
