"""A transformer cut into a stage a rank: activations go forward, gradients back, as messages between neighbours.

    torchrun --nproc-per-node=2 train_pipeline.py --steps 200 --layers 4

Takes the options of `train_ddp.py`; `--layers` are shared out evenly. A batch is cut into `MICRO_BATCHES`; all go
forward through a stage, then all go back (GPipe).
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
import train_ddp  # type: ignore[import-not-found]  # a script in the same folder, not a package
from torch import Tensor, nn
from torch.nn import functional

MICRO_BATCHES = 3


class Stage(nn.Module):
    """One stage: the first knows the tokens, the last gives the logits."""

    def __init__(self, model: nn.Module, first: int, last: int, *, is_end: bool) -> None:
        super().__init__()
        self.model = model
        self.is_start, self.is_end = first == 0, is_end
        self.part = nn.ModuleList(list(model.layers.layers)[first:last])

    def forward(self, values: Tensor) -> Tensor:
        if self.is_start:
            values = self.model.tokens(values) + self.model.positions
        for layer in self.part:
            values = layer(values, src_mask=self.model.mask, is_causal=True)
        if self.is_end:
            logits: Tensor = self.model.head(values)
            return logits
        return values


def train_step(stage: Stage, tokens: Tensor, rank: int, shape: tuple[int, ...]) -> Tensor:
    """Run one batch through this stage and back; return its loss, which the last stage knows."""
    kept = []
    loss = torch.zeros(())
    for part in tokens.chunk(MICRO_BATCHES):
        if stage.is_start:
            values = part[:, :-1]
        else:
            values = torch.empty((len(part), *shape), device=tokens.device)
            dist.recv(values, rank - 1)
            values.requires_grad_()
        result = stage(values)
        if stage.is_end:
            flat = result.flatten(0, 1)
            result = functional.cross_entropy(flat, part[:, 1:].flatten()) / MICRO_BATCHES
            loss = loss + result.detach()
        else:
            dist.send(result.detach(), rank + 1)
        kept.append((values, result))
    for values, result in reversed(kept):
        if stage.is_end:
            result.backward()
        else:
            gradient = torch.empty_like(result)
            dist.recv(gradient, rank + 1)
            result.backward(gradient)
        if not stage.is_start:
            dist.send(values.grad, rank - 1)
    return loss


def main() -> None:
    arguments = train_ddp.make_parser().parse_args()
    device, rank, world_size = train_ddp.join_job(arguments)
    data = train_ddp.load_text(arguments, 0, 1)  # every stage sees the same text
    model = train_ddp.Transformer(
        arguments.width, arguments.layers, arguments.heads, arguments.window
    )
    model = model.to(device)
    first, last = (arguments.layers * (rank + n) // world_size for n in (0, 1))
    stage = Stage(model, first, last, is_end=rank == world_size - 1)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=arguments.learning_rate)
    clock = train_ddp.StepClock(arguments.step_log, rank, arguments.steps, teller=world_size - 1)
    shape = (arguments.window, arguments.width)
    for step in range(arguments.steps):
        started = time.perf_counter()
        tokens = next(data).to(device)
        optimizer.zero_grad()
        loss = train_step(stage, tokens, rank, shape)
        optimizer.step()
        clock.tell(step, started, loss.item())
    clock.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
