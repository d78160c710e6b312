"""Work that takes long and is no hang: a compilation, a checkpoint, an evaluation, a download."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

Settings = Mapping[str, str]
CHUNK_BYTES = 500_000
# Between two chunks of a checkpoint: a store that takes 2.5 MB in a second.
CHUNK_PAUSE_S = 0.2
BATCH_PAUSE_S = 0.02


def compile_model(settings: Settings) -> None:
    """Compile one module after the other with torch.compile until the time is over."""
    import torch

    end_s = time.monotonic() + float(settings["seconds"])
    width = 32
    while time.monotonic() < end_s:
        width += 1
        layers = [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width)]
        torch.compile(torch.nn.Sequential(*layers), dynamic=False)(torch.randn(4, width))


def save_checkpoint(settings: Settings) -> None:
    """Write a file that grows at the rate of a slow store."""
    end_s = time.monotonic() + float(settings["seconds"])
    path = Path(settings["folder"]) / f"checkpoint-rank{os.environ['RANK']}.pt"
    with path.open("wb") as file:
        while time.monotonic() < end_s:
            file.write(os.urandom(CHUNK_BYTES))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(CHUNK_PAUSE_S)


def evaluate(settings: Settings) -> None:
    """Run a model over many batches without a gradient."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    end_s = time.monotonic() + float(settings["seconds"])
    total = 0.0
    with torch.no_grad():
        while time.monotonic() < end_s:
            time.sleep(BATCH_PAUSE_S)
            total += float(model(torch.randn(64, 64)).square().mean())


def download_data(settings: Settings) -> None:
    """Download a data set from a server that is slow."""
    path = Path(settings["folder"]) / f"data-rank{os.environ['RANK']}.bin"
    with urllib.request.urlopen(settings["url"]) as answer, path.open("wb") as file:  # noqa: S310  (our own server)
        while chunk := answer.read(16_384):
            file.write(chunk)


def meet(_: Settings) -> None:
    """Wait for all ranks."""
    import torch.distributed as dist

    dist.barrier()


def download_before_meeting(settings: Settings) -> None:
    """Download a data set on one rank, and meet the others, which wait in a barrier."""
    download_data(settings)
    meet(settings)


# Name: what is done, and at which stage.
LASTING: dict[str, tuple[Callable[[Settings], None], str]] = {
    "compile": (compile_model, "step"),
    "checkpoint": (save_checkpoint, "step"),
    "evaluation": (evaluate, "step"),
    "download": (download_data, "start"),
}
