"""The transformer of `train_ddp.py` with its weights sharded over the ranks: all-gather and reduce-scatter.

    torchrun --nproc-per-node=2 train_fsdp.py --steps 200

Takes the options of `train_ddp.py`; runs unchanged on GPUs with NCCL and on CPUs with gloo.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
import train_ddp  # type: ignore[import-not-found]  # a script in the same folder, not a package
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional


def main() -> None:
    arguments = train_ddp.make_parser().parse_args()
    device, rank, world_size = train_ddp.join_job(arguments)
    data = train_ddp.load_text(arguments, rank, world_size)
    model = train_ddp.Transformer(
        arguments.width, arguments.layers, arguments.heads, arguments.window
    )
    model = model.to(device)
    mesh = init_device_mesh(device.type, (world_size,))
    for layer in model.layers.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    clock = train_ddp.StepClock(arguments.step_log, rank, arguments.steps)
    for step in range(arguments.steps):
        started = time.perf_counter()
        tokens = next(data).to(device)
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.tell(step, started, loss.item())
    clock.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
