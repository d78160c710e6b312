"""Bugs that people ship, on the ranks that have them; each does real work, waits on something real, or holds a lock."""

from __future__ import annotations

import base64
import gc
import os
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import torch
import train_with_bug  # type: ignore[import-not-found]  # a script in examples/, not a package

# Made once a process, of what the example trains on anyway.
SHARD_SOURCE = bytes(range(256)) * 500
PIPE_CHUNK = b"x" * 65536


class Bug:
    """What a rank does besides; each way returns whether it did anything.

    Args:
        rank: This rank.
        world_size: Ranks.
        settings: Of the case.
        file: The bug is on while it exists.

    Attributes:
        backend: What the ranks' collectives go over; None for the script's own choice.
        is_usual: It does that from the start on: what comes with the fault comes from outside.
    """

    backend: str | None = None
    is_usual = False

    def __init__(self, rank: int, world_size: int, settings: dict[str, str], file: Path) -> None:
        self.rank, self.world_size, self.settings, self.file = rank, world_size, settings, file
        self.calls = 0
        # Steps since the start of training, the same on every rank: those who take turns count them.
        self.step = 0
        self.random = random.Random(rank)  # noqa: S311  (steps, not secrets)

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Act before a forward pass."""
        return False

    def in_data(self, index: int) -> bool:
        """Act before a sample is cut; in a loader process, where there is one."""
        return False

    def in_router(self, scores: torch.Tensor) -> torch.Tensor | None:
        """Return other scores of the experts, (tokens, experts), than the router gave; None to leave them."""
        return None

    def after_step(self) -> bool:
        """Act when the weights have been updated, before the script's own clock is read."""
        return False


class Collect(Bug):
    """Keeps many objects and collects garbage by hand.

    `turns=yes`: the ranks take turns, step by step. `chance`: of a collection in a step. `freeze=yes`: all but these
    objects, PyTorch's own above all, are never looked at again.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._records: list[list[Any]] = []
        if "freeze" not in self.settings:
            self._make()

    def _make(self) -> None:
        gc.disable()  # else making them is a thousand collections
        records = int(self.settings.get("records", train_with_bug.RECORDS))
        self._records = [[None] for _ in range(records)]
        gc.enable()

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Collect."""
        if "freeze" in self.settings and not self._records:
            gc.freeze()
            self._make()
        if "turns" in self.settings and self.step % self.world_size != self.rank:
            return False
        chance = float(self.settings.get("chance", train_with_bug.COLLECTION_CHANCE))
        if self.random.random() >= chance:
            return False
        gc.collect()
        return True


