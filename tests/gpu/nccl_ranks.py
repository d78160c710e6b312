"""Ranks with NCCL that share the first GPU: each takes itself for a host of its own, so they talk over TCP.

    torchrun --nproc-per-node=2 nccl_ranks.py --steps 300 --late-rank 1 --late-from 160 --dumps FOLDER

NCCL refuses two ranks of a host on one GPU, and tells hosts by `NCCL_HOSTID`. Every rank writes its Flight Recorder
dumps at its end, one for each ring that has entries.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rootwalk.instrumentation.flight_times import RINGS

WIDTH, BATCH = 2048, 512


def main() -> None:
    """Train a little, late on one rank from some step on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--late-rank", type=int, default=-1)
    parser.add_argument("--late-from", type=int, default=0)
    parser.add_argument("--late-s", type=float, default=0.03)
    parser.add_argument("--dumps", type=Path, required=True)
    arguments = parser.parse_args()
    os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2)]
    model = DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(arguments.steps):
        begun_s = time.perf_counter()
        if rank == arguments.late_rank and step >= arguments.late_from:
            while time.perf_counter() < begun_s + arguments.late_s:
                sum(range(1000))
        loss = model(torch.randn(BATCH, WIDTH, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        if rank == 0 and step % 50 == 0:
            sys.stdout.write(f"step {step}  {time.perf_counter() - begun_s:.4f} s\n")
    write_dumps(arguments.dumps, rank)
    dist.destroy_process_group()


def write_dumps(folder: Path, rank: int) -> None:
    """Write what the rings of this rank hold, `nccl_<ring>_rank<N>.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    # `nccl2` still had its last operations as scheduled half a second after they had ended.
    time.sleep(3.0)
    functions = torch._C._distributed_c10d
    dumps = {"legacy": functions._dump_nccl_trace_json(True, False)}
    dumps |= {ring: functions._dump_fr_trace_json(True, False, ring) for ring in RINGS}
    for ring, dump in dumps.items():
        if json.loads(dump).get("entries"):
            (folder / f"nccl_{ring}_rank{rank}.json").write_bytes(dump)


if __name__ == "__main__":
    main()
