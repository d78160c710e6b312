"""What NCCL says in its debug files that it sends over, in synthetic jobs whose transfers take longer from 24 s on.

Nobody counts RDMA ports, but in one case. A way is told from the first connection on that is made over it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.model import Verdict
from support.counter_cases import FAULT_S, HEALTHY_S, HOSTS, LENGTH_S, ONSET_S, STEPS, TRANSFER
from support.counters import Told, add_counters, growing
from support.jobs import Job, write_job
from support.stores import query_rows
from support.verdicts import check_verdict

BEGIN_S = -65.0


def made(
    way: str, first_s: float, *more_s: float, hosts: tuple[int, ...] = HOSTS
) -> tuple[Told, ...]:
    """Two connections over a way by the ranks of some hosts, made at some times."""

    def connections(now: float) -> float:
        return 2.0 + 2.0 * sum(now >= at_s for at_s in more_s)

    about = {"training.nccl.transport": way}
    name = "training.nccl.connections"
    return tuple(Told(name, connections, host, host, about, first_s=first_s) for host in hosts)


BEFORE = made("NET/IB/GDRDMA", BEGIN_S)
SINCE = made("NET/Socket", ONSET_S)


def find(folder: Path, *told: Told, is_slow: bool = True) -> Verdict:
    """Diagnose a job of two ranks on two hosts."""
    faults = (TRANSFER,) if is_slow else ()
    path = write_job(folder / "store.duckdb", Job(ranks=2, hosts=2, steps=STEPS, faults=faults))
    add_counters(path, told, LENGTH_S if is_slow else HEALTHY_S)
    return check_verdict(diagnose(path))


def test_nccl_that_sent_over_rdma_and_now_over_tcp_has_fallen_back(tmp_path: Path) -> None:
    (finding,) = find(tmp_path, *BEFORE, *SINCE).findings
    assert (finding.reason, finding.subject.rank) == ("TRANSPORT_FALLBACK", None)
    assert finding.seconds.share == pytest.approx(FAULT_S, abs=0.002)
    over_tcp, over_rdma = (
        row for row in finding.evidence if row.signal == "training.nccl.connections"
    )
    assert (over_tcp.history, over_rdma.value, over_rdma.history) == (0.0, 2.0, 2.0)
    for row, way in ((over_tcp, "NET/Socket"), (over_rdma, "NET/IB/GDRDMA")):
        assert row.query is not None
        found = query_rows(tmp_path / "store.duckdb", row.query)
        assert found
        assert all(way in str(one) for one in found)


def test_it_may_be_that_of_one_host_alone(tmp_path: Path) -> None:
    more = made("NET/Socket", ONSET_S, hosts=(1,))
    (finding,) = find(tmp_path, *BEFORE, *more).findings
    assert (finding.reason, finding.subject.host) == ("TRANSPORT_FALLBACK", "host-1")


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(BEFORE, id="no word of TCP"),
        pytest.param(SINCE, id="no word before"),
        pytest.param((*made("SHM/direct/direct", BEGIN_S), *SINCE), id="no word of RDMA"),
        pytest.param((*made("NET/IB", BEGIN_S, ONSET_S), *SINCE), id="more over RDMA as well"),
        pytest.param((*BEFORE, *made("NET/IB", ONSET_S), *SINCE), id="RDMA by another way as well"),
        pytest.param((*made("NET/IB", ONSET_S), *SINCE), id="both ways at once"),
        pytest.param((*BEFORE, *made("NET/Socket", BEGIN_S)), id="both ways from the start on"),
        pytest.param((*BEFORE, *made("NET/Socket", ONSET_S / 2)), id="long before"),
        pytest.param((*BEFORE, *made("NET/Socket", ONSET_S + 15.0)), id="long after"),
    ],
)
def test_what_nccl_says_is_not_why_transfers_are_slow(
    tmp_path: Path, told: tuple[Told, ...]
) -> None:
    assert [one.reason for one in find(tmp_path, *told).findings] == ["UNKNOWN_NET"]


def test_nccl_that_falls_back_in_a_healthy_job_is_no_finding(tmp_path: Path) -> None:
    assert find(tmp_path, *BEFORE, *SINCE, is_slow=False).outcome == "healthy"


@pytest.mark.parametrize("stops", [True, False])
def test_where_ports_are_counted_they_say_whether_rdma_is_left(tmp_path: Path, stops: bool) -> None:
    about = {"hw.id": "mlx5_0:1", "network.io.direction": "transmit"}
    sent = growing(1e9, -70.0, ONSET_S if stops else 1e9)
    ports = tuple(Told("hw.network.io", sent, host, None, about) for host in HOSTS)
    (finding,) = find(tmp_path, *BEFORE, *SINCE, *ports).findings
    assert finding.reason == ("TRANSPORT_FALLBACK" if stops else "UNKNOWN_NET")