class HoldLock(Bug):
    """A thread that computes in Python: it has the interpreter lock whenever the main thread wants it back."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._thread: threading.Thread | None = None

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Start the thread, if it is not there or has ended."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._burn, name="tokenizer", daemon=True)
            self._thread.start()
        return True

    def _burn(self) -> None:
        burn_s, pause_s = (float(self.settings.get(key, "0.02")) for key in ("burn", "pause"))
        while self.file.exists():
            end_s = time.monotonic() + burn_s
            while time.monotonic() < end_s:
                pass
            time.sleep(pause_s)


class Decode(Bug):
    """Unpacks a whole shard in Python for every sample; `bytes`: of a shard."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        size = int(self.settings.get("bytes", train_with_bug.SHARD_BYTES))
        self._shard = base64.b64encode((SHARD_SOURCE * (size // len(SHARD_SOURCE) + 1))[:size])

    def in_data(self, index: int) -> bool:
        """Decode a shard."""
        train_with_bug.decode_sample(self._shard, 0, 128)
        return True


class ReadFile(Bug):
    """Reads a part of a file for every sample; `path`, `bytes` a sample, of the first `within` bytes.

    Nothing of it stays in the page cache, but for `keep=yes`.
    """

    def in_data(self, index: int) -> bool:
        """Read, and let the pages go."""
        size = int(self.settings["bytes"])
        descriptor = os.open(self.settings["path"], os.O_RDONLY)
        try:
            within = int(self.settings.get("within", os.fstat(descriptor).st_size))
            places = max(within // size, 1)
            place = index % places * size
            os.pread(descriptor, size, place)
            if self.settings.get("keep") != "yes":
                os.posix_fadvise(descriptor, place, size, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        return True


class Checkpoint(Bug):
    """Saves `bytes` of weights every `every` steps; on a disk that writes at once it waits for that.

    `path`: each rank that has it writes a file of its own beside that.
    """

    def after_step(self) -> bool:
        """Save."""
        self.calls += 1
        if self.calls % int(self.settings.get("every", "3")):
            return False
        weights = torch.zeros(int(self.settings["bytes"]) // 4)
        torch.save(weights, f"{self.settings['path']}.{self.rank}")
        return True


class Log(Bug):
    """Writes `chunks` of 64 KiB of text to a pipe or socket that somebody reads slowly; `path`, `over`: which."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pipe: int | None = None

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Write."""
        if self._pipe is None:
            self._pipe = self._open()
        for _ in range(int(self.settings.get("chunks", "1"))):
            os.write(self._pipe, PIPE_CHUNK)
        return True

    def _open(self) -> int:
        path = self.settings["path"]
        if self.settings.get("over", "pipe") == "pipe":
            return os.open(path, os.O_WRONLY)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        return connection.detach()


class Ask(Bug):
    """Asks a service and waits for its answer, once a step; `host` and `port`."""

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Ask."""
        address = (self.settings["host"], int(self.settings["port"]))
        with socket.create_connection(address) as connection:
            connection.sendall(b"?")
            connection.recv(1)
        return True


class Work(Bug):
    """Does more: `times` forward passes of the same model without gradients, in `share` of the steps.

    `turns=yes`: the ranks take turns at random; `until=N`: only in the first N calls.
    """

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Compute."""
        if getattr(self, "_inside", False):
            return False
        self.calls += 1
        if self.calls > int(self.settings.get("until", "1000000000")):
            return False
        if "turns" in self.settings:
            chosen = random.Random(self.step).randrange(self.world_size)  # noqa: S311
            if chosen != self.rank:
                return False
        elif self.random.random() >= float(self.settings.get("share", "1")):
            return False
        self._inside = True
        try:
            with torch.no_grad():
                for _ in range(int(self.settings.get("times", "1"))):
                    model.forward(tokens)
        finally:
            self._inside = False
        return True


class Evaluate(Work):
    """An evaluation between two steps, as scripts do it: the model in its other mode, over more batches."""

    _last: tuple[Any, torch.Tensor] | None = None

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Remember what the step trains on."""
        self._last = model, tokens
        return False

    def after_step(self) -> bool:
        """Evaluate."""
        if self._last is None:  # switched on after the forward pass
            return False
        model, tokens = self._last
        model.eval()
        try:
            return super().in_forward(model, tokens)
        finally:
            model.train()


class Compile(Bug):
    """A compiled function that meets a new shape in every step; `same=yes`: always the one that it was compiled for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._compiled: Any = None
        if "same" in self.settings:
            # Before training, so that no compilation is left for a step.
            self._run()

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Compile it again."""
        self.calls += 1
        self._run()
        return True

    def _run(self) -> None:
        if self._compiled is None:
            self._compiled = self._compile()
        self._compiled(torch.ones(2 if "same" in self.settings else self.calls + 1))

    def _compile(self) -> Any:
        from torch import _dynamo

        _dynamo.config.recompile_limit = 1_000_000
        _dynamo.config.accumulated_recompile_limit = 1_000_000

        def blend(values: torch.Tensor) -> torch.Tensor:
            for _ in range(int(self.settings.get("depth", "20"))):
                values = torch.tanh(values) * 0.5 + values.mean()
            return values

        return torch.compile(blend, backend="eager", dynamic=False)


class TouchMemory(Bug):
    """Goes through `part` of `bytes` of memory in every step, a page at a time; `group`: whose limit holds for it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Path(self.settings["group"]).write_text(str(os.getpid()))
        self._memory = torch.zeros(int(self.settings["bytes"]), dtype=torch.uint8)
        self._memory += 1

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Touch."""
        self.calls += 1
        part = int(self.settings.get("part", "16000000"))
        start = self.calls * part % max(len(self._memory) - part, 1)
        self._memory[start : start + part : 4096] += 1
        return True


class WriteMuch(Bug):
    """Writes `part` bytes to a file of `bytes` in every step; what is not on the disk yet counts as its memory.

    `path`: the file. `group`: whose limit holds for it.
    """

    is_usual = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Path(self.settings["group"]).write_text(str(os.getpid()))
        self._block = os.urandom(int(self.settings["part"]))
        self._file = os.open(self.settings["path"], os.O_RDWR | os.O_CREAT)

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Write."""
        places = int(self.settings["bytes"]) // len(self._block)
        os.pwrite(self._file, self._block, self.calls % places * len(self._block))
        self.calls += 1
        return True


class TakeMemory(Bug):
    """A loader worker that keeps `bytes` more with every sample; `group`: whose limit holds for it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._kept: list[bytearray] = []

    def in_data(self, index: int) -> bool:
        """Keep some more."""
        if not self._kept:
            Path(self.settings["group"]).write_text(str(os.getpid()))
        self._kept.append(bytearray(os.urandom(int(self.settings["bytes"]))))
        return True


class Threads(Bug):
    """Computes with more threads than it has cores; `count`."""

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Switch them on, once."""
        if self.calls == 0:
            torch.set_num_threads(int(self.settings.get("count", "16")))
        self.calls += 1
        return True


class Route(Bug):
    """Sends `share` of the tokens to the expert `hot`; without one as many to each from the start on, then others."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_usual = "hot" not in self.settings

    def in_router(self, scores: torch.Tensor) -> torch.Tensor:
        """Choose for it; what it has learned stays as it is, and how much it is worth as well."""
        tokens = torch.arange(len(scores), device=scores.device)
        chosen = (tokens + (self.is_usual and self.file.exists())) % self.world_size
        if "hot" in self.settings:
            chosen[: int(len(scores) * float(self.settings["share"]))] = int(self.settings["hot"])
        raised = torch.zeros_like(scores)
        raised[tokens, chosen] = float(scores.detach().abs().max()) * 2.0 + 1.0
        return scores + raised


BUGS: dict[str, type[Bug]] = {
    "collect": Collect,
    "hold_lock": HoldLock,
    "decode": Decode,
    "read_file": ReadFile,
    "checkpoint": Checkpoint,
    "log": Log,
    "ask": Ask,
    "work": Work,
    "evaluate": Evaluate,
    "compile": Compile,
    "touch_memory": TouchMemory,
    "write_much": WriteMuch,
    "take_memory": TakeMemory,
    "threads": Threads,
    "route": Route,
}
