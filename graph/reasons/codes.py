"""The reason codes that this version can give, and the names of what the analysis measures for them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["FRAME_SIGNAL", "OPERATION_SIGNAL", "PATH_SIGNAL", "STATE_SIGNALS", "Reason", "Signal"]

# Begins the signal of a function in a profile: then the kind of time, and the function.
FRAME_SIGNAL: Final = "profile.frame."
# Begins the signal of an operation on a step's path, then its name; and that of all operations of one kind.
OPERATION_SIGNAL: Final = "training.device.operation.time: "
PATH_SIGNAL: Final = "training.device.path."


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
    KERNEL_LOCK = "KERNEL_LOCK"
    NUMA_REMOTE = "NUMA_REMOTE"
    STORAGE_SLOW = "STORAGE_SLOW"
    UNKNOWN_HOST = "UNKNOWN_HOST"
    UNKNOWN_NET = "UNKNOWN_NET"
    NET_FLAP = "NET_FLAP"
    NET_LOSS = "NET_LOSS"
    NET_CONGESTION = "NET_CONGESTION"
    NIC_RATE = "NIC_RATE"
    CPU_STEAL = "CPU_STEAL"
    CPU_FREQ = "CPU_FREQ"
    SWAP = "SWAP"
    OOM_KILL = "OOM_KILL"
    CPU_AFFINITY = "CPU_AFFINITY"
    GLOBAL_SLOW = "GLOBAL_SLOW"
    COLD_START = "COLD_START"
    NOT_JOINED = "NOT_JOINED"
    RANK_GONE = "RANK_GONE"
    RANK_CRASHED = "RANK_CRASHED"
    RANK_KILLED = "RANK_KILLED"
    FORK_DEADLOCK = "FORK_DEADLOCK"
    COLLECTIVE_MISMATCH = "COLLECTIVE_MISMATCH"
    COLLECTIVE_DEADLOCK = "COLLECTIVE_DEADLOCK"
    GPU_HANG = "GPU_HANG"
    GPU_THERMAL = "GPU_THERMAL"
    GPU_POWER = "GPU_POWER"
    GPU_CLOCK_PIN = "GPU_CLOCK_PIN"
    GPU_ECC = "GPU_ECC"
    GPU_LOST = "GPU_LOST"
    GPU_COTENANT = "GPU_COTENANT"
    PCIE_DEGRADED = "PCIE_DEGRADED"
    P2P_OFF = "P2P_OFF"
    NVLINK = "NVLINK"
    UNKNOWN_GPU = "UNKNOWN_GPU"
    SLOW_COMPUTE = "SLOW_COMPUTE"
    STAGE_IMBALANCE = "STAGE_IMBALANCE"
    SEQ_IMBALANCE = "SEQ_IMBALANCE"
    EXPERT_IMBALANCE = "EXPERT_IMBALANCE"
    UNEVEN_EVAL = "UNEVEN_EVAL"
    RELEASE_REGRESSION = "RELEASE_REGRESSION"
    ACCIDENTAL_SYNC = "ACCIDENTAL_SYNC"
    COMPILE = "COMPILE"
    ALLOCATOR = "ALLOCATOR"
    LAUNCH_BOUND = "LAUNCH_BOUND"
    OVERLAP_LOST = "OVERLAP_LOST"
    TRANSPORT_FALLBACK = "TRANSPORT_FALLBACK"
    PROXY_STARVED = "PROXY_STARVED"
    GPU_SILENT_SLOW = "GPU_SILENT_SLOW"


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
    DEVICE_WAIT = "training.wait.device"
    MEMORY_MAP = "training.wait.memory"
    FILES = "training.wait.files"
    LOADER_FILES = "training.thread.blocked_loader_files_time"
    LOADER_WAIT = "training.thread.blocked_loader_running_time"
    LOADER_CPU = "training.loader.running_time"
    LOADER_RUNNABLE = "training.loader.runnable_time"
    THROTTLED = "training.cgroup.throttled_time"
    CPU_LIMIT = "training.cgroup.cpu.limit"
    AGGRESSOR = "training.aggressor.time"
    HOST = "training.thread.unaccounted_time"
    TRANSFER = "collective.transfer_time"
    INPUT_WAIT = "training.input.wait_time"
    INPUT_BLOCKED = "training.input.blocked_time"
    OPERATOR = "training.operator.time"
    DEVICE_BUSY = "training.device.busy_time"
    COMPUTE = "training.operation.time"
    EXCESS = "training.operation.excess_time"
    # What hosts, links and ranks count, in the metric's own unit, a step; levels as they are.
    CARRIER = "training.nic.carrier.changes"
    RETRANSMITTED = "training.tcp.retransmitted.segments"
    DROPPED = "system.network.packet.dropped"
    NET_ERRORS = "system.network.errors"
    NIC_EVENTS = "training.nic.events"
    RDMA_EVENTS = "training.rdma.events"
    ROUND_TRIP = "training.tcp.rtt.mean"
    PAUSE = "training.nic.pause.time"
    LINK_RATE = "hw.network.bandwidth.limit"
    STOLEN = "system.cpu.time"
    CLOCK = "training.cpu.frequency"
    SWAPPED_IN = "system.paging.operations"
    MAJOR_FAULTS = "training.memory.major_faults"
    KILLED = "training.process.oom_kill"
    RANK_END = "training.process.end"
    SENT_SIGNAL = "training.process.signal"
    GROUP_EVENTS = "training.cgroup.memory.events"
    ALLOWED = "training.cpu.allowed"
    SHARED_CORES = "training.cpu.allowed.shared_cores"
    FAR_PAGES = "training.host.numa.allocations"
    GPU_CLOCK = "training.gpu.frequency"
    GPU_THROTTLED = "training.gpu.throttled.time"
    GPU_PROCESSES = "training.gpu.processes"
    GPU_PEERS = "training.gpu.peers"
    PCIE_RATE = "training.gpu.pcie.bandwidth.limit"
    NVLINKS = "training.gpu.nvlink.links"
    DEVICE_ERRORS = "hw.errors"
    KERNEL_MESSAGE = "training.kernel.message"
    THREAD_TIME = "training.thread.time"
    NETWORK_IO = "process.network.io"
    PORT_IO = "hw.network.io"
    NCCL_CONNECTIONS = "training.nccl.connections"
    # What the training program tells by spans, a step.
    COMPILING = "training.compile.time"
    ALLOCATOR_RETRIES = "training.allocator.retries"
    EVALUATING = "training.evaluation.time"
    EXPERT_SIZE = "collective.size"
    STAGE_MESSAGES = "training.pipeline.messages"
    COLLECTIVES = "training.collectives"
    CPU_PROBE = "training.cpu.probe_time"
    LAUNCH_GAP = "training.device.launch_gap_time"
    SYNCHRONIZING = "training.device.synchronize_time"
    EXPOSED = "training.device.exposed_time"
    COMMUNICATING = "training.device.communication_time"
    # What OBI counts of a process's calls to the CUDA library, a step; of several metrics, the sum.
    SYNC_CALLS = "gpu.cuda.synchronize.calls"
    LAUNCH_CALLS = "gpu.cuda.launch.calls"
    DEVICE_FREED = "gpu.cuda.memory.free.bytes"
    # What our own kernel probes count of a rank's calls, and how long they kept its threads.
    CUDA_CALLS = "training.cuda.calls"
    CUDA_TIME = "training.cuda.call.time"
    CUDA_COPIED = "training.cuda.copy.io"


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
