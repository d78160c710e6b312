"""RDMA ports of machines made by hand after Documentation/ABI/stable/sysfs-class-infiniband; none was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from rootwalk.ebpf.host.rdma_counters import (
    MAX_PORTS,
    RdmaCountersReader,
    parse_rate,
    parse_state,
)
from rootwalk.ebpf.reader import Place
from support.fake_host import told, write_files

PORT = "sys/class/infiniband/{}/ports/{}/"


def write_port(root: Path, device: str, number: int, files: dict[str, str | int]) -> None:
    folder = PORT.format(device, number)
    write_files(root, {folder + name: text for name, text in files.items()})


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)\n", 50e9),
        ("2.5 Gb/sec (1X SDR)\n", 0.3125e9),
        ("", None),
        ("unknown\n", None),
    ],
)
def test_rate(text: str, rate: float | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "is_up"), [("4: ACTIVE\n", True), ("1: DOWN\n", False), ("", None), ("x: y", None)]
)
def test_state(text: str, is_up: bool | None) -> None:
    assert parse_state(text) is is_up


def test_words_of_four_bytes_and_every_kind_of_counter(tmp_path: Path) -> None:
    write_port(
        tmp_path,
        "mlx5_0",
        1,
        {
            "state": "4: ACTIVE\n",
            "rate": "400 Gb/sec (4X NDR)\n",
            "counters/port_rcv_data": 1_000_003,
            "counters/port_xmit_data": 7,
            "counters/port_rcv_packets": 11,
            "counters/port_xmit_packets": 13,
            "counters/port_xmit_wait": 17,
            "counters/symbol_error": 0,
            "counters/port_rcv_switch_relay_errors": 19,  # not told
            "hw_counters/out_of_sequence": 23,
            "hw_counters/np_cnp_sent": 29,
            "hw_counters/rnr_nak_retry_err": "not a number\n",
            "hw_counters/lifespan": 10,
        },
    )
    port = "mlx5_0:1"
    assert told(RdmaCountersReader(Place(tmp_path))) == {
        ("hw.network.up", (port,), None): 1,
        ("hw.network.bandwidth.limit", (port,), None): 50e9,
        ("hw.network.io", (port, "receive"), None): 4_000_012,
        ("hw.network.io", (port, "transmit"), None): 28,
        ("hw.network.packets", (port, "receive"), None): 11,
        ("hw.network.packets", (port, "transmit"), None): 13,
        ("training.rdma.events", (port, "port_xmit_wait"), None): 17,
        ("training.rdma.events", (port, "symbol_error"), None): 0,
        ("training.rdma.events", (port, "out_of_sequence"), None): 23,
        ("training.rdma.events", (port, "np_cnp_sent"), None): 29,
    }


def test_card_that_counts_bytes_itself(tmp_path: Path) -> None:
    # As EFA does: no counters folder.
    files: dict[str, str | int] = {
        "hw_counters/rx_bytes": 5,
        "hw_counters/tx_bytes": 7,
        "hw_counters/rx_drops": 3,
    }
    write_port(tmp_path, "efa_0", 1, files)
    assert told(RdmaCountersReader(Place(tmp_path))) == {
        ("hw.network.io", ("efa_0:1", "receive"), None): 5,
        ("hw.network.io", ("efa_0:1", "transmit"), None): 7,
        ("training.rdma.events", ("efa_0:1", "rx_drops"), None): 3,
    }


def test_port_that_is_down_has_no_rate(tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_0", 1, {"state": "1: DOWN\n", "rate": "40 Gb/sec (4X QDR)\n"})
    assert told(RdmaCountersReader(Place(tmp_path))) == {("hw.network.up", ("mlx5_0:1",), None): 0}


def test_counters_in_both_folders_are_told_once(tmp_path: Path) -> None:
    write_port(tmp_path, "x", 1, {"counters/port_rcv_data": 2, "hw_counters/rx_bytes": 999})
    assert told(RdmaCountersReader(Place(tmp_path))) == {
        ("hw.network.io", ("x:1", "receive"), None): 8
    }


def test_more_ports_than_are_told_of_are_counted(tmp_path: Path) -> None:
    for number in range(MAX_PORTS + 3):
        write_port(tmp_path, f"mlx5_{number:02}", 1, {"state": "4: ACTIVE\n"})
    reader = RdmaCountersReader(Place(tmp_path))
    assert len(told(reader)) == MAX_PORTS
    assert reader.losses() == {"device_limit": 3}
