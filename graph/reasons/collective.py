"""Rules of the reasons: how collectives move their data. Those of hangs are with the hangs."""

from __future__ import annotations

from typing import Final

from rootwalk.graph.reasons.codes import Reason, Signal
from rootwalk.graph.reasons.rule import BY_COUNTER, Rule

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        Reason.TRANSPORT_FALLBACK,
        "collective",
        "platform",
        "collectives go over TCP, no longer over RDMA",
        Signal.NETWORK_IO,
        BY_COUNTER,
        (),
        "RESTORE_TRANSPORT",
        "see with NCCL_DEBUG=INFO which network it chose and why: HCA, interface, plugin, memory that may be locked",
    ),
    Rule(
        Reason.PROXY_STARVED,
        "collective",
        "node",
        "the threads that move data wait for a CPU",
        Signal.THREAD_TIME,
        BY_COUNTER,
        (),
        "FREE_CORES",
        "leave cores to the collectives' threads: fewer loader workers, other affinity, interrupts elsewhere",
    ),
)
