"""Everything that a store says of profiles and their samples, to be held against another store's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rootwalk.otel_receiver.store import query_store

__all__ = ["read_profiles"]

SAMPLES = """
    SELECT unix_ns, duration_ns, profile_id, sample_type, unit, job, attempt, rank, host_id, host_name, service_name,
           value, values, times_unix_ns, trace_id, span_id, attributes::VARCHAR, stack
    FROM profile_samples ORDER BY ALL
"""
PROFILES = """
    SELECT unix_ns, duration_ns, profile_id, sample_type, unit, period_type, period_unit, period, sample_count, rank,
           scope_name, resource::VARCHAR
    FROM profiles ORDER BY ALL
"""


def read_profiles(store: Path) -> tuple[list[Any], list[Any]]:
    """Return the rows of all profiles, and of all samples, in one order."""
    return query_store(store, PROFILES)[2], query_store(store, SAMPLES)[2]
