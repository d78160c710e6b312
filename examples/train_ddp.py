"""A small transformer trained with DistributedDataParallel on real text: the Python standard library's own source.

    torchrun --nproc-per-node=2 train_ddp.py --steps 200

Runs unchanged on GPUs with NCCL and on CPUs with gloo. Every rank can log its own step clock (--step-log FOLDER).
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCABULARY_SIZE = 256  # bytes


class SourceText(Dataset[Tensor]):
    """Windows of bytes from the standard library's modules, cut where the loader asks for them."""

    def __init__(self, window_bytes: int, limit_bytes: int = 4_000_000) -> None:
        folder = Path(sysconfig.get_path("stdlib"))
        text = bytearray()
        for path in sorted(folder.glob("*.py")):
            text += path.read_bytes()
            if len(text) >= limit_bytes:
                break
        self._text = bytes(text)
        self._window_bytes = window_bytes

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._window_bytes

    def __getitem__(self, index: int) -> Tensor:
        start = index * self._window_bytes
        return torch.tensor(list(self._text[start : start + self._window_bytes + 1]))


class Transformer(nn.Module):
    """A causal language model over bytes."""

    def __init__(self, width: int, layers: int, heads: int, window: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY_SIZE, width)
        self.positions = nn.Parameter(torch.zeros(window, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY_SIZE)
        mask = nn.Transformer.generate_square_subsequent_mask(window)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions
        hidden = self.layers(hidden, mask=self.mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=100, help="optimiser updates")
    parser.add_argument("--batch", type=int, default=6, help="sequences a rank and step")
    parser.add_argument("--window", type=int, default=128, help="bytes a sequence")
    parser.add_argument("--width", type=int, default=256, help="model width")
    parser.add_argument("--layers", type=int, default=4, help="transformer layers")
    parser.add_argument("--heads", type=int, default=4, help="attention heads")
    parser.add_argument("--workers", type=int, default=1, help="loader processes a rank")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--step-log", type=Path, help="folder for each rank's step log (JSON lines)"
    )
    parser.add_argument(
        "--bind-cores", action="store_true", help="give each rank a core of its own"
    )
    parser.add_argument(
        "--share-gpu", action="store_true", help="all ranks on the first GPU, with gloo"
    )
    return parser


def choose_device(
    local_rank: int, *, bind_cores: bool, share_gpu: bool = False
) -> tuple[torch.device, str]:
    """Return the device and the process group backend for this rank."""
    if bind_cores:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[local_rank % len(cores)]})
    if share_gpu:
        return torch.device("cuda", 0), "gloo"
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.device_count() >= ranks_here:
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank), "nccl"
    torch.set_num_threads(1)
    return torch.device("cpu"), "gloo"


def batches(loader: DataLoader[Tensor], sampler: DistributedSampler[Tensor]) -> Iterator[Tensor]:
    """Yield batches for ever, in another order each epoch."""
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def join_job(arguments: argparse.Namespace) -> tuple[torch.device, int, int]:
    """Start this rank; return (its device, its rank, the number of ranks)."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device, backend = choose_device(
        local_rank, bind_cores=arguments.bind_cores, share_gpu=arguments.share_gpu
    )
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:  # started without a launcher: a world of one
        dist.init_process_group(backend, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    torch.manual_seed(arguments.seed)
    return device, dist.get_rank(), dist.get_world_size()


def load_text(arguments: argparse.Namespace, rank: int, world_size: int) -> Iterator[Tensor]:
    """Return the batches of one of so many parts of the text."""
    text = SourceText(arguments.window)
    sampler: DistributedSampler[Tensor] = DistributedSampler(text, world_size, rank)
    loader = DataLoader(
        text,
        batch_size=arguments.batch,
        sampler=sampler,
        num_workers=arguments.workers,
        persistent_workers=arguments.workers > 0,
        drop_last=True,
    )
    return batches(loader, sampler)


class StepClock:
    """Writes this rank's own step times down, and tells the loss now and then.

    Args:
        folder: For `rank<N>.jsonl`, a line a step; None writes none.
        rank: This rank.
        steps: Of the whole training.
        teller: The rank that knows the loss.
    """

    def __init__(self, folder: Path | None, rank: int, steps: int, teller: int = 0) -> None:
        self._is_teller, self._steps = rank == teller, steps
        self._log = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"rank{rank}.jsonl"
            self._log = path.open("w", buffering=1, encoding="utf-8")

    def tell(self, step: int, started: float, loss: float) -> None:
        """Tell of a step that began at `started` by `time.perf_counter` and ends now."""
        seconds = time.perf_counter() - started
        if self._log is not None:
            entry = {"step": step, "seconds": seconds, "unix_s": time.time(), "pid": os.getpid()}
            self._log.write(json.dumps(entry) + "\n")
        if self._is_teller and (step % 20 == 0 or step == self._steps - 1):
            print(f"step {step:5d}  loss {loss:.3f}  {seconds:.3f} s", flush=True)

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()


def main() -> None:
    arguments = make_parser().parse_args()
    device, rank, world_size = join_job(arguments)
    data = load_text(arguments, rank, world_size)
    model = Transformer(arguments.width, arguments.layers, arguments.heads, arguments.window)
    model = model.to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=arguments.learning_rate)
    clock = StepClock(arguments.step_log, rank, arguments.steps)
    for step in range(arguments.steps):
        started = time.perf_counter()
        tokens = next(data).to(device)
        logits = parallel(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.tell(step, started, loss.item())
    clock.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
