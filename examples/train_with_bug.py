"""`train_ddp.py` with a bug on one rank, which is there while a file exists.

    torchrun --nproc-per-node=2 train_with_bug.py --bug data_loader --bug-rank 1 --bug-file bug.on --steps 200

The training script beside this one runs unchanged, with its own options; other ranks run nothing else. The bugs are
ones that people ship: a data set that unpacks a whole shard for every sample, in Python; a model that keeps millions of
small objects and calls the garbage collector by hand; statistics in Python, in a thread beside the training; weights
that are logged into a pipe whose reader is slow; a question to a thread that has ended, which no one answers any more.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import gc
import os
import queue
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import train_ddp  # type: ignore[import-not-found]  # a script in the same folder, not a package
from torch import Tensor

# Decoding one takes about 25 ms on a core of 2024; a batch of six makes a step of 0.17 s twice as long.
SHARD_BYTES = 170_000
# Lists that the collector has to visit: about 130 ms a collection while others use the memory too, 90 MB of memory.
RECORDS = 1_000_000
# Chance of a collection in a step.
COLLECTION_CHANCE = 0.5

# Pairs that a thread counts in each step, in Python: about 200 ms on a core of 2024.
COUNTED_PAIRS = 2_000_000
# Rows of weights that are logged in each step: 250 kB of text, of which the pipe's reader takes 64 kB in 50 ms.
LOGGED_ROWS = 48
SLOW_READER = "import sys, time\nwhile sys.stdin.buffer.read1(65536): time.sleep(0.05)"

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}


def decode_sample(shard: bytes, start: int, stop: int) -> bytes:
    """Return bytes `start` to `stop` of a shard of base64 text, by decoding all of it one character at a time."""
    decoded = bytearray()
    bits = bit_count = 0
    for character in shard.rstrip(b"="):
        bits = (bits << 6 | _VALUES[character]) & 0xFFF
        bit_count += 6
        if bit_count >= 8:
            bit_count -= 8
            decoded.append(bits >> bit_count & 0xFF)
    return bytes(decoded[start:stop])


class ShardedText(train_ddp.SourceText):
    """The same samples, read from base64 shards while the bug is on."""

    def __init__(self, bug_file: Path, window_bytes: int) -> None:
        super().__init__(window_bytes)
        self._bug_file = bug_file
        self._windows_per_shard = SHARD_BYTES // window_bytes
        size = self._windows_per_shard * window_bytes
        starts = range(0, len(self._text), size)
        # A window ends one byte into the next one.
        self._shards = [base64.b64encode(self._text[start : start + size + 1]) for start in starts]

    def __getitem__(self, index: int) -> Tensor:
        if not self._bug_file.exists():
            plain: Tensor = super().__getitem__(index)
            return plain
        shard, place = divmod(index, self._windows_per_shard)
        start = place * self._window_bytes
        window = decode_sample(self._shards[shard], start, start + self._window_bytes + 1)
        return torch.tensor(list(window))


class HoardingTransformer(train_ddp.Transformer):
    """The same model, which keeps millions of objects and collects garbage in some steps while the bug is on."""

    def __init__(self, bug_file: Path, seed: int, *shape: int) -> None:
        super().__init__(*shape)
        self._bug_file = bug_file
        self._random = random.Random(seed)  # noqa: S311  (steps, not secrets)
        gc.disable()  # else making them is a thousand collections
        self._records: list[list[Any]] = [[None] for _ in range(RECORDS)]
        gc.enable()

    def forward(self, tokens: Tensor) -> Tensor:
        if self._bug_file.exists() and self._random.random() < COLLECTION_CHANCE:
            gc.collect()
        hidden: Tensor = super().forward(tokens)
        return hidden


def count_pairs(text: bytes, pairs: int) -> dict[tuple[int, int], int]:
    """Return how often bytes follow each other, of so many pairs, from the text's beginning again at its end."""
    counts: dict[tuple[int, int], int] = {}
    place = 0
    for _ in range(pairs):
        pair = text[place], text[place + 1]
        counts[pair] = counts.get(pair, 0) + 1
        place = (place + 1) % (len(text) - 1)
    return counts


