"""A small training job over gloo that loses a part of its time on one rank, from a step on, every so many steps.

    training.py --folder F --shape ddp --step-s 0.04 --steps 200 --fault stop --share 0.1 --period 12 --onset 0

The fault takes place inside the job, which knows nothing of Rootwalk; a process on a rank's core (`hog`) is started by
who runs the job. In `F/rankN.jsonl` each rank writes how long its
steps took. A step computes as many products of matrices on every rank as took the first rank that long at the start.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH = 96
BATCH = 8
SHAPES = ("ddp", "by_hand", "two_optimizers", "accumulate", "evaluate", "lengths")
FAULTS = ("none", "work", "sleep", "stop", "hog", "collect", "load")
# Part of a step that is spent computing; the rest is what the framework and the collectives take.
COMPUTING = 0.8


def product(count: int) -> None:
    """Compute so many products of matrices."""
    a = torch.full((WIDTH, WIDTH), 0.5)
    for _ in range(count):
        torch.mm(a, a)


def count_products(seconds: float) -> int:
    """Return how many products take so long: the same number on every rank."""
    product(200)
    best_s = float("inf")
    for _ in range(5):
        began_s = time.perf_counter()
        product(200)
        best_s = min(best_s, time.perf_counter() - began_s)
    told = torch.tensor([max(round(200 * seconds / best_s), 1)])
    dist.broadcast(told, 0)
    return int(told.item())


class Batches(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Samples, one batch a step; every one takes its worker some time.

    Args:
        count: Of steps.
        seconds: What a worker waits for a batch.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self._count, self._seconds = count, seconds

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return torch.full((BATCH, WIDTH), float(index % 7))


class Fault:
    """What one rank loses.

    Args:
        options: The command line.
        rank: Of this process.
    """

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        self._options, self._rank = options, rank
        share = options.share
        self.extra_s = share / (1.0 - share) * options.step_s * options.period
        # A process on the rank's core, and slow workers, are not the rank's own.
        outside = ("none", "load", "hog")
        self._is_mine = rank == options.fault_rank and options.fault not in outside
        self._pipe: Any = None
        self._garbage: list[list[int]] = []
        self._products = count_products(self.extra_s)  # a collective: on every rank
        if self._is_mine and options.fault == "stop":
            self._pipe = self._start_stopper()
        if self._is_mine and options.fault == "collect":
            self._fill()

    def _fill(self) -> None:
        gc.disable()
        self._garbage = [[index] for index in range(100_000)]
        began_s = time.perf_counter()
        gc.collect()
        each_s = (time.perf_counter() - began_s) / 100_000
        self._garbage += [[i] for i in range(max(round(self.extra_s / each_s) - 100_000, 0))]

    def _start_stopper(self) -> int:
        """Start a process that stops this one for a while for each byte that it is sent."""
        reading, writing = os.pipe()
        parent = os.getpid()
        if os.fork() == 0:
            os.close(writing)
            while os.read(reading, 1):
                os.kill(parent, signal.SIGSTOP)
                time.sleep(self.extra_s)
                os.kill(parent, signal.SIGCONT)
            os._exit(0)
        os.close(reading)
        return writing

    def strike(self, step: int) -> None:
        """Lose this step's part of the time."""
        options = self._options
        if not self._is_mine or step < options.onset:
            return
        if (step - options.onset) % options.period:
            return
        if options.fault == "work":
            product(self._products)
        elif options.fault == "sleep":
            time.sleep(self.extra_s)
        elif options.fault == "stop":
            os.write(self._pipe, b"x")
            product(max(self._products // 50, 1))
        elif options.fault == "collect":
            gc.collect()


def make_batches(options: argparse.Namespace) -> Iterator[torch.Tensor]:
    """Return the batches, one a step."""
    if options.fault == "load":
        # The workers together make a batch as often as the part that is lost says.
        seconds = options.step_s / (1.0 - options.share) * 2
        return iter(DataLoader(Batches(options.steps, seconds), batch_size=None, num_workers=2))
    return iter(DataLoader(Batches(options.steps, 0.0), batch_size=None))


def train(options: argparse.Namespace) -> None:
    """Run the loop."""
    rank = dist.get_rank()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    products = count_products(options.step_s * COMPUTING)
    fault = Fault(options, rank)
    torch.manual_seed(rank)
    model: nn.Module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    if options.shape != "by_hand":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    other = nn.Linear(WIDTH, 1)
    others = torch.optim.SGD(other.parameters(), lr=1e-3)
    log = Path(options.folder) / f"rank{rank}.jsonl"
    batches, times = make_batches(options), []
    with log.open("w", encoding="utf-8", buffering=1) as file:
        for step in range(options.steps):
            began_s = time.perf_counter()
            batch = next(batches)
            length = 1 + step % 4 if options.shape == "lengths" else 2
            pieces = 4 if options.shape == "accumulate" else 1
            for piece in range(pieces):
                product(products * length // (2 * pieces))
                if piece == 0:
                    fault.strike(step)
                loss = model(batch).square().mean()
                if piece < pieces - 1:
                    with model.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            if options.shape == "by_hand":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            if options.shape == "two_optimizers":
                other(batch).square().mean().backward()
                for parameter in other.parameters():
                    dist.all_reduce(parameter.grad)
                others.step()
                others.zero_grad()
            if options.shape == "evaluate" and step % 40 == 39:
                model.eval()
                with torch.no_grad():
                    model(batch)
                    product(products // 2)
                model.train()
                dist.barrier()
            times.append(time.perf_counter() - began_s)
            file.write(json.dumps({"step": step, "seconds": times[-1]}) + "\n")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True)
    parser.add_argument("--shape", choices=SHAPES, default="ddp")
    parser.add_argument("--step-s", type=float, default=0.07)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--fault-rank", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.1, help="part of the time that is lost")
    parser.add_argument("--period", type=int, default=1)
    parser.add_argument("--onset", type=int, default=0)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
