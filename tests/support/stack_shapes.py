"""A program of known shape, for any Python from 3.11 on: Python, a C library, the kernel; it logs what it did when.

    python stack_shapes.py LIBRARY LOG SECONDS

Each line of the log is one call: the innermost Python function's name, what it was in, begin and end (CLOCK_MONOTONIC,
ns), and of waits how long was asked for. It begins when it reads a line, works for so many seconds of CPU time, and
ends with its input.
"""

from __future__ import annotations

import ctypes
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Log = Callable[..., None]


class Spinner:
    """Functions that run in Python only."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def turn(self, end_ns: int) -> None:
        begin_ns = time.monotonic_ns()
        total = 0
        while time.monotonic_ns() < end_ns:
            total = (total * 31 + 7) % 1_000_003
        self.log("Spinner.turn", "python", begin_ns)

    def step(self, end_ns: int) -> None:
        self.turn(end_ns)

    def größe(self, end_ns: int) -> None:
        begin_ns = time.monotonic_ns()
        while time.monotonic_ns() < end_ns:
            pass
        self.log("Spinner.größe", "python", begin_ns)

    def 例(self, end_ns: int) -> None:  # noqa: N802  (no case)
        begin_ns = time.monotonic_ns()
        while time.monotonic_ns() < end_ns:
            pass
        self.log("Spinner.例", "python", begin_ns)


def recurse(depth: int, end_ns: int, log: Log) -> None:
    if depth:
        recurse(depth - 1, end_ns, log)
        return
    begin_ns = time.monotonic_ns()
    while time.monotonic_ns() < end_ns:
        pass
    log("recurse", "python", begin_ns)


def generate(end_ns: int) -> Iterator[int]:
    while time.monotonic_ns() < end_ns:
        pass
    yield end_ns


def drain(end_ns: int, log: Log) -> None:
    begin_ns = time.monotonic_ns()
    list(generate(end_ns))
    log("generate", "python", begin_ns)


def call_native(library: ctypes.CDLL, end_ns: int, log: Log) -> None:
    begin_ns = time.monotonic_ns()
    library.shape_outer(ctypes.c_long(end_ns))
    log("call_native", "native", begin_ns)


def call_kernel(library: ctypes.CDLL, end_ns: int, log: Log) -> None:
    begin_ns = time.monotonic_ns()
    library.shape_ask(ctypes.c_long(end_ns))
    log("call_kernel", "kernel", begin_ns)


def rest(wait_ns: int, log: Log) -> None:
    begin_ns = time.monotonic_ns()
    time.sleep(wait_ns / 1e9)
    log("rest", "wait", begin_ns, wait_ns)


def pause(library: ctypes.CDLL, wait_ns: int, log: Log) -> None:
    begin_ns = time.monotonic_ns()
    library.shape_pause(ctypes.c_long(wait_ns))
    log("pause", "wait", begin_ns, wait_ns)


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    chooser = random.Random(7)  # noqa: S311  (no secret)
    with Path(sys.argv[2]).open("w", encoding="utf-8", buffering=1) as file:

        def log(name: str, kind: str, begin_ns: int, asked_ns: int = 0) -> None:
            file.write(f"{name} {kind} {begin_ns} {time.monotonic_ns()} {asked_ns}\n")

        spinner = Spinner(log)
        shapes: tuple[Callable[[int], None], ...] = (
            spinner.step,
            spinner.größe,
            spinner.例,
            lambda end_ns: recurse(40, end_ns, log),
            lambda end_ns: drain(end_ns, log),
            lambda end_ns: call_native(library, end_ns, log),
            lambda end_ns: call_kernel(library, end_ns, log),
        )
        waits: tuple[Callable[[int], None], ...] = (
            lambda wait_ns: rest(wait_ns, log),
            lambda wait_ns: pause(library, wait_ns, log),
        )
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        while time.process_time() < float(sys.argv[3]):
            chooser.choice(shapes)(time.monotonic_ns() + chooser.randrange(20, 80) * 1_000_000)
            chooser.choice(waits)(chooser.randrange(5, 30) * 1_000_000)
    sys.stdout.write("done\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
