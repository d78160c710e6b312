"""A receiver that is killed again and again while senders of every signal write down what it acknowledged."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from rootwalk.otel_receiver.signals import Signal
from rootwalk.otel_receiver.store import query_store
from support.log_and_profile_messages import (
    log_record,
    log_request,
    profile,
    profile_request,
    sample,
)
from support.otlp_messages import key_values, metric, metric_request, span, trace_request
from support.otlp_paths import GRPC_PATHS
from support.receiver_process import ReceiverProcess, start_receiver

RECORDS_A_REQUEST = 20
SENDERS: Final = (Signal.TRACES, Signal.TRACES, Signal.METRICS, Signal.LOGS, Signal.PROFILES)
_NUMBERS: Final = {
    Signal.TRACES: "SELECT ('0x' || span_id)::BIGINT FROM spans",
    Signal.METRICS: "SELECT value::BIGINT FROM metrics WHERE name = 'numbers'",
    Signal.LOGS: "SELECT CAST(body AS BIGINT) FROM logs WHERE event_name = 'number'",
    Signal.PROFILES: "SELECT ('0x' || profile_id[17:])::BIGINT FROM profiles",
}


def _metrics(numbers: Sequence[int]) -> bytes:
    points = [{"as_int": n, "attributes": key_values({"n": n})} for n in numbers]
    return metric_request([metric("numbers", gauge={"data_points": points})])


def _profiles(numbers: Sequence[int]) -> bytes:
    samples = [sample(1, values=[1])]
    return profile_request([profile(samples, profile_id=n.to_bytes(16, "big")) for n in numbers])


_REQUESTS: Final[dict[Signal, Callable[[Sequence[int]], bytes]]] = {
    Signal.TRACES: lambda numbers: trace_request([span(n) for n in numbers]),
    Signal.METRICS: _metrics,
    Signal.LOGS: lambda numbers: log_request(
        [log_record(event_name="number", body=n) for n in numbers]
    ),
    Signal.PROFILES: _profiles,
}


class Load:
    """Senders that write down the number of every record that was acknowledged."""

    def __init__(self, receiver: ReceiverProcess, first: int) -> None:
        self.acknowledged: dict[Signal, set[int]] = {signal: set() for signal in Signal}
        self.sent = first
        self._lock = threading.Lock()
        self._receiver = receiver
        self._threads = [threading.Thread(target=self._send, args=(s,)) for s in SENDERS]
        for thread in self._threads:
            thread.start()

    def has_all(self) -> bool:
        """Say whether something of every signal was acknowledged."""
        return all(self.acknowledged.values())

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _send(self, signal: Signal) -> None:
        """Send until the receiver is gone; each request of spans is sent twice, as a retry would."""
        with grpc.insecure_channel(self._receiver.grpc) as channel:
            export = channel.unary_unary(GRPC_PATHS[signal])
            while True:
                with self._lock:
                    first = self.sent
                    self.sent += RECORDS_A_REQUEST
                numbers = range(first, first + RECORDS_A_REQUEST)
                body = _REQUESTS[signal](numbers)
                try:
                    export(body, timeout=10)
                    self.acknowledged[signal] |= set(numbers)
                    if signal is Signal.TRACES:
                        export(body, timeout=10)
                except grpc.RpcError:
                    return


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What a store holds after some kills; `missing` were acknowledged, `doubled` are spans stored more than once."""

    acknowledged: dict[Signal, int]
    missing: dict[Signal, int]
    doubled: int


def kill_under_load(
    store: Path, rounds: int, seed: int, on_round: Callable[[int, int], Any] = lambda *_: None
) -> SoakResult:
    """Start a receiver, load it and kill it after up to 0.6 s, so many times over one store; then read the store.

    Args:
        store: The store; it may be new.
        rounds: Kills.
        seed: Of the moments to kill at.
        on_round: Called after each kill with its number and the records acknowledged so far.
    """
    chance = random.Random(seed)  # noqa: S311  (moments to kill at, not secrets)
    acknowledged: dict[Signal, set[int]] = {signal: set() for signal in Signal}
    first = 1
    for number in range(rounds):
        receiver = start_receiver(store, "--flush-interval", "50ms")
        load = Load(receiver, first)
        deadline = time.monotonic() + chance.uniform(0.05, 0.6)
        while time.monotonic() < deadline or not load.has_all():
            time.sleep(0.005)
        receiver.kill()
        load.join()
        for signal, numbers in load.acknowledged.items():
            acknowledged[signal] |= numbers
        first = load.sent
        on_round(number + 1, sum(len(numbers) for numbers in acknowledged.values()))
    stored = {
        signal: [int(row[0]) for row in query_store(store, _NUMBERS[signal])[2]]
        for signal in Signal
    }
    return SoakResult(
        acknowledged={signal: len(numbers) for signal, numbers in acknowledged.items()},
        missing={signal: len(acknowledged[signal] - set(stored[signal])) for signal in Signal},
        doubled=len(stored[Signal.TRACES]) - len(set(stored[Signal.TRACES])),
    )
