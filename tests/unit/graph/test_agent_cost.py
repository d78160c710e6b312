"""What watching cost, from the store's own summaries of what agents sent."""

from __future__ import annotations

import json
from pathlib import Path

from rootwalk.graph.agent_cost import AgentCost, read_agent_cost
from rootwalk.otel_receiver import store
from rootwalk.otel_receiver.summaries import rebuild_summaries


def test_hosts_are_added_and_programs_and_reasons_kept_apart(tmp_path: Path) -> None:
    program, reason = "rootwalk.bpf.program.name", "rootwalk.drop.reason"
    rows = [
        ("rootwalk.agent.cpu.time", "h1", {}, 2.0),
        ("rootwalk.agent.cpu.time", "h1", {}, 3.0),
        ("rootwalk.agent.cpu.time", "h2", {}, 1.0),
        ("rootwalk.agent.memory.usage", "h1", {}, 61e6),
        ("rootwalk.agent.memory.usage", "h2", {}, 50e6),
        ("rootwalk.agent.events", "h1", {}, 700.0),
        ("rootwalk.agent.sent.size", "h1", {}, 5000.0),
        ("rootwalk.agent.detail.lowered", "h2", {}, 1.0),
        ("rootwalk.agent.detail.lowered", "h1", {}, 0.0),
        ("rootwalk.bpf.run.time", "h1", {program: "on_switch"}, 0.5),
        ("rootwalk.bpf.run.time", "h2", {program: "on_switch"}, 0.25),
        ("rootwalk.bpf.run.time", "h1", {program: "on_wakeup"}, 0.25),
        ("rootwalk.dropped", "h1", {reason: "ring_full"}, 3.0),
        ("rootwalk.dropped", "h1", {reason: "bpf_ring_full"}, 2.0),
    ]
    path = tmp_path / "s.duckdb"
    store.create_store(path)
    with store.writing(path) as connection:
        for number, (name, host, attributes, value) in enumerate(rows):
            connection.execute(
                "INSERT INTO metric_records BY NAME SELECT $1 AS name, 'j1' AS job, $2 AS host_id, $2 AS host_name,"
                " $3 AS attributes, $4 AS value, $5::BIGINT AS unix_ns, 1 AS received_unix_ns,"
                " '{}' AS resource, '{}' AS data",
                [name, host, json.dumps(attributes), value, number + 1],
            )
        rebuild_summaries(connection)
        for rank in range(2):
            connection.execute(
                "INSERT INTO rank_summaries BY NAME SELECT 'j1' AS job, $1 AS rank, 1 AS latest_unix_ns,"
                " 1 AS received_unix_ns,"
                " 0 AS first_step, 49 AS last_step, 500.0 AS steps_s",
                [rank],
            )
        cost = read_agent_cost(connection, "j1", 0)
        nobody = read_agent_cost(connection, "other", 0)
    assert cost == AgentCost(
        cpu_ratio=0.005,
        rss_bytes=61_000_000,
        bytes_per_rank_step=50.0,
        events_per_rank_step=7.0,
        bpf_s={"on_switch": 0.75, "on_wakeup": 0.25},
        dropped={"bpf_ring_full": 2, "ring_full": 3},
        lowered_hosts=("h2",),
    )
    assert nobody == AgentCost()
