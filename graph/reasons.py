"""The reason codes that this version can give, as data: layer, owner, evidence, action.

Owns what would be a chain of ifs elsewhere. A reason stands only with its required evidence; supporting evidence
raises or lowers it; an abnormal competitor counts against it. Codes are the public contract (section 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RULES_VERSION: Final = "2026-11-21"


class Reason(StrEnum):
    """Codes of the contract that this version gives."""

    CPU_CONTENTION = "CPU_CONTENTION"
    THREAD_OVERSUBSCRIPTION = "THREAD_OVERSUBSCRIPTION"
    CPU_QUOTA = "CPU_QUOTA"
    MONITOR_SELF = "MONITOR_SELF"
    WORK_IMBALANCE = "WORK_IMBALANCE"
    UNKNOWN_HOST = "UNKNOWN_HOST"
    UNKNOWN_NET = "UNKNOWN_NET"
    GLOBAL_SLOW = "GLOBAL_SLOW"


class Signal(StrEnum):
    """Names of what the analysis measured, as the verdict's evidence shows them.

    Where a name on the wire exists it is that name; values are seconds per step.
    """

    STEP = "training.step.duration"
    WAIT = "collective.arrival_lag"
    RUNNABLE = "training.thread.runnable_time"
    FOREIGN = "training.thread.runnable_foreign_time"
    OWN = "training.thread.runnable_own_time"
    IDLE = "training.thread.runnable_idle_time"
    RUNNING = "training.thread.running_time"
    BLOCKED = "training.thread.blocked_time"
    AGGRESSOR = "training.aggressor.time"
    HOST = "training.thread.unaccounted_time"
    TRANSFER = "collective.transfer_time"


# Signals that say where a thread's time went; each excludes the reasons of the others when it is quiet.
STATE_SIGNALS: Final = (
    Signal.FOREIGN,
    Signal.OWN,
    Signal.IDLE,
    Signal.RUNNING,
    Signal.BLOCKED,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason.

    `magnitude` is the signal whose excess explains the seconds; `chain` the edge kinds from the symptom down;
    `prior` the log prior (method C7; all equal but for the catch-all codes); `coverage` the weight of each sensor
    that decides it; `excludes` pairs a look-alike with the signal whose silence excludes it.
    """

    reason: Reason
    layer: str | None
    owner: str
    title: str
    magnitude: Signal
    prior: float
    coverage: tuple[tuple[str, float], ...]
    excludes: tuple[tuple[str, Signal, str], ...]
    action_code: str
    action: str


# Weight of the scheduler sensor where clocks and interrupts, which this version does not read, could also decide.
_SCHED_ONLY = (("sched", 1.0),)
_SCHED_AND_UNREAD = (("sched", 0.7), ("cpu_frequency", 0.15), ("interrupts", 0.15))

