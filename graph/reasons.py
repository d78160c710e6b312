"""The reason codes that this version can give, as data: layer, owner, evidence, action.

Owns what would be a chain of ifs elsewhere. A reason stands only with its required evidence; supporting evidence
raises or lowers it; an abnormal competitor counts against it. Codes are the public contract (section 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RULES_VERSION: Final = "2026-11-22"


class Reason(StrEnum):
    """Codes of the contract that this version gives."""

    CPU_CONTENTION = "CPU_CONTENTION"
    THREAD_OVERSUBSCRIPTION = "THREAD_OVERSUBSCRIPTION"
    CPU_QUOTA = "CPU_QUOTA"
    MONITOR_SELF = "MONITOR_SELF"
    WORK_IMBALANCE = "WORK_IMBALANCE"
    PY_GC = "PY_GC"
    PY_GIL = "PY_GIL"
    DATALOADER_CPU = "DATALOADER_CPU"
    DATALOADER_IO = "DATALOADER_IO"
    CKPT_IO = "CKPT_IO"
    BLOCKING_LOG = "BLOCKING_LOG"
    EXTERNAL_SERVICE = "EXTERNAL_SERVICE"
    PROCESS_SUSPENDED = "PROCESS_SUSPENDED"
    IRQ_SOFTIRQ = "IRQ_SOFTIRQ"
    MEM_RECLAIM = "MEM_RECLAIM"
    UNKNOWN_HOST = "UNKNOWN_HOST"
    UNKNOWN_NET = "UNKNOWN_NET"
    GLOBAL_SLOW = "GLOBAL_SLOW"
    NOT_JOINED = "NOT_JOINED"
    RANK_GONE = "RANK_GONE"
    COLLECTIVE_MISMATCH = "COLLECTIVE_MISMATCH"
    COLLECTIVE_DEADLOCK = "COLLECTIVE_DEADLOCK"
    GPU_HANG = "GPU_HANG"


class Signal(StrEnum):
    """Names of what the analysis measured, as the verdict's evidence shows them.

    Where a name on the wire exists it is that name; values are seconds per step where no other unit is given.
    RUNNING is without the collector's time, interrupts and reclaim; BLOCKED is without the time in which a loader
    worker ran, and without the waits from INTERPRETER on.
    """

    STEP = "training.step.duration"
    WAIT = "collective.arrival_lag"
    RUNNABLE = "training.thread.runnable_time"
    FOREIGN = "training.thread.runnable_foreign_time"
    OWN = "training.thread.runnable_own_time"
    IDLE = "training.thread.runnable_idle_time"
    RUNNING = "training.thread.running_time"
    BLOCKED = "training.thread.blocked_time"
    GC = "training.gc.time"
    INTERPRETER = "training.wait.interpreter_lock"
    READ = "training.wait.file_read"
    WRITE = "training.wait.file_write"
    OUTPUT = "training.wait.output"
    SERVICE = "training.wait.service"
    STOPPED = "training.wait.stop"
    INTERRUPT = "training.wait.interrupt"
    RECLAIM = "training.wait.memory_reclaim"
    LOADER_FILES = "training.thread.blocked_loader_files_time"
    LOADER_WAIT = "training.thread.blocked_loader_running_time"
    LOADER_CPU = "training.loader.running_time"
    LOADER_RUNNABLE = "training.loader.runnable_time"
    THROTTLED = "training.cgroup.throttled_time"
    CPU_LIMIT = "training.cgroup.cpu.limit"
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
    Signal.GC,
    Signal.LOADER_CPU,
    Signal.THROTTLED,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason.

    `magnitude` is the signal whose excess explains the seconds, unless the end of a chain names another; `prior` the
    log prior (method C7; all equal but for the catch-all codes); `coverage` the weight of each sensor that decides
    it; `excludes` pairs a look-alike with the signal whose silence excludes it, the better signal first.
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


# Weight of the scheduler sensor where clocks and interrupts could also decide.
_SCHED_ONLY = (("sched", 1.0),)
_SCHED_AND_CLOCKS = (("sched", 0.7), ("cpu_frequency", 0.15), ("interrupts", 0.15))

# Look-alikes with the signals that are quiet when they are not it.
_NO_STRANGER = ("CPU_CONTENTION", Signal.FOREIGN, "other processes {value:.3f} s")
_NO_QUEUE = ("THREAD_OVERSUBSCRIPTION", Signal.OWN, "own threads {value:.3f} s")
_NO_LIMIT = (
    ("CPU_QUOTA", Signal.THROTTLED, "throttled {value:.2f} s"),
    ("CPU_QUOTA", Signal.IDLE, "CPU idle while runnable {value:.3f} s"),
)
_NO_WORK = ("WORK_IMBALANCE", Signal.RUNNING, "own running time {value:+.3f} s")
_NO_INTERRUPTS = (
    "IRQ_SOFTIRQ",
    Signal.INTERRUPT,
    "interrupts on its CPU {value:+.3f} s",
)
_NO_GC = ("PY_GC", Signal.GC, "garbage collection {value:+.3f} s")
_NO_DECODING = ("DATALOADER_CPU", Signal.LOADER_CPU, "loader workers' CPU time {value:+.3f} s")

_NOT_ON_CPU = (_NO_STRANGER, *_NO_LIMIT, _NO_WORK, _NO_GC)

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
            (_NO_QUEUE, *_NO_LIMIT, _NO_WORK, _NO_DECODING),
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
            _NO_LIMIT,
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
            (_NO_STRANGER, *_NO_LIMIT, _NO_DECODING),
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
            # Idle CPUs beside a runnable thread are nearly always a limit; the group's own count settles it.
            (("sched", 0.7), ("cgroup", 0.3)),
            (_NO_STRANGER, _NO_QUEUE),
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
            _SCHED_AND_CLOCKS,
            (_NO_STRANGER, *_NO_LIMIT, _NO_GC, _NO_INTERRUPTS),
            "INSPECT_WORK",
            "compare what this rank executes with its peers; no worker is bad",
        ),
        Rule(
            Reason.PY_GC,
            "application",
            "job",
            "Python garbage collection",
            Signal.GC,
            0.0,
            # The interpreter says itself when it collects; the scheduler adds that nobody was in its way.
            (("steps", 0.75), ("sched", 0.25)),
            (_NO_STRANGER, _NO_WORK, _NO_DECODING),
            "SCHEDULE_COLLECTIONS",
            "gc.freeze() after start-up, or gc.disable() and gc.collect() at the same step on all ranks",
        ),
        Rule(
            Reason.DATALOADER_CPU,
            "application",
            "job",
            "input decoding",
            Signal.LOADER_CPU,
            0.0,
            (("sched", 0.85), ("cpu_frequency", 0.15)),
            (_NO_STRANGER, *_NO_LIMIT, _NO_GC),
            "SPEED_UP_INPUT",
            "make decoding cheaper, decode ahead of time or cache, or add loader workers where cores are free",
        ),
        Rule(
            Reason.PY_GIL,
            "application",
            "job",
            "waits for Python's interpreter lock",
            Signal.INTERPRETER,
            0.0,
            _SCHED_ONLY,
            _NOT_ON_CPU,
            "FREE_INTERPRETER",
            "move that thread's work to another process, or into code that lets go of the lock",
        ),
        Rule(
            Reason.DATALOADER_IO,
            "storage",
            "storage",
            "input blocked on files",
            Signal.READ,
            0.0,
            _SCHED_ONLY,
            (*_NOT_ON_CPU, _NO_DECODING),
            "SPEED_UP_STORAGE",
            "look at that storage; cache the data locally, or read ahead with more loader workers",
        ),
        Rule(
            Reason.CKPT_IO,
            "storage",
            "storage",
            "checkpoint blocked on files",
            Signal.WRITE,
            0.0,
            _SCHED_ONLY,
            _NOT_ON_CPU,
            "CHECKPOINT_ASIDE",
            "look at that storage; save checkpoints asynchronously, sharded, or less often",
        ),
        Rule(
            Reason.BLOCKING_LOG,
            "application",
            "job",
            "blocked writing its output",
            Signal.OUTPUT,
            0.0,
            _SCHED_ONLY,
            _NOT_ON_CPU,
            "LOG_ASIDE",
            "write logs and metrics from a thread of their own; see why nobody empties that output",
        ),
        Rule(
            Reason.EXTERNAL_SERVICE,
            "application",
            "unknown",
            "waits for a service to answer",
            Signal.SERVICE,
            0.0,
            _SCHED_ONLY,
            _NOT_ON_CPU,
            "CALL_ASIDE",
            "take that call out of the training loop; look at the service at the other end",
        ),
        Rule(
            Reason.PROCESS_SUSPENDED,
            "operating_system",
            "unknown",
            "stopped by a signal, a freezer or a debugger",
            Signal.STOPPED,
            0.0,
            _SCHED_ONLY,
            _NOT_ON_CPU,
            "FIND_SENDER",
            "find who stops the process: a debugger, a batch system, a script",
        ),
        Rule(
            Reason.IRQ_SOFTIRQ,
            "operating_system",
            "node",
            "interrupt work on its CPU",
            Signal.INTERRUPT,
            0.0,
            _SCHED_ONLY,  # its seconds are there only where the reader of interrupts was
            _NOT_ON_CPU,
            "MOVE_INTERRUPTS",
            "move those interrupts off the training CPUs: IRQ affinity, RPS, or fewer packets",
        ),
        Rule(
            Reason.MEM_RECLAIM,
            "operating_system",
            "node",
            "looked for free memory itself",
            Signal.RECLAIM,
            0.0,
            _SCHED_ONLY,  # as above, of memory
            _NOT_ON_CPU,
            "FREE_MEMORY",
            "find what fills the memory of the host or of the cgroup; raise memory.high, or leave more free",
        ),
        Rule(
            Reason.UNKNOWN_HOST,
            "operating_system",
            "unknown",
            "host time lost, cause not seen",
            Signal.HOST,
            -1.0,
            (("steps", 0.3), ("sched", 0.5), ("block_io", 0.2)),
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
            _SCHED_AND_CLOCKS,
            (),
            "COMPARE_WITH_BEFORE",
            "look for what changed for all ranks at the onset (release, power, storage)",
        ),
    )
}

# What a sensor would have decided, for the list of missing ones.
WOULD_DECIDE: Final[dict[str, tuple[str, ...]]] = {
    "sched": (
        "BLOCKING_LOG",
        "CKPT_IO",
        "CPU_CONTENTION",
        "CPU_QUOTA",
        "DATALOADER_CPU",
        "DATALOADER_IO",
        "EXTERNAL_SERVICE",
        "PROCESS_SUSPENDED",
        "PY_GIL",
        "THREAD_OVERSUBSCRIPTION",
        "WORK_IMBALANCE",
    ),
    "proc": ("UNKNOWN_HOST",),
    "procfs": ("UNKNOWN_HOST",),
    "cgroup": ("CPU_QUOTA",),
    "psi": ("CPU_CONTENTION", "CPU_QUOTA", "MEM_RECLAIM"),
    "cpu": ("CPU_STEAL", "IRQ_SOFTIRQ"),
    "cpu_frequency": ("CPU_FREQ",),
    "affinity": ("CPU_AFFINITY", "NUMA_REMOTE", "THREAD_OVERSUBSCRIPTION"),
    "vmstat": ("MEM_RECLAIM", "OOM_KILL", "SWAP"),
    "cgroup_memory": ("MEM_RECLAIM", "OOM_KILL", "PROCESS_SUSPENDED"),
    "disks": ("CKPT_IO", "DATALOADER_IO", "STORAGE_SLOW"),
    "memory": ("MEM_RECLAIM",),
    "paging": ("SWAP",),
    "block_io": ("CKPT_IO", "DATALOADER_IO", "STORAGE_SLOW"),
    "interrupts": ("IRQ_SOFTIRQ",),
    "lifecycle": ("OOM_KILL", "PROCESS_SUSPENDED", "RANK_GONE"),
    "kernel_log": ("GPU_ECC", "GPU_LOST", "NET_FLAP", "NVLINK", "OOM_KILL", "PCIE_DEGRADED"),
    "nvml": ("GPU_CLOCK_PIN", "GPU_POWER", "GPU_THERMAL"),
    "rdma_counters": ("NET_CONGESTION", "NET_FLAP", "NET_LOSS", "NIC_RATE"),
    "nic_counters": ("NET_CONGESTION", "NET_FLAP", "NET_LOSS", "NIC_RATE"),
    "instrumentation": ("PY_GC", "WORK_IMBALANCE"),
    "tcp": ("EXTERNAL_SERVICE", "NET_CONGESTION", "NET_LOSS"),
}

# Command names under which Rootwalk's own processes run.
MONITOR_NAMES: Final = ("rootwalk",)
