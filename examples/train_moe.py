"""A mixture of experts, one expert a rank: a router sends each token to its expert's rank and back (all-to-all).

    torchrun --nproc-per-node=2 train_moe.py --steps 200

Takes the options of `train_ddp.py`. What is not an expert is the same on all ranks; its gradients are averaged.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
import train_ddp  # type: ignore[import-not-found]  # a script in the same folder, not a package
from torch import Tensor, nn
from torch.nn import functional

# Rounds of evening out the experts' shares: one is exact for two experts.
EVEN_ROUNDS = 3


class Exchange(torch.autograd.Function):
    """All-to-all of rows; backwards the same the other way round."""

    @staticmethod
    def forward(context: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send `sent[r]` rows to rank r; return `received[r]` rows from each."""
        context.sent, context.received = sent, received
        result = rows.new_empty((sum(received), rows.shape[1]))
        dist.all_to_all_single(result, rows.contiguous(), received, sent)
        return result

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Send the gradients back to where the rows came from."""
        result = gradients[0].new_empty((sum(context.sent), gradients[0].shape[1]))
        dist.all_to_all_single(result, gradients[0].contiguous(), context.sent, context.received)
        return result, None, None


class Experts(nn.Module):
    """A layer of which every rank has one expert.

    Args:
        width: Of a token, in and out.
        world_size: Ranks, and so experts.
        ratio: Inner width of an expert, in widths of a token.
    """

    def __init__(self, width: int, world_size: int, ratio: int) -> None:
        super().__init__()
        self.world_size = world_size
        self.router = nn.Linear(width, world_size)
        self.expert = nn.Sequential(
            nn.Linear(width, ratio * width),
            nn.GELU(),
            nn.Linear(ratio * width, width),
        )

    def route(self, rows: Tensor) -> Tensor:
        """Return each token's scores of the experts, (tokens, experts), by which all experts get as many.

        A router that only learns may send everything to one expert within ten steps. Each expert's scores are moved,
        one expert after the other, until its share of the tokens prefers it: balanced assignment, as in BASE layers
        (arXiv:2103.16716), by coordinates.
        """
        scores: Tensor = self.router(rows)
        shift = torch.zeros_like(scores[0])
        experts = [*range(self.world_size)] * EVEN_ROUNDS if self.world_size > 1 else []
        with torch.no_grad():
            for expert in experts:
                moved = scores + shift
                own = moved[:, expert].clone()
                moved[:, expert] = -torch.inf
                shift[expert] -= (own - moved.amax(-1)).quantile(1 - 1 / self.world_size)
        return scores + shift

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.flatten(0, -2)
        chances = self.route(rows).softmax(-1)
        weight, chosen = chances.max(-1)
        order = chosen.argsort(stable=True)
        sent = torch.bincount(chosen, minlength=self.world_size)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        there, back = sent.tolist(), received.tolist()
        at_expert = Exchange.apply(rows[order], there, back)
        returned = Exchange.apply(self.expert(at_expert), back, there)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        return hidden + (returned[place] * weight[:, None]).view_as(hidden)


class MixtureTransformer(train_ddp.Transformer):
    """The same transformer with a layer of experts before its head."""

    def __init__(self, world_size: int, expert_ratio: int, width: int, *shape: int) -> None:
        super().__init__(width, *shape)
        self.experts = Experts(width, world_size, expert_ratio)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions
        hidden = self.layers(hidden, mask=self.mask, is_causal=True)
        logits: Tensor = self.head(self.experts(hidden))
        return logits


def average_gradients(model: MixtureTransformer, world_size: int) -> None:
    """Average the gradients of everything but the experts, in one all-reduce."""
    own = {id(parameter) for parameter in model.experts.expert.parameters()}
    shared = [p.grad for p in model.parameters() if id(p) not in own and p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in shared])
    dist.all_reduce(flat)
    for gradient, mean in zip(
        shared, flat.div_(world_size).split([g.numel() for g in shared]), strict=True
    ):
        gradient.copy_(mean.view_as(gradient))


def main() -> None:
    parser = train_ddp.make_parser()
    parser.add_argument(
        "--expert-ratio",
        type=int,
        default=8,
        help="inner width of an expert, in widths of the model: most of a step is work of experts",
    )
    arguments = parser.parse_args()
    device, rank, world_size = train_ddp.join_job(arguments)
    data = train_ddp.load_text(arguments, rank, world_size)
    shape = (arguments.width, arguments.layers, arguments.heads, arguments.window)
    model = MixtureTransformer(world_size, arguments.expert_ratio, *shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    clock = train_ddp.StepClock(arguments.step_log, rank, arguments.steps)
    for step in range(arguments.steps):
        started = time.perf_counter()
        tokens = next(data).to(device)
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, world_size)
        optimizer.step()
        clock.tell(step, started, loss.item())
    clock.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
