"""One profile through other people's receivers, and what of it a store has."""

from __future__ import annotations

from pathlib import Path

import grpc

from rootwalk.otel_receiver.store import query_store
from support.log_and_profile_messages import profile, profile_request, sample
from support.otlp_messages import key_values
from support.otlp_paths import PROFILE_EXPORT

STACK = "main;step"


def send_profile(address: str, sender: str) -> None:
    """Send two samples, of values 3 and 4, with sender as their service.name."""
    body = profile_request(
        [profile([sample(1, values=[3]), sample(1, values=[4])])],
        attributes=key_values({"service.name": sender}),
    )
    with grpc.insecure_channel(address) as channel:
        channel.unary_unary(PROFILE_EXPORT)(body, timeout=20)


def find_profile_differences(store: Path, sender: str) -> list[str]:
    """Return what of one sender's profile is missing or otherwise than it was sent."""
    quoted = sender.replace("'", "''")
    columns = "sample_type, unit, unix_ns, duration_ns, value, stack"
    samples = f"FROM profile_samples SELECT {columns} WHERE service_name = '{quoted}'"
    rows = query_store(store, f"{samples} ORDER BY value")[2]
    expected = [("samples", "count", 1000, 50, value, STACK) for value in (3, 4)]
    return [] if rows == expected else [f"samples stored: {rows}, sent were {expected}"]
