"""A small training job over gloo whose loop knows nothing of Rootwalk; one rank has a fault in one step.

    training.py --folder F --steps 400 --step-s 0.2 --fault sleep --fault-rank 1 --fault-step 60

The ranks are started by torchrun or by `launch_ranks.py`. In `F/steps/rankN.jsonl` each rank writes its own steps with
their times, in `F/truth.jsonl` a rank writes down when it begins its fault, before it does.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

WIDTH = 64
BATCH = 8
# Longer than any case: gloo's own time limit must not end a hang.
GLOO_TIMEOUT = timedelta(seconds=1800)


class Diary:
    """What a rank writes down about itself.

    Args:
        folder: Of the run.
        rank: Its number.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._rank = rank
        self._truth = folder / "truth.jsonl"
        (folder / "steps").mkdir(exist_ok=True)
        self._steps = folder / "steps" / f"rank{rank}.jsonl"

    def start(self) -> None:
        """Write that this process has started: step 0."""
        self.step(0)

    def step(self, number: int) -> None:
        """Write that a step has ended."""
        line = {"step": number, "unix_s": time.time(), "pid": os.getpid()}
        with self._steps.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def fault(self, step: int, function: Callable[..., Any]) -> None:
        """Write that a fault begins now, and in which lines of which function."""
        lines, first = inspect.getsourcelines(function)
        truth = {
            "unix_s": time.time(),
            "rank": self._rank,
            "pid": os.getpid(),
            "step": step,
            "function": function.__name__,
            "lines": [first, first + len(lines) - 1],
        }
        with self._truth.open("a", encoding="utf-8") as file:
            file.write(json.dumps(truth) + "\n")


class Plan:
    """Which fault is in this rank, and when it begins.

    Args:
        options: The command line.
        rank: This rank.
        diary: Where the truth is written.
    """

    def __init__(self, options: argparse.Namespace, rank: int, diary: Diary) -> None:
        from gauntlet.live.planted import FAULTS

        self._fault = FAULTS[options.fault] if options.fault else None
        self._settings = dict(word.partition("=")[::2] for word in options.setting)
        self._is_here = rank in options.fault_ranks or not options.fault_ranks
        self._step = options.fault_step
        self._diary = diary

    def begin(self, stage: str, step: int) -> None:
        """Do the fault if it belongs to this stage and step of this rank.

        Args:
            stage: `start`, `initialised`, `step` or `left`.
            step: Number of the step that has begun; 0 before the first.
        """
        fault = self._fault
        if fault is None or fault.stage != stage:
            return
        if stage == "step" and step != self._step:
            return
        if self._is_here:
            self._diary.fault(step, fault.function)
            fault.function(self._settings)
        elif fault.others is not None:
            fault.others(self._settings)

    def leaves_at(self) -> int | None:
        """Return the step at which this rank has no batch any more; None where it has all of them."""
        is_left = self._fault is not None and self._fault.stage == "left"
        return self._step if is_left and self._is_here else None

    def use_groups(self) -> None:
        """Make the groups that the fault needs, on every rank, as a job does before its first step."""
        if self._fault is not None and self._fault.groups is not None:
            self._fault.groups()


def load_batches(steps: int, step_s: float, last: int | None) -> Iterator[Any]:
    """Yield a batch a step, after the time that a loader takes.

    Args:
        steps: How many batches there are.
        step_s: Time of one, s.
        last: The step at which this rank has run out of them; None for none.
    """
    import torch

    for step in range(1, steps + 1):
        if step == last:
            return
        time.sleep(step_s)
        yield torch.randn(BATCH, WIDTH)


def train_ddp(options: argparse.Namespace, plan: Plan, diary: Diary) -> None:
    """Train with DistributedDataParallel."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = load_batches(options.steps, options.step_s, plan.leaves_at())
    for step, batch in enumerate(batches, 1):
        plan.begin("step", step)
        loss = model(batch).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        diary.step(step)


def train_by_hand(options: argparse.Namespace, plan: Plan, diary: Diary) -> None:
    """Train with an all_reduce of each gradient that the loop itself calls."""
    import torch
    import torch.distributed as dist

    model = torch.nn.Linear(WIDTH, WIDTH)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = load_batches(options.steps, options.step_s, plan.leaves_at())
    for step, batch in enumerate(batches, 1):
        plan.begin("step", step)
        model(batch).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimiser.step()
        optimiser.zero_grad()
        diary.step(step)


def read_options() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--step-s", type=float, default=0.2)
    parser.add_argument("--loop", choices=["ddp", "by_hand"], default="ddp")
    parser.add_argument("--fault", default="")
    parser.add_argument("--fault-ranks", type=int, nargs="*", default=[], help="none: every rank")
    parser.add_argument("--fault-step", type=int, default=60)
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args()


def main() -> None:
    """Train until all steps are done or the fault ends it."""
    options = read_options()
    os.dup2(2, 1)  # standard output is Rootwalk's alone, so that its first line can be read
    rank = int(os.environ["RANK"])
    diary = Diary(options.folder, rank)
    plan = Plan(options, rank, diary)
    diary.start()
    plan.begin("start", 0)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", timeout=GLOO_TIMEOUT)
    plan.use_groups()
    plan.begin("initialised", 0)
    {"ddp": train_ddp, "by_hand": train_by_hand}[options.loop](options, plan, diary)
    plan.begin("left", options.fault_step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
