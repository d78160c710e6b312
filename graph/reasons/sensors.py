"""What each sensor decides, and under which names Rootwalk itself runs."""

from __future__ import annotations

from typing import Final

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
        "KERNEL_LOCK",
        "PROCESS_SUSPENDED",
        "PROXY_STARVED",
        "PY_GIL",
        "STORAGE_SLOW",
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
    "lifecycle": ("OOM_KILL", "PROCESS_SUSPENDED", "RANK_CRASHED", "RANK_GONE", "RANK_KILLED"),
    "kernel_log": ("GPU_ECC", "GPU_LOST", "NET_FLAP", "NVLINK", "OOM_KILL", "PCIE_DEGRADED"),
    "nvml": (
        "GPU_CLOCK_PIN",
        "GPU_COTENANT",
        "GPU_ECC",
        "GPU_LOST",
        "GPU_POWER",
        "GPU_SILENT_SLOW",
        "GPU_THERMAL",
        "NVLINK",
        "P2P_OFF",
        "PCIE_DEGRADED",
    ),
    "cuda": ("ACCIDENTAL_SYNC", "ALLOCATOR", "GPU_SILENT_SLOW", "UNKNOWN_GPU"),
    "nccl_log": ("TRANSPORT_FALLBACK",),
    "rdma_counters": ("NET_CONGESTION", "NET_FLAP", "NET_LOSS", "NIC_RATE"),
    "nic_counters": ("NET_CONGESTION", "NET_FLAP", "NET_LOSS", "NIC_RATE"),
    "instrumentation": (
        "ACCIDENTAL_SYNC",
        "ALLOCATOR",
        "COMPILE",
        "CPU_FREQ",
        "EXPERT_IMBALANCE",
        "LAUNCH_BOUND",
        "OVERLAP_LOST",
        "PY_GC",
        "RELEASE_REGRESSION",
        "STAGE_IMBALANCE",
        "UNEVEN_EVAL",
        "WORK_IMBALANCE",
    ),
    "stacks": ("FORK_DEADLOCK", "GPU_HANG", "GPU_LOST"),
    "tcp": ("EXTERNAL_SERVICE", "NET_CONGESTION", "NET_LOSS", "TRANSPORT_FALLBACK"),
}

# Command names under which Rootwalk's own processes run.
MONITOR_NAMES: Final = ("rootwalk",)
