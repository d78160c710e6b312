"""The receiver's side of live detection: starts the watcher, takes its events in, starts it again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rootwalk.graph.commands.watcher import FRAME_HEAD, FRAME_SIGNALS, HURRY
from rootwalk.graph.supervisor import tell_exit_code
from rootwalk.otel_receiver.signals import Signal

if TYPE_CHECKING:
    from rootwalk.otel_receiver.receiver import Receiver

__all__ = ["run_watcher"]

logger = logging.getLogger(__name__)

# A watcher that dies is started again after a pause that doubles; one that has lived for ten minutes begins anew.
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
LONG_LIFE_S: Final = 600.0
# What it may take to end: it has a last look, which is a diagnosis where the ranks left it no time for one. Then it is
# killed, which a store survives at any moment.
LAST_LOOK_S: Final = 15.0
# An event that finds the receiver's memory or disk full is offered again, like any sender would.
ACCEPT_TRIES: Final = 5
ACCEPT_PAUSE_S: Final = 1.0
# How long a slowdown that was just seen makes the receiver hurry, s: hosts look at some counters every five seconds,
# and until then a cause may be told wrongly. The job is slow already, so some writes more hardly matter to it.
HURRY_S: Final = 20.0


async def run_watcher(
    store: Path, receiver: Receiver, *, profile_hz: int = 0, options: Sequence[str] = ()
) -> None:
    """Keep a watcher on a store until cancelled, and hand what it says to the receiver.

    Args:
        store: The receiver's store.
        receiver: Takes requests in as if a sender had sent them.
        profile_hz: How often stacks are taken when a finding opens; 0 for never.
        options: More for the watcher's command line.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        began_s = time.monotonic()
        code = await _run_once(store, receiver, ("--profile-on-finding", str(profile_hz), *options))
        if time.monotonic() - began_s > LONG_LIFE_S:
            pause_s = FIRST_PAUSE_S
        logger.warning(
            "live detection ended (%s): starting it again in %g s", tell_exit_code(code), pause_s
        )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


async def _run_once(store: Path, receiver: Receiver, options: Sequence[str]) -> int:
    """Run one watcher to its end, or end it when cancelled; return its exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rootwalk.graph.commands.watcher"),
        *(str(store), "--parent", str(os.getpid()), *options),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # yields as a whole
    )
    if process.stdout is None:
        raise AssertionError("a pipe was asked for")
    relay = asyncio.create_task(_relay(process.stdout, receiver))
    try:
        await asyncio.shield(relay)
        return await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                # What it has told already is stored, too.
                await asyncio.wait_for(relay, LAST_LOOK_S)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _relay(frames: asyncio.StreamReader, receiver: Receiver) -> None:
    """Hand every request on until the watcher has gone; half a frame of one that was killed is left."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            number, size = FRAME_HEAD.unpack(await frames.readexactly(FRAME_HEAD.size))
            body = await frames.readexactly(size)
            if number == HURRY:
                receiver.hurry(HURRY_S)
            else:
                await _offer(FRAME_SIGNALS[number], body, receiver)


async def _offer(signal: Signal, body: bytes, receiver: Receiver) -> None:
    outcome = await receiver.accept(signal, body)
    for _ in range(ACCEPT_TRIES):
        if not outcome.result.is_retryable:
            return
        await asyncio.sleep(ACCEPT_PAUSE_S)
        outcome = await receiver.accept(signal, body)
    logger.warning("what was said about a finding is not stored: %s", outcome.message)
