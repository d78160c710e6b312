"""A process that makes known numbers of PyTorch's calls of CUDA, each time a line comes, and says `done`."""

from __future__ import annotations

import sys
from typing import Any

# Each a prime number, so that no sum of others is one of them by chance.
LAUNCHES, COPIES, READS, WAITS, PRODUCTS, ALLOCATIONS = 997, 499, 53, 101, 211, 23
SIZE, ALLOCATED = 4099 * 4, 64 << 20


def turn(torch: Any, host: Any, device: Any, left: Any) -> None:
    """Make them."""
    for _ in range(LAUNCHES):
        device.add_(1.0)
    for _ in range(COPIES):
        device.copy_(host, non_blocking=True)
    for _ in range(READS):
        device[0].item()
    for _ in range(PRODUCTS):
        left.mm(left)
    for _ in range(WAITS):
        torch.cuda.synchronize()
    for _ in range(ALLOCATIONS):
        torch.empty(ALLOCATED, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()


def main() -> None:
    """Load all that is needed once, then answer."""
    import torch

    host = torch.zeros(SIZE // 4).pin_memory()
    device, left = host.cuda(), torch.randn(256, 256, device="cuda")
    turn(torch, host, device, left)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        turn(torch, host, device, left)
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
