"""The gauntlet's stand-in of NCCL: what it says that it sends over, and that a reduction takes its time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch", exc_type=ImportError)

from gauntlet.case import NO_RANK
from gauntlet.device_cases import DEVICE_CASES
from gauntlet.faults.transport import COLLECTIVE_S, Transport
from rootwalk.ebpf.nccl_messages import find_transport
from rootwalk.graph.commands.demo_faults import Target
from support.cuda_standin import build_standins, has_compiler

TESTS = Path(__file__).resolve().parents[1]
# One rank reduces; the stand-in takes it for one of four. A line that comes in is the word to make it anew.
RANK = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from gauntlet.stand_in_nccl import StandInNccl, register_backend
nccl = StandInNccl(Path(sys.argv[1]), Path(sys.argv[2]), 2, 4)
dist.init_process_group(register_backend(nccl), store=dist.HashStore(), rank=0, world_size=1)
for _ in range(2):
    began_s = time.monotonic()
    ones = torch.ones(8)
    dist.all_reduce(ones)
    print(time.monotonic() - began_s, float(ones.sum()), flush=True)
    sys.stdin.readline()
    nccl.make_anew()
dist.destroy_process_group()
"""


def play(fault: Transport, folder: Path) -> tuple[list[float], Counter[str | None]]:
    """Return how long a rank's reduction takes before and after, and the ways of the file that it leaves."""
    fault.prepare(2, folder)
    libraries, scenario = build_standins(), folder / "nccl-played.2"
    with subprocess.Popen(
        [sys.executable, "-c", RANK, str(libraries), str(scenario)],
        env=os.environ | {"PYTHONPATH": str(TESTS)} | fault.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        lines = [rank.stdout.readline()]
        fault.start(Target(2, rank.pid, 0))
        rank.stdin.write("\n")
        rank.stdin.flush()
        lines.append(rank.stdout.readline())
        rank.stdin.close()
        assert rank.wait(60) == 0
    assert [line.split()[1] for line in lines] == ["8.0", "8.0"]
    text = "".join(log.read_text("utf-8") for log in folder.glob(f"nccl.*.{rank.pid}"))
    return [float(line.split()[0]) for line in lines], Counter(
        map(find_transport, text.splitlines())
    )


@pytest.mark.skipif(not has_compiler(), reason="needs a C compiler")
@pytest.mark.parametrize(
    ("fault", "ways"),
    [
        (Transport(transfers=10.0), {"NET/IB": 2, "NET/Socket": 4}),
        (Transport(transfers=10.0, sockets=False), {"NET/IB": 6}),
        (Transport(transfers=10.0, log=False), {}),
    ],
    ids=["falls back", "stays", "writes nothing"],
)
def test_nccl_tells_its_ways_as_the_real_one_does_and_takes_its_time(
    fault: Transport, ways: dict[str, int], tmp_path: Path
) -> None:
    (before_s, after_s), found = play(fault, tmp_path)
    assert {way: count for way, count in found.items() if way} == ways
    assert before_s >= COLLECTIVE_S
    assert after_s >= 10.0 * COLLECTIVE_S


def test_only_the_case_in_which_nccl_says_so_and_transfers_are_slow_is_the_fallback() -> None:
    cases = {name: case for name, case in DEVICE_CASES.items() if "transport" in name}
    named = {name for name, case in cases.items() if "TRANSPORT_FALLBACK" in case.truth.reasons}
    assert named == {"device_transport"}
    others = cases.keys() - named
    assert all(cases[name].looks_like == "TRANSPORT_FALLBACK" for name in others)
    for name in ("device_transport_silent", "device_transport_unlogged"):
        assert (cases[name].truth.who, cases[name].truth.reasons) == (NO_RANK, ("UNKNOWN_NET",))
