"""The jobs: complete scripts of `examples/`, at sizes for two cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """One job.

    Attributes:
        name: For results.
        script: File of `examples/`.
        options: Of the script.
        ranks: Processes.
        steps: Optimiser updates; what is done to the job begins after `HEALTHY_SHARE` of them, a near miss as
            `alternation.py` says.
        is_apart: Each rank is in a network of its own; who disturbs the way between them makes it.
        is_on_gpu: It may use GPUs; of all others they are hidden.
    """

    name: str
    script: str
    options: tuple[str, ...] = ()
    ranks: int = 2
    steps: int = 140
    is_apart: bool = False
    is_on_gpu: bool = False


HEALTHY_SHARE = 0.55
# Half of the example's own layers: a step of some 0.1 s on a core of 2024.
SMALL = ("--layers", "2")
DDP = Workload("ddp", "train_ddp.py", ("--workers", "1", *SMALL))
DDP_OWN_LOADER = Workload("ddp, loads itself", "train_ddp.py", ("--workers", "0", *SMALL))
DDP_SHORT = Workload("ddp", "train_ddp.py", ("--workers", "1", *SMALL), steps=70)
FSDP = Workload("fsdp", "train_fsdp.py", ("--workers", "1", *SMALL))
FSDP_OWN_LOADER = Workload("fsdp, loads itself", "train_fsdp.py", ("--workers", "0", *SMALL))
PIPELINE = Workload("pipeline", "train_pipeline.py", ("--workers", "1", "--layers", "4"))
MOE = Workload("moe", "train_moe.py", ("--workers", "1", *SMALL))
# The expert has more of a step, as in models that are made of them.
MOE_SHALLOW = Workload(
    "moe, one layer and large experts",
    "train_moe.py",
    ("--workers", "1", "--layers", "1", "--expert-ratio", "16"),
)
# Counters are looked at every few seconds: it takes more steps until there is a history of them.
DDP_APART = Workload(
    "ddp, two networks", "train_ddp.py", ("--workers", "1", *SMALL), steps=240, is_apart=True
)
DDP_OF_FOUR = Workload("ddp", "train_ddp.py", ranks=4)
# A step of some 0.1 s on a GPU of 50 TFLOP/s, half of it gloo's.
_FOR_GPU = ("--layers", "4", "--width", "512", "--heads", "8", "--window", "256", "--batch", "64")
DDP_ON_GPU = Workload(
    "ddp, two ranks on one GPU",
    "train_ddp.py",
    ("--share-gpu", "--workers", "1", *_FOR_GPU),
    steps=200,
    is_on_gpu=True,
)
DDP_ON_GPU_OWN_LOADER = Workload(
    "ddp, two ranks on one GPU, load themselves",
    "train_ddp.py",
    ("--share-gpu", "--workers", "0", *_FOR_GPU),
    steps=200,
    is_on_gpu=True,
)
NCCL = Workload(
    "ddp, one rank, NCCL",
    "train_ddp.py",
    ("--workers", "1", *_FOR_GPU),
    ranks=1,
    steps=200,
    is_on_gpu=True,
)
