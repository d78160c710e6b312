"""TCP's own counters of the network namespaces that ranks are in, from /proc/<pid>/net.

They count every process there, and what no connection owns: segments sent again, timers that ran out, windows that
closed, connections that a full queue refused. Summed over the namespaces; one that goes away keeps what it had.

Source:
    /proc/net/snmp and /proc/net/netstat: a line of names, then one of values, by protocol; all since Linux 4.15.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rootwalk.instrumentation.semconv import TrainingTcpEvent

__all__ = ["TcpCounters", "parse_counters"]

EVENTS: Mapping[str, TrainingTcpEvent] = {
    "Tcp.RetransSegs": TrainingTcpEvent.RETRANSMITTED_SEGMENT,
    "TcpExt.TCPLostRetransmit": TrainingTcpEvent.LOST_RETRANSMISSION,
    "TcpExt.TCPTimeouts": TrainingTcpEvent.TIMEOUT,
    "TcpExt.TCPToZeroWindowAdv": TrainingTcpEvent.ZERO_WINDOW_SENT,
    "TcpExt.TCPZeroWindowDrop": TrainingTcpEvent.ZERO_WINDOW_DROP,
    "TcpExt.ListenDrops": TrainingTcpEvent.LISTEN_DROP,
}
FILES = ("net/snmp", "net/netstat")


def parse_counters(text: str) -> dict[TrainingTcpEvent, int]:
    """Return the counters that one of the files has; what is malformed is left out."""
    counts: dict[TrainingTcpEvent, int] = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        protocol, _, rest = names.partition(":")
        same, _, numbers = values.partition(":")
        if protocol != same:
            continue
        for name, value in zip(rest.split(), numbers.split(), strict=False):
            event = EVENTS.get(f"{protocol}.{name}")
            if event is not None and value.isascii() and value.isdigit():
                counts[event] = int(value)
    return counts


class TcpCounters:
    """Sums of what the namespaces have counted since each was first looked at.

    Args:
        proc: Folder that holds the processes.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._last: dict[int, dict[TrainingTcpEvent, int]] = {}
        self.sums: dict[TrainingTcpEvent, int] = {}

    def look(self, namespace: int, pids: Iterable[int | str]) -> None:
        """Add what one namespace has counted since the last look.

        Args:
            namespace: Its number.
            pids: Processes that are in it; the first that is there is asked.
        """
        for pid in pids:
            try:
                texts = [
                    (self._proc / str(pid) / file).read_text(encoding="ascii", errors="replace")
                    for file in FILES
                ]
            except OSError:
                continue  # gone
            now: dict[TrainingTcpEvent, int] = {}
            for text in texts:
                now.update(parse_counters(text))
            self._add(self._last.get(namespace, now), now)
            self._last[namespace] = now
            return

    def keep(self, namespaces: Iterable[int]) -> None:
        """Forget namespaces that are not among these; what they counted stays."""
        kept = set(namespaces)
        self._last = {number: last for number, last in self._last.items() if number in kept}

    def _add(
        self, before: Mapping[TrainingTcpEvent, int], now: Mapping[TrainingTcpEvent, int]
    ) -> None:
        for event, count in now.items():
            grown = max(count - before.get(event, count), 0)
            self.sums[event] = self.sums.get(event, 0) + grown
