"""TCP's own counters, from files made by hand."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rootwalk.ebpf.tcp_counters import TcpCounters, parse_counters
from rootwalk.instrumentation.semconv import TrainingTcpEvent as Event

SNMP = """Ip: Forwarding DefaultTTL
Ip: 2 64
Tcp: RtoAlgorithm MaxConn RetransSegs InErrs
Tcp: 1 -1 {again} 0
"""
NETSTAT = """TcpExt: ListenOverflows ListenDrops TCPLostRetransmit TCPTimeouts TCPToZeroWindowAdv TCPZeroWindowDrop
TcpExt: 1 {drops} 3 5 7 11
IpExt: InNoRoutes ListenDrops
IpExt: 1 999
"""


def write(proc: Path, pid: int, again: int, drops: int) -> None:
    folder = proc / str(pid) / "net"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "snmp").write_text(SNMP.format(again=again))
    (folder / "netstat").write_text(NETSTAT.format(drops=drops))


def test_files() -> None:
    assert parse_counters(SNMP.format(again=13)) == {Event.RETRANSMITTED_SEGMENT: 13}
    assert parse_counters(NETSTAT.format(drops=2)) == {
        Event.LISTEN_DROP: 2,
        Event.LOST_RETRANSMISSION: 3,
        Event.TIMEOUT: 5,
        Event.ZERO_WINDOW_SENT: 7,
        Event.ZERO_WINDOW_DROP: 11,
    }


def test_garbage_is_left_out() -> None:
    assert parse_counters("Tcp: RetransSegs\nUdp: 7\n") == {}
    assert parse_counters("Tcp: RetransSegs\nTcp: seven\n") == {}
    assert parse_counters("Tcp: A RetransSegs\nTcp: 1\n") == {}
    assert parse_counters("Tcp: RetransSegs") == {}


@given(st.text())
def test_no_text_does_harm(text: str) -> None:
    parse_counters(text)


def test_sums_begin_with_the_first_look_and_outlive_namespaces(tmp_path: Path) -> None:
    counters = TcpCounters(tmp_path)
    write(tmp_path, 1, 100, 10)
    write(tmp_path, 2, 7000, 0)
    counters.look(11, [1])
    counters.look(12, [2])
    assert counters.sums[Event.RETRANSMITTED_SEGMENT] == 0
    write(tmp_path, 1, 113, 12)
    write(tmp_path, 2, 7017, 0)
    counters.look(11, [999, 1])  # the first process is gone
    counters.look(12, [2])
    assert counters.sums[Event.RETRANSMITTED_SEGMENT] == 13 + 17
    assert counters.sums[Event.LISTEN_DROP] == 2
    counters.keep([11])
    write(tmp_path, 2, 5, 0)
    counters.look(12, [2])  # another one with the number of the first
    assert counters.sums[Event.RETRANSMITTED_SEGMENT] == 13 + 17


def test_namespace_of_which_every_process_is_gone(tmp_path: Path) -> None:
    counters = TcpCounters(tmp_path)
    counters.look(11, [1, 2])
    assert counters.sums == {}