RULES: Final[dict[Reason, Rule]] = {
    rule.reason: rule
    for rule in (
        Rule(
            Reason.CPU_CONTENTION,
            "operating_system",
            "node",
            "CPU contention",
            Signal.FOREIGN,
            0.0,
            _SCHED_ONLY,
            (
                (
                    "THREAD_OVERSUBSCRIPTION",
                    Signal.OWN,
                    "own threads {value:.3f} s",
                ),
                ("CPU_QUOTA", Signal.IDLE, "CPU idle while runnable {value:.3f} s"),
                ("WORK_IMBALANCE", Signal.RUNNING, "own running time {value:+.3f} s"),
            ),
            "LIMIT_PROCESS",
            "move or limit pid {pid}; cordon the host only if it recurs",
        ),
        Rule(
            Reason.MONITOR_SELF,
            "operating_system",
            "platform",
            "CPU contention by a monitor",
            Signal.FOREIGN,
            0.0,
            _SCHED_ONLY,
            (("CPU_QUOTA", Signal.IDLE, "CPU idle while runnable {value:.3f} s"),),
            "LIMIT_MONITOR",
            "lower the monitor's level or move pid {pid} off the rank's CPUs",
        ),
        Rule(
            Reason.THREAD_OVERSUBSCRIPTION,
            "operating_system",
            "job",
            "its own threads queue for its CPUs",
            Signal.OWN,
            0.0,
            _SCHED_ONLY,
            (
                (
                    "CPU_CONTENTION",
                    Signal.FOREIGN,
                    "other processes {value:.3f} s",
                ),
                ("CPU_QUOTA", Signal.IDLE, "CPU idle while runnable {value:.3f} s"),
            ),
            "REDUCE_THREADS",
            "lower the rank's threads or loader workers, or give it more CPUs",
        ),
        Rule(
            Reason.CPU_QUOTA,
            "operating_system",
            "platform",
            "throttled: its CPU was idle while it was runnable",
            Signal.IDLE,
            0.0,
            _SCHED_ONLY,
            (
                (
                    "CPU_CONTENTION",
                    Signal.FOREIGN,
                    "other processes {value:.3f} s",
                ),
                (
                    "THREAD_OVERSUBSCRIPTION",
                    Signal.OWN,
                    "own threads {value:.3f} s",
                ),
            ),
            "RAISE_CPU_LIMIT",
            "raise or remove the CPU limit of the rank's cgroup",
        ),
        Rule(
            Reason.WORK_IMBALANCE,
            "application",
            "job",
            "more work of its own than before",
            Signal.RUNNING,
            0.0,
            _SCHED_AND_UNREAD,
            (
                (
                    "CPU_CONTENTION",
                    Signal.FOREIGN,
                    "other processes {value:.3f} s",
                ),
                ("CPU_QUOTA", Signal.IDLE, "CPU idle while runnable {value:.3f} s"),
            ),
            "INSPECT_WORK",
            "compare what this rank executes with its peers; no worker is bad",
        ),
        Rule(
            Reason.UNKNOWN_HOST,
            "operating_system",
            "unknown",
            "host time lost, cause not seen",
            Signal.HOST,
            -1.0,
            (("steps", 0.3), ("sched", 0.3), ("block_io", 0.2), ("wakeups", 0.2)),
            (),
            "ADD_HOST_SENSORS",
            "run the host agent with privileges on this host (`rootwalk check`)",
        ),
        Rule(
            Reason.UNKNOWN_NET,
            "network",
            "fabric",
            "slower transfers, cause not seen",
            Signal.TRANSFER,
            -1.0,
            (("sched", 0.3), ("nic_counters", 0.4), ("rdma_counters", 0.3)),
            (),
            "ADD_NETWORK_SENSORS",
            "check links and NIC counters of these hosts; no sensor saw them",
        ),
        Rule(
            Reason.GLOBAL_SLOW,
            None,
            "unknown",
            "all ranks slower, no late arriver",
            Signal.RUNNING,
            0.0,
            _SCHED_AND_UNREAD,
            (),
            "COMPARE_WITH_BEFORE",
            "look for what changed for all ranks at the onset (release, power, storage)",
        ),
    )
}

# What a sensor would have decided, for the list of missing ones.
WOULD_DECIDE: Final[dict[str, tuple[str, ...]]] = {
    "sched": ("CPU_CONTENTION", "CPU_QUOTA", "THREAD_OVERSUBSCRIPTION", "WORK_IMBALANCE"),
    "proc": ("UNKNOWN_HOST",),
    "procfs": ("UNKNOWN_HOST",),
    "cgroup": ("CPU_QUOTA",),
    "psi": ("CPU_QUOTA", "MEM_RECLAIM"),
    "nvml": ("GPU_CLOCK_PIN", "GPU_POWER", "GPU_THERMAL"),
    "rdma_counters": ("NET_CONGESTION", "NET_LOSS"),
    "nic_counters": ("NET_LOSS", "NIC_RATE"),
    "instrumentation": ("WORK_IMBALANCE",),
}

# Command names under which Rootwalk's own processes run.
MONITOR_NAMES: Final = ("rootwalk",)
