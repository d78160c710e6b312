"""Every reason code of the public contract (version 1, section 2), with its layer and its usual owners.

The list is the contract's: codes may be added, never renamed. Which of them this version gives is `codes`'.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CONTRACT"]

_ROWS: Final = (
    ("operating_system", "node", "CPU_CONTENTION CPU_STEAL CPU_FREQ IRQ_SOFTIRQ KERNEL_LOCK"),
    ("operating_system", "node", "MEM_RECLAIM SWAP NUMA_REMOTE OOM_KILL RANK_KILLED"),
    ("operating_system", "job", "THREAD_OVERSUBSCRIPTION"),
    ("operating_system", "platform", "CPU_AFFINITY CPU_QUOTA MONITOR_SELF"),
    ("operating_system", "unknown", "PROCESS_SUSPENDED UNKNOWN_HOST"),
    ("application", "job", "PY_GC PY_GIL DATALOADER_CPU BLOCKING_LOG WORK_IMBALANCE"),
    ("application", "job", "SEQ_IMBALANCE STAGE_IMBALANCE EXPERT_IMBALANCE"),
    ("application", "job", "ACCIDENTAL_SYNC UNEVEN_EVAL COLD_START"),
    ("application", "job", "RANK_GONE RANK_CRASHED FORK_DEADLOCK NOT_JOINED RELEASE_REGRESSION"),
    ("application", "unknown", "EXTERNAL_SERVICE"),
    ("framework", "job", "COMPILE ALLOCATOR LAUNCH_BOUND OVERLAP_LOST"),
    ("collective", "job", "COLLECTIVE_MISMATCH COLLECTIVE_DEADLOCK"),
    ("collective", "platform", "TRANSPORT_FALLBACK"),
    ("collective", "node", "PROXY_STARVED"),
    ("device", "node", "GPU_THERMAL GPU_POWER GPU_CLOCK_PIN GPU_SILENT_SLOW"),
    ("device", "node", "GPU_ECC GPU_LOST GPU_HANG GPU_COTENANT"),
    ("device", "node", "PCIE_DEGRADED P2P_OFF NVLINK"),
    ("device", "unknown", "SLOW_COMPUTE UNKNOWN_GPU"),
    ("network", "fabric", "NET_CONGESTION NET_LOSS NET_FLAP UNKNOWN_NET"),
    ("network", "node", "NIC_RATE"),
    ("storage", "storage", "DATALOADER_IO CKPT_IO STORAGE_SLOW"),
    (None, "unknown", "GLOBAL_SLOW"),
)
# Code: layer and usual owner.
CONTRACT: Final[dict[str, tuple[str | None, str]]] = {
    code: (layer, owner) for layer, owner, codes in _ROWS for code in codes.split()
}
