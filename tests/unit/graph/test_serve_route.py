"""The hops between two ranks: what is counted on the way, and what may be said of it."""

from __future__ import annotations

from rootwalk.graph.serve.route import Health, Hop, Reading, RouteEnd, build_route

HERE = RouteEnd(0, "h0", "host-0", "GPU-a")
BESIDE = RouteEnd(1, "h0", "host-0", "GPU-b")
THERE = RouteEnd(5, "h1", "host-1", None)


def counted(name: str, host: str, device: str | None, *values: float, rank: int | None = None) -> Reading:  # fmt: skip
    return Reading(name, host, rank, device, values[0], values[-1], max(values), "{x}")


def told(hops: tuple[Hop, ...]) -> list[tuple[str, Health]]:
    return [(hop.kind, hop.health) for hop in hops]


def test_what_nobody_reads_is_not_called_well() -> None:
    assert told(build_route(HERE, THERE, ())) == [
        ("rank", Health.UNSEEN),
        ("GPU", Health.UNSEEN),
        ("interface", Health.UNSEEN),
        ("network", Health.UNSEEN),
        ("interface", Health.UNSEEN),
        ("GPU", Health.UNSEEN),
        ("rank", Health.UNSEEN),
    ]


def test_between_hosts_each_interface_that_counts_is_a_hop() -> None:
    readings = (
        counted("system.network.errors", "h0", "eth0", 7, 7),
        counted("hw.network.bandwidth.limit", "h0", "eth0", 1e9, 1e9),
        counted("system.network.packet.dropped", "h1", "eth0", 3, 10),
        counted("hw.network.up", "h1", "eth1", 1, 0),
        counted("hw.network.bandwidth.limit", "h1", "eth2", 10e9, 1e9),
        counted("training.tcp.retransmitted.segments", "h1", None, 0, 4, rank=5),
        counted("training.tcp.retransmitted.segments", "h1", None, 0, 9, rank=6),
    )
    hops = build_route(HERE, THERE, readings)
    assert [(h.name, h.health) for h in hops if h.kind == "interface"] == [
        ("eth0 of host-0", Health.QUIET),
        ("eth0 of host-1", Health.COUNTS),
        ("eth1 of host-1", Health.BAD),
        ("eth2 of host-1", Health.BAD),
    ]
    (speed,) = hops[2].facts
    assert (speed.value, speed.is_level) == (1e9, True)
    assert [fact.value for fact in hops[4].facts] == [7], (
        "what was before the window is not counted"
    )
    assert hops[-1].health is Health.COUNTS
    assert [fact.value for fact in hops[-1].facts] == [4], "another rank's segments are not its own"


def test_inside_a_host_the_way_is_its_links() -> None:
    readings = (
        counted("training.gpu.nvlink.links", "h0", "GPU-a", 18, 18, rank=0),
        counted("training.gpu.nvlink.links", "h0", "GPU-b", 18, 17, rank=1),
        counted("training.gpu.throttled.time", "h0", "GPU-b", 0, 2.5),
    )
    assert told(build_route(HERE, BESIDE, readings)) == [
        ("rank", Health.UNSEEN),
        ("GPU", Health.UNSEEN),
        ("link", Health.BAD),
        ("GPU", Health.COUNTS),
        ("rank", Health.UNSEEN),
    ]


def test_findings_stand_at_the_hop_that_they_name() -> None:
    named = [("f1", frozenset({5}), "thread:h1/9"), ("f2", frozenset[int](), "path:host-0/host-1")]
    hops = build_route(HERE, THERE, (), named)
    assert [(hop.kind, hop.findings) for hop in hops if hop.findings] == [
        ("network", ("f2",)),
        ("rank", ("f1",)),
    ]
