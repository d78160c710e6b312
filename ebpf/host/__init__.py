"""Readers that need no BPF: what /proc, /sys and control groups tell of this host and of each rank."""

from __future__ import annotations

from rootwalk.ebpf.host.affinity import AffinityReader
from rootwalk.ebpf.host.cgroup_memory import CgroupMemoryReader
from rootwalk.ebpf.host.cpu_frequency import CpuFrequencyReader
from rootwalk.ebpf.host.cpu_time import CpuTimeReader
from rootwalk.ebpf.host.disks import DisksReader
from rootwalk.ebpf.host.nic_counters import NicCountersReader
from rootwalk.ebpf.host.psi import PsiReader
from rootwalk.ebpf.host.rdma_counters import RdmaCountersReader
from rootwalk.ebpf.host.vmstat import VmstatReader
from rootwalk.ebpf.reader import Reader

__all__ = ["HOST_KINDS"]

HOST_KINDS: tuple[type[Reader], ...] = (
    PsiReader,
    CpuTimeReader,
    CpuFrequencyReader,
    AffinityReader,
    VmstatReader,
    CgroupMemoryReader,
    DisksReader,
    NicCountersReader,
    RdmaCountersReader,
)
