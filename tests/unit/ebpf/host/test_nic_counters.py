"""Network interfaces, from a recorded /proc/net/dev (Linux 6.18), and from machines made by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.host.net_dev import Traffic, parse_net_dev
from rootwalk.ebpf.host.nic_counters import (
    MAX_INTERFACES,
    MAX_RANK_INTERFACES,
    NicCountersReader,
)
from rootwalk.ebpf.host.nic_statistics import measure_statistics
from rootwalk.ebpf.reader import Measurement, Place
from support.fake_host import told, unhurried, write_files
from support.live_check import check_measurement

__all__ = ["unhurried"]

RECORDED = Path(__file__).parents[3] / "data/proc_files/net_dev"
HEAD = "".join(RECORDED.read_text().splitlines(keepends=True)[:2])
ETH0 = "  eth0: 23453729597 575350 2 3 0 0 0 0 19635394 255567 5 7 0 0 0 0\n"


def line(name: str, number: int = 1) -> str:
    return f"  {name}: " + " ".join([str(number)] * 16) + "\n"


def write_device(root: Path, name: str, files: dict[str, str | int] | None = None) -> None:
    folder = root / "sys/class/net" / name
    (folder / "device").mkdir(parents=True)
    write_files(folder, files or {})


@pytest.fixture
def machine(tmp_path: Path, unhurried: None) -> Path:
    write_files(
        tmp_path, {"proc/net/dev": HEAD + line("lo") + line("ifb0") + ETH0, "proc/self/ns/net": ""}
    )
    return tmp_path


@pytest.fixture
def reader(machine: Path) -> Iterator[NicCountersReader]:
    write_device(
        machine,
        "eth0",
        {
            "operstate": "up\n",
            "speed": 100_000,
            "carrier_changes": 17,
            "statistics/rx_missed_errors": 19,
        },
    )
    made = NicCountersReader(Place(machine))
    yield made
    made.close()


def test_recorded_file() -> None:
    found = parse_net_dev(RECORDED.read_text())
    assert list(found) == ["lo", "ifb0", "ifb1", "eth0"]
    assert found["eth0"] == (Traffic(23642169073, 579666, 0, 0), Traffic(19830521, 258284, 0, 0))


def test_strange_names_and_garbage() -> None:
    assert list(parse_net_dev(line("eth0:1") + "x: 1 2\n: " + "1 " * 16 + "\n")) == ["eth0:1"]


def test_physical_interface(reader: NicCountersReader) -> None:
    assert told(reader) == {
        ("system.network.io", ("eth0", "receive"), None): 23453729597,
        ("system.network.io", ("eth0", "transmit"), None): 19635394,
        ("system.network.packet.count", ("receive", "eth0"), None): 575350,
        ("system.network.packet.count", ("transmit", "eth0"), None): 255567,
        ("system.network.errors", ("eth0", "receive"), None): 2,
        ("system.network.errors", ("eth0", "transmit"), None): 5,
        ("system.network.packet.dropped", ("eth0", "receive"), None): 3,
        ("system.network.packet.dropped", ("eth0", "transmit"), None): 7,
        ("training.nic.carrier.changes", ("eth0",), None): 17,
        ("training.nic.events", ("eth0", "rx_missed_errors"), None): 19,
        ("hw.network.up", ("eth0",), None): 1,
        ("hw.network.bandwidth.limit", ("eth0",), None): 12.5e9,
    }


@pytest.mark.parametrize(
    ("state", "value"), [("down", 0), ("lowerlayerdown", 0), ("unknown", None), ("", None)]
)
def test_link_state(
    machine: Path, reader: NicCountersReader, state: str, value: int | None
) -> None:
    write_files(machine, {"sys/class/net/eth0/operstate": state})
    assert told(reader).get(("hw.network.up", ("eth0",), None)) == value


def test_speed_that_the_driver_does_not_know_is_absent(
    machine: Path, reader: NicCountersReader
) -> None:
    write_files(machine, {"sys/class/net/eth0/speed": "-1\n"})
    assert ("hw.network.bandwidth.limit", ("eth0",), None) not in told(reader)


def test_counter_of_a_driver_that_was_loaded_again_is_passed_on(
    machine: Path, reader: NicCountersReader
) -> None:
    told(reader)
    write_files(machine, {"proc/net/dev": HEAD + line("eth0", 3)})
    assert told(reader)["system.network.io", ("eth0", "receive"), None] == 3


def test_without_a_physical_interface_all_but_the_loopback_are_told(machine: Path) -> None:
    reader = NicCountersReader(Place(machine))
    names = {
        attributes[0] for metric, attributes, _ in told(reader) if metric == "system.network.io"
    }
    assert names == {"eth0", "ifb0"}
    reader.close()


def test_rank_in_a_namespace_of_its_own(machine: Path, reader: NicCountersReader) -> None:
    write_files(
        machine, {"proc/100/ns/net": "", "proc/100/net/dev": HEAD + line("lo") + line("eth0", 23)}
    )
    own = machine / "proc/200/ns"
    own.mkdir(parents=True)
    (own / "net").hardlink_to(machine / "proc/self/ns/net")
    write_files(machine, {"proc/200/net/dev": HEAD + ETH0})
    reader.watch(100, 1)
    reader.watch(200, 2)
    found = {key: value for key, value in told(reader).items() if key[2] is not None}
    assert found["system.network.io", ("eth0", "receive"), 1] == 23
    assert {slot for _, _, slot in found} == {1}
    reader.forget(100)
    assert {slot for _, _, slot in told(reader)} == {None}


def burn(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


CARRIER = ("training.nic.carrier.changes", ("eth0",), None)
RECEIVED = ("system.network.io", ("eth0", "receive"), None)


def test_links_are_looked_at_while_traffic_that_costs_much_rests(
    machine: Path, reader: NicCountersReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rootwalk.ebpf.host.pace.REST_RATIO", 1_000)
    read = reader._read_traffic

    def read_slowly() -> Iterator[Measurement]:
        burn(0.03)  # a rest of 30 s
        return read()

    monkeypatch.setattr(reader, "_read_traffic", read_slowly)
    before = told(reader)
    write_files(machine, {"sys/class/net/eth0/carrier_changes": 19})
    write_files(machine, {"proc/net/dev": HEAD + line("eth0", 3)})
    deadline_s = time.monotonic() + 10.0
    while (now := told(reader))[CARRIER] != 19 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert (before[CARRIER], now[CARRIER]) == (17, 19)
    assert before[RECEIVED] == now[RECEIVED]


def test_to_enter_a_ranks_namespace_delays_no_look_at_its_links(
    machine: Path, reader: NicCountersReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Links:
        """A namespace that it takes long to enter, and not to read."""

        changes = 1

        def __init__(self, _file: Path) -> None:
            burn(0.03)

        def read(self) -> dict[str, int]:
            return {"eth0": self.changes}

        def close(self) -> None:
            pass

    monkeypatch.setattr("rootwalk.ebpf.host.pace.REST_RATIO", 1_000)
    monkeypatch.setattr("rootwalk.ebpf.host.nic_counters.NamespaceLinks", Links)
    write_files(machine, {"proc/100/ns/net": "", "proc/100/net/dev": HEAD + line("eth0", 23)})
    reader.watch(100, 1)
    mine = (CARRIER[0], CARRIER[1], 1)
    assert told(reader)[mine] == 1
    monkeypatch.setattr(Links, "changes", 2)
    deadline_s = time.monotonic() + 10.0
    while told(reader)[mine] != 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert told(reader)[mine] == 2


def test_more_interfaces_than_are_told_of_are_counted(machine: Path) -> None:
    names = [f"eth{number:03}" for number in range(MAX_INTERFACES + 5)]
    write_files(machine, {"proc/net/dev": HEAD + "".join(line(name) for name in names)})
    for name in names:
        write_device(machine, name)
    inside = "".join(line(f"net{number}") for number in range(MAX_RANK_INTERFACES + 2))
    write_files(machine, {"proc/100/ns/net": "", "proc/100/net/dev": HEAD + inside})
    reader = NicCountersReader(Place(machine))
    reader.watch(100, 1)
    told(reader)
    assert reader.losses() == {"device_limit": 5 + 2}
    reader.close()


def test_statistics_that_are_told() -> None:
    # Names of mlx5, bnxt_en, igb and ena; most of what drivers count is left out.
    statistics = {
        "rx_prio3_pause": 2,
        "rx_prio3_pause_duration": 3_000_000,
        "tx_pause_ctrl_phy": 5,
        "rx_pfc_ena_frames_pri4": 7,
        "pfc_pri4_tx_duration_us": 11,
        "rx_out_of_buffer": 13,
        "pps_allowance_exceeded": 17,
        "rx0_packets": 19,
        "ch3_arm": 23,
    }
    told = list(measure_statistics("eth0", statistics))
    for one in told:
        check_measurement(one)
    assert [(one.metric, tuple(one.attributes.values()), one.value) for one in told] == [
        ("training.nic.pause.frames", ("eth0", "receive", 3), 2),
        ("training.nic.pause.time", ("eth0", "receive", 3), 3.0),
        ("training.nic.pause.frames", ("eth0", "transmit"), 5),
        ("training.nic.pause.frames", ("eth0", "receive", 4), 7),
        ("training.nic.pause.time", ("eth0", "transmit", 4), 11e-6),
        ("training.nic.events", ("eth0", "rx_out_of_buffer"), 13),
        ("training.nic.events", ("eth0", "pps_allowance_exceeded"), 17),
    ]
