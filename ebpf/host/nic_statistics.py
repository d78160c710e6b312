"""Which of the statistics that network drivers have are told, and as what: pause frames, losses, link errors, limits.

An allow-list, because a driver may have a thousand. Names are the drivers' own: mlx5 (NVIDIA), bnxt_en (Broadcom), ice
and igb (Intel), ena (Amazon).

    pause     the other end asked this one to stop sending, or the reverse, whole link or one priority
    losses    no buffer in the host (out_of_buffer) or in the card (discards): the receiver is too slow
    errors    a cable or an optic that goes bad
    limits    packets that a cloud's virtual card queued or dropped because the instance's share was used up

Source: Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst, .../amazon/ena.rst;
drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c, drivers/net/ethernet/intel/ice/ice_ethtool.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rootwalk.ebpf.reader import Measurement
from rootwalk.instrumentation import semconv

__all__ = ["measure_statistics"]

USEC_PER_S = 1_000_000
PRIORITIES = range(8)
SIDES = (("rx", "receive"), ("tx", "transmit"))


@dataclass(frozen=True, slots=True)
class _Pause:
    """What one name counts: frames, or us of pause; None of a priority is the whole link."""

    direction: str
    priority: int | None
    is_time: bool


def _list_pauses() -> dict[str, _Pause]:
    pauses = {}
    for side, direction in SIDES:
        for name in ("pause_ctrl_phy", "pause_frames", "flow_control_xoff"):
            pauses[f"{side}_{name}"] = _Pause(direction, None, is_time=False)
        pauses[f"{side}_global_pause_duration"] = _Pause(direction, None, is_time=True)
        for priority in PRIORITIES:
            for name in (
                f"{side}_prio{priority}_pause",
                f"{side}_pfc_ena_frames_pri{priority}",
                f"{side}_priority_{priority}_xoff.nic",
            ):
                pauses[name] = _Pause(direction, priority, is_time=False)
            for name in (
                f"{side}_prio{priority}_pause_duration",
                f"pfc_pri{priority}_{side}_duration_us",
            ):
                pauses[name] = _Pause(direction, priority, is_time=True)
    return pauses


PAUSES = _list_pauses()
EVENTS = frozenset(
    {
        "rx_discards_phy",
        "tx_discards_phy",
        "rx_out_of_buffer",
        "out_of_buffer",
        "device_out_of_buffer",
        "rx_steer_missed_packets",
        "rx_crc_errors_phy",
        "rx_symbol_err_phy",
        "rx_pcs_symbol_err_phy",
        "rx_corrected_bits_phy",
        "link_down_events_phy",
        "outbound_pci_stalled_rd",
        "outbound_pci_stalled_wr",
        "rx_icrc_encapsulated",
        "tx_pause_storm_warning_events",
        "tx_pause_storm_error_events",
        "module_high_temp",
        "rx_fcs_err_frames",
        "rx_total_discard_pkts",
        "tx_total_discard_pkts",
        "rx_crc_errors.nic",
        "rx_dropped.nic",
        "link_xon_rx.nic",
        "bw_in_allowance_exceeded",
        "bw_out_allowance_exceeded",
        "pps_allowance_exceeded",
        "conntrack_allowance_exceeded",
        "linklocal_allowance_exceeded",
        "rx_no_buffer_count",
        "tx_timeout",
        *(f"rx_prio{priority}_discards" for priority in PRIORITIES),
    }
)


def measure_statistics(interface: str, statistics: Mapping[str, int]) -> Iterator[Measurement]:
    """Return what is told of an interface's statistics."""
    for name, value in statistics.items():
        pause = PAUSES.get(name)
        if pause is not None:
            attributes: dict[str, str | int] = {
                semconv.NETWORK_INTERFACE_NAME: interface,
                semconv.NETWORK_IO_DIRECTION: pause.direction,
            }
            if pause.priority is not None:
                attributes[semconv.TRAINING_NIC_PRIORITY] = pause.priority
            if pause.is_time:
                time_s = value / USEC_PER_S
                yield Measurement(semconv.METRIC_TRAINING_NIC_PAUSE_TIME, time_s, attributes)
            else:
                yield Measurement(semconv.METRIC_TRAINING_NIC_PAUSE_FRAMES, value, attributes)
        elif name in EVENTS:
            yield Measurement(
                semconv.METRIC_TRAINING_NIC_EVENTS,
                value,
                {semconv.NETWORK_INTERFACE_NAME: interface, semconv.TRAINING_NIC_EVENT: name},
            )
