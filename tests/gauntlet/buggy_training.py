"""A script of `examples/` with a bug on some ranks, which is there while a file exists.

    torchrun buggy_training.py --script train_ddp.py --bug work --bug-ranks 1 --bug-file F --bug-log FOLDER -- OPTIONS

The script runs unchanged but for its model and its data set, which do what a bug does as well; other ranks run
nothing else. Each time that the bug did something, it writes down for how long by a clock of its own.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import rootwalk.examples

EXAMPLES = Path(next(iter(rootwalk.examples.__path__))).resolve()
sys.path[:0] = [str(EXAMPLES), str(Path(__file__).resolve().parents[1])]

from gauntlet.bugs import BUGS, Bug  # noqa: E402  (after the path)
from gauntlet.device_bugs import DEVICE_BUGS  # noqa: E402  (after the path)

ALL_BUGS = BUGS | DEVICE_BUGS

# Models of scripts that run another forward pass than the one that most have.
OWN_MODELS = ("Stage", "MixtureTransformer")


class BugLog:
    """The bug's own clock: for how long it did what it does, a line each time; also from loader processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, seconds: float) -> None:
        """Add one entry."""
        entry = json.dumps({"unix_s": time.time(), "seconds": seconds, "pid": os.getpid()})
        with (self._folder / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as log:
            log.write(entry + "\n")


def plant(bug: Bug, module: Any, script: Any, file: Path, log: BugLog) -> None:
    """Let a script's model, data set and clock do what the bug does, timed, while the file exists, or all the time.

    Args:
        bug: The bug.
        module: Has the model of most scripts, the data set and the clock.
        script: Has what of a model is its own: a stage, experts.
        file: The bug is on while it exists.
        log: Its clock.
    """

    def timed(work: Any, *arguments: Any) -> None:
        began_s = time.perf_counter()
        if work(*arguments):
            log.write(time.perf_counter() - began_s)

    get_item, tell = module.SourceText.__getitem__, module.StepClock.tell

    def plant_forward(owner: Any) -> None:
        forward = owner.forward

        @functools.wraps(forward)
        def buggy_forward(model: Any, tokens: Any, *rest: Any) -> Any:
            if bug.is_usual or file.exists():
                timed(bug.in_forward, model, tokens)
            return forward(model, tokens, *rest)

        owner.forward = buggy_forward

    def plant_router(owner: Any) -> None:
        route = owner.route

        @functools.wraps(route)
        def buggy_route(experts: Any, rows: Any) -> Any:
            scores = route(experts, rows)
            began_s = time.perf_counter()
            is_on = file.exists()
            changed = bug.in_router(scores) if is_on or bug.is_usual else None
            if changed is not None and is_on:
                log.write(time.perf_counter() - began_s)
            return scores if changed is None else changed

        owner.route = buggy_route

    @functools.wraps(get_item)
    def buggy_get_item(data: Any, index: int) -> Any:
        if file.exists():
            timed(bug.in_data, index)
        return get_item(data, index)

    @functools.wraps(tell)
    def buggy_tell(clock: Any, *arguments: Any) -> None:
        if file.exists():
            timed(bug.after_step)
        bug.step += 1
        tell(clock, *arguments)

    choose_device = module.choose_device

    @functools.wraps(choose_device)
    def buggy_choose_device(*arguments: Any, **options: Any) -> Any:
        device, backend = choose_device(*arguments, **options)
        return device, bug.backend or backend

    module.choose_device = buggy_choose_device
    module.StepClock.tell = buggy_tell
    for model in (module.Transformer, *(vars(script).get(name) for name in OWN_MODELS)):
        if model is not None:
            plant_forward(model)
    if hasattr(script, "Experts"):
        plant_router(script.Experts)
    module.SourceText.__getitem__ = buggy_get_item


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--script", required=True, help="file in examples/")
    parser.add_argument("--bug", choices=ALL_BUGS, required=True)
    parser.add_argument("--bug-ranks", required=True, help="ranks that have it: 1, or 0,1")
    parser.add_argument("--bug-file", type=Path, required=True, help="it is there while this is")
    parser.add_argument("--bug-log", type=Path, required=True, help="folder for its own clock")
    parser.add_argument("--bug-with", action="append", default=[], metavar="KEY=VALUE")
    arguments, rest = parser.parse_known_args()
    module = importlib.import_module(arguments.script.removesuffix(".py"))
    rank = int(os.environ.get("RANK", "0"))
    if str(rank) in arguments.bug_ranks.split(","):
        settings = dict(word.split("=", 1) for word in arguments.bug_with)
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        bug = ALL_BUGS[arguments.bug](rank, world_size, settings, arguments.bug_file)
        # What others import it from is the module that has it.
        owner = importlib.import_module("train_ddp")
        plant(bug, owner, module, arguments.bug_file, BugLog(arguments.bug_log))
    sys.argv = [arguments.script, *[word for word in rest if word != "--"]]
    module.main()


if __name__ == "__main__":
    main()
