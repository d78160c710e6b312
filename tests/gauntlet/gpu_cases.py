"""Cases on a real GPU, which two ranks share; for a machine that has one (`make test-gpu`)."""

from __future__ import annotations

from functools import partial

from gauntlet.case import ACCUSE_NOBODY, NO_RANK, RANK, Case, Truth
from gauntlet.faults.tenants import Tenant
from gauntlet.faults.training import TrainingBug
from gauntlet.workloads import DDP_ON_GPU, DDP_ON_GPU_OWN_LOADER, NCCL

__all__ = ["GPU_CASES"]

GPU_CASES = {
    "gpu_healthy": Case(
        "two ranks on a GPU, nothing is done",
        ACCUSE_NOBODY,
        None,
        looks_like="any fault that noise looks like",
        workload=DDP_ON_GPU,
    ),
    "gpu_healthy_nccl": Case(
        "one rank on a GPU with NCCL, nothing is done",
        ACCUSE_NOBODY,
        None,
        looks_like="any fault that noise looks like",
        workload=NCCL,
    ),
    "gpu_cotenant": Case(
        "one more process computes on the GPU of all ranks",
        Truth(NO_RANK, ("GPU_COTENANT",), ("device",)),
        Tenant,
        looks_like="more work of all ranks",
        workload=DDP_ON_GPU,
    ),
    "gpu_near_cotenant": Case(
        "one more process has memory on the GPU of all ranks, and computes nothing",
        ACCUSE_NOBODY,
        partial(Tenant, "idle"),
        looks_like="GPU_COTENANT",
        workload=DDP_ON_GPU,
    ),
    "gpu_synchronisation": Case(
        "one rank reads a number from the GPU 8,000 times in each step",
        Truth(RANK, ("ACCIDENTAL_SYNC",), ("application",)),
        partial(TrainingBug, "synchronise", times=8000),
        looks_like="a slow GPU",
        workload=DDP_ON_GPU,
    ),
    "gpu_allocator": Case(
        "one rank gives its memory on the GPU back and asks for it again, 100 times in each step",
        Truth(RANK, ("ALLOCATOR",), ("framework",)),
        partial(TrainingBug, "thrash_allocator", times=100, bytes=1_000_000_000),
        looks_like="a slow GPU; more work",
        workload=DDP_ON_GPU,
    ),
    "gpu_slow_input": Case(
        "one rank, which loads by itself, unpacks a shard in Python for every sample",
        Truth(RANK, ("DATALOADER_CPU",), ("application",)),
        partial(TrainingBug, "decode", bytes=25_000),
        looks_like="a slow GPU; slow storage",
        workload=DDP_ON_GPU_OWN_LOADER,
    ),
    "gpu_small_kernels": Case(
        "one rank launches 40,000 kernels of eight numbers in each step",
        # What a profile of the device's work tells is LAUNCH_BOUND; without one it is more work of the host.
        Truth(RANK, ("LAUNCH_BOUND", "WORK_IMBALANCE"), ("framework", "application")),
        partial(TrainingBug, "small_kernels", times=40_000),
        looks_like="a slow GPU",
        workload=DDP_ON_GPU,
    ),
}
