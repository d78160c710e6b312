"""The ways between ranks that are each in a network of their own: lossy, slow, long, interrupted.

    rank 0: eth0 ──── a cable of the kernel ──── eth0: rank 1        loss, a rate, a link that goes down
            eth1 ────        another        ──── eth1                the same where nobody waits for it
            tun0 ──▶ packets wait in this process ──▶ tun0           a delay

Nothing of it is in the training code, and every packet is the job's own, but for those of `Stranger`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gauntlet.case import Effect
from gauntlet.faults.borrowed import Borrowed
from rootwalk.graph.commands.demo_faults import Target
from support.namespaces import INTERFACE, Machine, plug_in, require_namespaces, two_machines
from support.tun_cable import NAME, SlowCable, slow_cable

__all__ = ["Delay", "Flap", "Loss", "Rate"]

SPARE = "eth1"
SPARE_ADDRESSES = ("10.79.0.1", "10.79.0.2")
# Nobody else is in these networks.
MASTER_PORT, STRANGER_PORT = 29511, 29600
STRANGER = Path(__file__).with_name("other_flow.py")
# Classic BPF (include/uapi/linux/filter.h): loads, one of them SKF_AD_RANDOM, jumps, and a verdict of pkt_cls.h there.
LOAD_WORD, LOAD_HALF, IF_EQUAL, IF_AT_LEAST, RETURN = 0x20, 0x28, 0x15, 0x35, 0x06
RANDOM = 0x1_0000_0000 - 0x1000 + 56
PASS, DROP = 0, 2
# Of a packet as it comes in: 14 bytes of Ethernet, 20 of IPv4, then the ports.
SOURCE_PORT, PEER_PORT = 34, 36
MTU_BYTES = 65_000


def drop_program(ratio: float, port: int | None) -> str:
    """Return a program for `tc` that drops packets at random: all alike, or those from and to a port.

    >>> drop_program(0.5, None)
    '4,32 0 0 4294963256,53 1 0 2147483648,6 0 0 2,6 0 0 0'
    """
    limit = int(ratio * 2**32)
    lines = [(LOAD_WORD, 0, 0, RANDOM), (IF_AT_LEAST, 1, 0, limit)]
    lines += [(RETURN, 0, 0, DROP), (RETURN, 0, 0, PASS)]
    if port is not None:
        # To the random part when a port matches, else past it to its end.
        of_port = [(LOAD_HALF, 0, 0, SOURCE_PORT), (IF_EQUAL, 2, 0, port)]
        of_port += [(LOAD_HALF, 0, 0, PEER_PORT), (IF_EQUAL, 0, 3, port)]
        lines = of_port + lines
    return ",".join([str(len(lines)), *(" ".join(map(str, line)) for line in lines)])


@contextmanager
def two_networks() -> Iterator[tuple[Machine, Machine]]:
    """Make them, with the cables between them."""
    require_namespaces()
    with two_machines() as (one, other):
        plug_in(dict(zip((one, other), SPARE_ADDRESSES, strict=True)), SPARE)
        yield one, other


class Apart:
    """Both ranks of a job in networks of their own; what is done to the way between them is a subclass's.

    Args:
        where: `job` (the way that the ranks use) or `spare` (one beside it, which a stranger uses).
    """

    def __init__(self, where: str = "job") -> None:
        self._where = where
        self._made = Borrowed()
        self._machines: tuple[Machine, ...] = ()
        self._rank = 0
        self._strangers: list[subprocess.Popen[bytes]] = []

    @property
    def _interface(self) -> str:
        return INTERFACE if self._where == "job" else SPARE

    def prepare(self, rank: int, folder: Path) -> None:
        """Make the networks."""
        self._rank = rank
        self._machines = self._made.borrow(two_networks())

    def environment(self) -> dict[str, str]:
        """Return where the ranks are, and how they find each other."""
        return {
            "GAUNTLET_NETWORKS": ",".join(str(machine.holder) for machine in self._machines),
            "WORLD_SIZE": str(len(self._machines)),
            "LOCAL_WORLD_SIZE": str(len(self._machines)),
            "MASTER_ADDR": self._machines[0].address,
            "MASTER_PORT": str(MASTER_PORT),
            "GLOO_SOCKET_IFNAME": INTERFACE,
        }

    def options(self) -> list[str]:
        """Nothing in the training code."""
        return []

    def stop(self) -> None:
        """Take the networks away, and whoever is in them."""
        for stranger in self._strangers:
            stranger.kill()
            stranger.wait()
        self._strangers.clear()
        self._made.close()

    def pause(self) -> None:
        """Let the stranger rest: what is in the way of its packets is nothing to others."""
        assert self._strangers
        for stranger in self._strangers:
            stranger.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the stranger go on."""
        for stranger in self._strangers:
            stranger.send_signal(signal.SIGCONT)

    def _tell(self, machine: Machine, *words: str) -> None:
        subprocess.run(machine.command(*words), check=True)

    def _ask(self, machine: Machine, *words: str) -> list[dict[str, Any]]:
        done = subprocess.run(machine.command(*words), check=True, stdout=subprocess.PIPE)
        answer: list[dict[str, Any]] = json.loads(done.stdout)
        return answer

    def _start_stranger(self, address: str) -> None:
        """Let a process that is no part of the job send all it can through a cable, a little at a time."""
        for machine, role in zip(self._machines, ("send", "receive"), strict=True):
            command = machine.command(
                sys.executable, str(STRANGER), role, address, str(STRANGER_PORT)
            )
            self._strangers.append(subprocess.Popen(["nice", *command]))


