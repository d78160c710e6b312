"""Rules of the reasons: transfers between ranks."""

from __future__ import annotations

from typing import Final

from rootwalk.graph.reasons.codes import Reason, Signal
from rootwalk.graph.reasons.rule import BY_COUNTER, Rule

_NO_FLAP = ("NET_FLAP", Signal.CARRIER, "links went down {value:z.1f} times")
_NO_LOSS = (
    ("NET_LOSS", Signal.RETRANSMITTED, "segments sent again {value:+z.1f}"),
    ("NET_LOSS", Signal.DROPPED, "packets dropped {value:+z.1f}"),
)

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        Reason.UNKNOWN_NET,
        "network",
        "fabric",
        "slower transfers, cause not seen",
        Signal.TRANSFER,
        (("sched", 0.3), ("nic_counters", 0.4), ("rdma_counters", 0.3)),
        (),
        "ADD_NETWORK_SENSORS",
        "check links and NIC counters of these hosts; no sensor saw them",
    ),
    Rule(
        Reason.NET_FLAP,
        "network",
        "fabric",
        "a link went down and came up",
        Signal.CARRIER,
        BY_COUNTER,
        (),
        "CHECK_LINK",
        "look at cable, optic and port of that link; drain the host if it recurs",
    ),
    Rule(
        Reason.NET_LOSS,
        "network",
        "fabric",
        "packets lost",
        Signal.RETRANSMITTED,
        BY_COUNTER,
        (_NO_FLAP,),
        "FIND_LOSS",
        "look for drops and errors on that path: cable, optic, switch port, full buffers",
    ),
    Rule(
        Reason.NIC_RATE,
        "network",
        "node",
        "link below its rate",
        Signal.LINK_RATE,
        BY_COUNTER,
        (),
        "RENEGOTIATE_LINK",
        "see why the link came up slower: cable, optic, port, negotiation; drain the host",
    ),
    Rule(
        Reason.NET_CONGESTION,
        "network",
        "fabric",
        "packets queue, none are lost",
        Signal.ROUND_TRIP,
        # That nothing was lost is TCP's to say.
        (("sched", 0.3), ("counter", 0.4), ("tcp", 0.3)),
        (_NO_FLAP, *_NO_LOSS),
        "SPREAD_TRAFFIC",
        "find who shares that path: placement, routing, congestion control",
    ),
)
