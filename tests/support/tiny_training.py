"""A script as users have them: two ranks under DDP on gloo, steps of about 20 ms, and a log of its finished steps.

    tiny_training.py FOLDER [--steps N] [--device-s S] [--spawn fork|spawn] [--deaf]

Rank and world size come from whatever launcher there is, or from `torch.multiprocessing`. Files in FOLDER make things
happen in rank 1, at the end of a step: `crash.ATTEMPT` raises, `grow.ATTEMPT` takes memory without end; while `late`
is there, each of its steps is 100 ms late.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2
# Stands for the part of a step in which a device works and the process waits.
DEVICE_S = 0.012
LATE_S = 0.1
GROWTH_BYTES = 16_000_000
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="step logs, rendezvous, and what is to happen")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--device-s", type=float, default=DEVICE_S, help="waiting in each step")
    parser.add_argument("--spawn", choices=("fork", "spawn"))
    parser.add_argument("--deaf", action="store_true", help="ignore Ctrl-C")
    return parser.parse_args()


def find_place() -> tuple[int, int]:
    """Return rank and world size as the launcher tells them."""
    for rank, size in LAUNCHERS:
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    raise SystemExit("no launcher")


def train(rank: int, size: int, arguments: argparse.Namespace) -> None:
    folder: Path = arguments.folder
    if arguments.deaf:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    # In torchrun's own store, ranks that start again may find the addresses of those that have ended (PyTorch 2.15).
    meeting = f"file://{folder.absolute()}/rendezvous.{attempt}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hoard: list[bytearray] = []
    with (folder / f"rank{rank}.{attempt}.jsonl").open("w", buffering=1) as log:
        for step in range(arguments.steps):
            loss = model(torch.ones(8, 64)).square().mean()
            time.sleep(arguments.device_s)
            if rank == 1 and (folder / "late").exists():
                time.sleep(LATE_S)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            write_step(log, rank, attempt, step)
            if rank == 1:
                obey(folder, attempt, hoard)
    dist.destroy_process_group()


def write_step(log: TextIO, rank: int, attempt: int, step: int) -> None:
    entry = {"rank": rank, "attempt": attempt, "step": step, "pid": os.getpid()}
    log.write(json.dumps(entry) + "\n")


def obey(folder: Path, attempt: int, hoard: list[bytearray]) -> None:
    if (folder / f"crash.{attempt}").exists():
        raise RuntimeError("planted: this rank fails")
    while (folder / f"grow.{attempt}").exists():
        hoard.append(bytearray(os.urandom(GROWTH_BYTES)))


def main() -> None:
    arguments = parse_arguments()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.spawn is None:
        train(*find_place(), arguments)
        return
    from torch import multiprocessing

    multiprocessing.start_processes(
        train, args=(RANKS, arguments), nprocs=RANKS, start_method=arguments.spawn
    )


if __name__ == "__main__":
    main()
