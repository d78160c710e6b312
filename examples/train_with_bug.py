"""`train_ddp.py` with a bug on one rank, which is there while a file exists.

    torchrun --nproc-per-node=2 train_with_bug.py --bug data_loader --bug-rank 1 --bug-file bug.on --steps 200

The training script beside this one runs unchanged, with its own options; other ranks run nothing else. Both bugs are
ones that people ship: a data set that unpacks a whole shard for every sample, in Python, and a model that keeps
millions of small objects and calls the garbage collector by hand.
"""

from __future__ import annotations

import argparse
import base64
import functools
import gc
import os
import random
import sys
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description="train_ddp.py with a bug on one rank; other options are passed on",
        allow_abbrev=False,
    )
    parser.add_argument("--bug", choices=("data_loader", "python_gc"), required=True)
    parser.add_argument("--bug-rank", type=int, required=True, help="rank that has the bug")
    parser.add_argument(
        "--bug-file", type=Path, required=True, help="the bug is on while this file exists"
    )
    arguments, rest = parser.parse_known_args()
    if int(os.environ.get("RANK", "0")) == arguments.bug_rank:
        bug_file = arguments.bug_file.absolute()
        if arguments.bug == "data_loader":
            train_ddp.SourceText = functools.partial(ShardedText, bug_file)
        else:
            train_ddp.Transformer = functools.partial(
                HoardingTransformer, bug_file, arguments.bug_rank
            )
    sys.argv[1:] = rest
    train_ddp.main()


if __name__ == "__main__":
    main()