class Loss(Apart):
    """Packets are lost on their way, both ways.

    Args:
        ratio: Of them.
        flow: `all` (every packet on the way of the job) or `other` (those of a stranger's connection on it).
        least: Packets lost that there have to be.
    """

    def __init__(self, ratio: float = 0.05, flow: str = "all", least: int = 20) -> None:
        super().__init__()
        self._ratio, self._flow, self._least = ratio, flow, least

    def start(self, target: Target) -> None:
        """Begin to drop."""
        port = None
        if self._flow == "other":
            port = STRANGER_PORT
            self._start_stranger(self._machines[1].address)
        program = drop_program(self._ratio, port)
        for machine in self._machines:
            self._tell(machine, "tc", "qdisc", "add", "dev", INTERFACE, "clsact")
            rule = ["tc", "filter", "add", "dev", INTERFACE, "ingress", "bpf", "direct-action"]
            self._tell(machine, *rule, "bytecode", program)

    def effect(self) -> Effect:
        """Return the kernel's count of what it dropped."""
        asked = ("tc", "-s", "-j", "qdisc", "show", "dev", INTERFACE)
        lost = sum(
            queue["drops"]
            for machine in self._machines
            for queue in self._ask(machine, *asked)
            if queue["kind"] == "clsact"
        )
        return Effect(lost, "packets dropped", self._least)


class Rate(Apart):
    """A link passes no more than so much, both ways.

    Args:
        rate: As `tc` takes it.
        where: As for all.
        least: How often a packet has to have waited for its turn.
    """

    def __init__(self, rate: str = "400mbit", where: str = "job", least: int = 100) -> None:
        super().__init__(where)
        self._rate, self._least = rate, least

    def start(self, target: Target) -> None:
        """Begin to hold back."""
        limit = ["rate", self._rate, "burst", "256kb", "latency", "100ms"]
        for machine in self._machines:
            self._tell(machine, "tc", "qdisc", "add", "dev", self._interface, "root", "tbf", *limit)
        if self._where == "spare":
            self._start_stranger(SPARE_ADDRESSES[1])

    def effect(self) -> Effect:
        """Return the kernel's count of packets that had to wait."""
        asked = ("tc", "-s", "-j", "qdisc", "show", "dev", self._interface)
        held = sum(
            queue["overlimits"]
            for machine in self._machines
            for queue in self._ask(machine, *asked)
            if queue["kind"] == "tbf"
        )
        return Effect(held, "times held back", self._least)


class Delay(Apart):
    """A way that takes longer, both ways.

    Args:
        before_s: At first.
        after_s: Once it is started.
        least_s: How long all packets together have to have waited since then, s.
    """

    def __init__(self, before_s: float, after_s: float, least_s: float = 1.0) -> None:
        super().__init__()
        self._before_s, self._after_s, self._least_s = before_s, after_s, least_s
        self._cable: SlowCable | None = None
        self._waited_s = 0.0

    def prepare(self, rank: int, folder: Path) -> None:
        """Make the networks and the way."""
        super().prepare(rank, folder)
        one, other = self._machines
        self._cable = self._made.borrow(slow_cable((one, other), self._before_s, MTU_BYTES))

    def environment(self) -> dict[str, str]:
        """Return where the ranks are; they use this way."""
        assert self._cable is not None
        ways = {"MASTER_ADDR": self._cable.addresses[0], "GLOO_SOCKET_IFNAME": NAME}
        return super().environment() | ways

    def start(self, target: Target) -> None:
        """Make it longer."""
        assert self._cable is not None
        self._waited_s = self._cable.waited_s
        self.resume()

    def resume(self) -> None:
        """Make it longer."""
        assert self._cable is not None
        self._cable.delay_s = self._after_s

    def pause(self) -> None:
        """Make it as long as at first."""
        assert self._cable is not None
        self._cable.delay_s = self._before_s

    def effect(self) -> Effect:
        """Return how long packets have waited since then, by the clock of who held them."""
        assert self._cable is not None
        return Effect(self._cable.waited_s - self._waited_s, "s of waiting packets", self._least_s)


class Flap(Apart):
    """A link goes down and comes up, again and again.

    Args:
        down_s: For so long.
        every_s: So often.
        where: As for all.
        least: Changes of the carrier that there have to be, at one end.
    """

    def __init__(
        self, down_s: float = 0.3, every_s: float = 2.0, where: str = "job", least: int = 4
    ) -> None:
        super().__init__(where)
        self._down_s, self._every_s, self._least = down_s, every_s, least
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._before = 0

    def start(self, target: Target) -> None:
        """Begin."""
        self._before = self._changes()
        self.resume()

    def resume(self) -> None:
        """Pull at it, in a thread."""
        self._over.clear()
        self._thread = threading.Thread(target=self._pull, name="flapping link")
        self._thread.start()

    def _pull(self) -> None:
        machine = self._machines[self._rank]
        while not self._over.is_set():
            self._tell(machine, "ip", "link", "set", self._interface, "down")
            self._over.wait(self._down_s)
            self._tell(machine, "ip", "link", "set", self._interface, "up")
            self._over.wait(self._every_s - self._down_s)

    def _changes(self) -> int:
        asked = ("ip", "-j", "-s", "-s", "link", "show", "dev", self._interface)
        told = self._ask(self._machines[self._rank], *asked)
        return int(told[0]["stats64"]["tx"]["carrier_changes"])

    def effect(self) -> Effect:
        """Return the kernel's count of changes of the carrier."""
        return Effect(self._changes() - self._before, "changes of the carrier", self._least)

    def pause(self) -> None:
        """Leave it up."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def stop(self) -> None:
        """Leave it up, and take the networks away."""
        self.pause()
        super().stop()
