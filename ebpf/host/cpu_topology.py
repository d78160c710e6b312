"""How this machine's CPUs belong together: which share a core, a package, a memory node.

Read once: it changes only when CPUs are switched on or off, which a new agent sees. One to three files a CPU, about
20 us each CPU.

Source: Documentation/admin-guide/cputopology.rst; Documentation/ABI/stable/sysfs-devices-node.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rootwalk.ebpf.kernel_files import parse_list, read_number, read_text

__all__ = ["CpuTopology"]


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """CPUs, by number.

    Attributes:
        online: CPUs that are switched on; empty when not known.
        core_by_cpu: The lowest CPU of the core that each is a hardware thread of.
        package_by_cpu: The package (socket) that each is in.
        cpus_by_node: CPUs by memory node.
    """

    online: frozenset[int]
    core_by_cpu: dict[int, int]
    package_by_cpu: dict[int, int]
    cpus_by_node: dict[int, frozenset[int]]

    @classmethod
    def read(cls, root: Path) -> CpuTopology:
        """Read it; what the kernel does not tell is left out."""
        folder = f"{root}/sys/devices/system"
        online = parse_list(read_text(f"{folder}/cpu/online"))
        cores, packages = {}, {}
        for cpu in online:
            topology = f"{folder}/cpu/cpu{cpu}/topology"
            siblings = parse_list(read_text(f"{topology}/thread_siblings_list"))
            if cpu in siblings:
                cores[cpu] = min(siblings)
            package = read_number(f"{topology}/physical_package_id")
            if package is not None and package >= 0:  # -1 on virtual machines that do not say
                packages[cpu] = package
        nodes = {}
        for node in parse_list(read_text(f"{folder}/node/online")):
            nodes[node] = parse_list(read_text(f"{folder}/node/node{node}/cpulist"))
        return cls(online, cores, packages, nodes)

    def cores(self, cpus: frozenset[int]) -> frozenset[int] | None:
        """Return the cores that some CPUs are on; None when one of them is not known."""
        if not cpus <= self.core_by_cpu.keys():
            return None
        return frozenset(self.core_by_cpu[cpu] for cpu in cpus)

    def nodes(self, cpus: frozenset[int]) -> frozenset[int]:
        """Return the memory nodes that some CPUs are near to."""
        return frozenset(node for node, near in self.cpus_by_node.items() if near & cpus)