class CountingTransformer(train_ddp.Transformer):
    """The same model, beside which a thread counts pairs of bytes in each step while the bug is on."""

    def __init__(self, bug_file: Path, *shape: int) -> None:
        super().__init__(*shape)
        self._bug_file = bug_file
        self._is_asked = threading.Event()
        threading.Thread(target=self._count, name="statistics", daemon=True).start()

    def _count(self) -> None:
        # Bound to the core of the training it would wait for that core, and not for the interpreter.
        others = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
        with contextlib.suppress(OSError):  # none, or none that we may use
            os.sched_setaffinity(0, others)
        text = Path(train_ddp.__file__).read_bytes()
        while True:
            self._is_asked.wait()
            self._is_asked.clear()
            count_pairs(text, COUNTED_PAIRS)

    def forward(self, tokens: Tensor) -> Tensor:
        if self._bug_file.exists():
            self._is_asked.set()
        hidden: Tensor = super().forward(tokens)
        return hidden


def log_weights(pipe: int, weights: Tensor) -> None:
    """Write weights as text, until the pipe has taken all of it."""
    line = repr(weights.tolist()).encode()
    while line:
        line = line[os.write(pipe, line) :]


class LoggingTransformer(train_ddp.Transformer):
    """The same model, which logs some of its weights in each step while the bug is on."""

    def __init__(self, bug_file: Path, *shape: int) -> None:
        super().__init__(*shape)
        self._bug_file = bug_file
        end, self._pipe = os.pipe()
        command = [sys.executable, "-c", SLOW_READER]  # ends with the pipe
        self._reader = subprocess.Popen(command, stdin=end)  # noqa: S603  (our own source)
        os.close(end)

    def forward(self, tokens: Tensor) -> Tensor:
        if self._bug_file.exists():
            log_weights(self._pipe, self.head.weight[:LOGGED_ROWS])
        hidden: Tensor = super().forward(tokens)
        return hidden


def wait_for_answer(answers: queue.Queue[str]) -> str:
    """Return the next answer; wait until there is one."""
    return answers.get()


class AskingTransformer(train_ddp.Transformer):
    """The same model, which waits for an answer of a thread that has ended, once the bug is on."""

    def __init__(self, bug_file: Path, *shape: int) -> None:
        super().__init__(*shape)
        self._bug_file = bug_file
        self._answers: queue.Queue[str] = queue.Queue()

    def forward(self, tokens: Tensor) -> Tensor:
        if self._bug_file.exists():
            wait_for_answer(self._answers)
        hidden: Tensor = super().forward(tokens)
        return hidden


MODELS = {
    "python_gil": CountingTransformer,
    "blocking_log": LoggingTransformer,
    "hang": AskingTransformer,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="train_ddp.py with a bug on one rank; other options are passed on",
        allow_abbrev=False,
    )
    bugs = ("data_loader", "python_gc", *MODELS)
    parser.add_argument("--bug", choices=bugs, required=True)
    parser.add_argument("--bug-rank", type=int, required=True, help="rank that has the bug")
    parser.add_argument(
        "--bug-file", type=Path, required=True, help="the bug is on while this file exists"
    )
    arguments, rest = parser.parse_known_args()
    if int(os.environ.get("RANK", "0")) == arguments.bug_rank:
        bug_file = arguments.bug_file.absolute()
        if arguments.bug == "data_loader":
            train_ddp.SourceText = functools.partial(ShardedText, bug_file)
        elif arguments.bug == "python_gc":
            train_ddp.Transformer = functools.partial(
                HoardingTransformer, bug_file, arguments.bug_rank
            )
        else:
            train_ddp.Transformer = functools.partial(MODELS[arguments.bug], bug_file)
    sys.argv[1:] = rest
    train_ddp.main()


if __name__ == "__main__":
    main()
