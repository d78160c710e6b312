"""What each reason code of the contract means, and what it is taken for: words for the documents, a row a code.

The evidence, what is excluded and the action are the rules' own; here is only what no rule needs to decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["MEANINGS", "Meaning"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a code means, and what looks like it and how it differs."""

    means: str
    looks_like: str


MEANINGS: Final[dict[str, Meaning]] = {
    "CPU_CONTENTION": Meaning(
        "Another process, named with its pid and control group, ran on the CPU that a rank's thread wanted.",
        "`THREAD_OVERSUBSCRIPTION` (its own threads queue), `CPU_QUOTA` (the CPU was idle), `CPU_STEAL` (hypervisor).",
    ),
    "CPU_STEAL": Meaning(
        "The hypervisor gave the CPU to another machine while the rank counted as running.",
        "`WORK_IMBALANCE`: the same running time, but the host's stolen time did not grow.",
    ),
    "CPU_FREQ": Meaning(
        "The rank's CPU takes longer for the same instructions: a low clock, somebody on its core, less of a host.",
        "`WORK_IMBALANCE`: more running time at the usual clock, and the same little work takes no longer.",
    ),
    "IRQ_SOFTIRQ": Meaning(
        "Interrupts and their follow-up work had the CPU while the rank's thread counted as running.",
        "`WORK_IMBALANCE`: the running time is the rank's own.",
    ),
    "KERNEL_LOCK": Meaning(
        "Blocked or spinning in the kernel on a lock, mostly of the memory map; the holder is named where it is known.",
        "`MEM_RECLAIM` (looking for memory), `PY_GIL` (a lock of Python's, not of the kernel's).",
    ),
    "MEM_RECLAIM": Meaning(
        "The rank looked for free memory itself: direct reclaim or compaction.",
        "`SWAP` (waits for pages from disk), `KERNEL_LOCK`.",
    ),
    "SWAP": Meaning(
        "The rank waited for memory of its own that had been swapped out.",
        "`DATALOADER_IO`: major faults that read a file are input, not swap.",
    ),
    "NUMA_REMOTE": Meaning(
        "The rank's memory comes from another NUMA node than before, so the same work takes longer.",
        "`CPU_FREQ` (a slow CPU), `WORK_IMBALANCE`.",
    ),
    "OOM_KILL": Meaning(
        "The kernel killed a process of the rank for memory; others did its work, or the job ended by it.",
        "`RANK_GONE`: the rank itself is gone, for whatever reason.",
    ),
    "RANK_KILLED": Meaning(
        "A signal from outside ended a rank, and the job failed by it; the sender is named where it was seen.",
        "`OOM_KILL` (the kernel, for memory), `RANK_CRASHED` (a signal for what the program itself did).",
    ),
    "THREAD_OVERSUBSCRIPTION": Meaning(
        "The rank's own threads or children queue for its cores.",
        "`CPU_CONTENTION`: somebody else's process. `CPU_QUOTA`: nobody ran.",
    ),
    "CPU_AFFINITY": Meaning(
        "The rank's mask or cpuset is far smaller than its work, or came to another rank's cores; others are idle.",
        "`THREAD_OVERSUBSCRIPTION`: as many threads on all the cores that there are.",
    ),
    "CPU_QUOTA": Meaning(
        "Ready to run, and the control group's CPU limit held it back: its CPU was idle, or had whoever came by.",
        "`CPU_CONTENTION`: then another process ran there.",
    ),
    "MONITOR_SELF": Meaning(
        "Rootwalk or another monitor ran in the rank's place.",
        "`CPU_CONTENTION`, of which it is the case that the observer owns.",
    ),
    "PROCESS_SUSPENDED": Meaning(
        "Stopped by a signal, a freezer or a debugger; the sender is named where it was seen.",
        "`CPU_QUOTA`: held back for parts of a second, again and again.",
    ),
    "UNKNOWN_HOST": Meaning(
        "The host lost the time, and the sensors that are there cannot say how.",
        "Every other host reason: the line `not seen` lists the sensors that would tell.",
    ),
    "PY_GC": Meaning(
        "Python's garbage collector stopped the rank, at the same steps or at random ones.",
        "`WORK_IMBALANCE`: running time without collections in it.",
    ),
    "PY_GIL": Meaning(
        "The main thread waits for the interpreter lock that another thread of its process holds.",
        "`THREAD_OVERSUBSCRIPTION`: threads queue for a core, not for the lock.",
    ),
    "DATALOADER_CPU": Meaning(
        "Preparing samples takes CPU time, in the main thread or in loader workers that it waits for.",
        "`DATALOADER_IO`: the workers wait for files and compute no more than before.",
    ),
    "BLOCKING_LOG": Meaning(
        "The main thread is blocked in writing its output: a file, or a pipe or socket that nobody empties.",
        "`CKPT_IO` (a checkpoint), `EXTERNAL_SERVICE` (an answer that is awaited).",
    ),
    "WORK_IMBALANCE": Meaning(
        "The rank runs more of its own work, and nobody is in its way.",
        "`CPU_FREQ`, `CPU_STEAL`, `IRQ_SOFTIRQ`: running time that is not its own work. Where no clock can be read, "
        "as in most virtual machines, only the same little work of each step tells: never more than medium confidence.",
    ),
    "SEQ_IMBALANCE": Meaning(
        "Some micro-batches take all stages longer: the work follows the data, no worker is bad.",
        "`SLOW_COMPUTE`: one worker is slower at every micro-batch.",
    ),
    "STAGE_IMBALANCE": Meaning(
        "One pipeline stage has more work than the others; no worker is bad.",
        "`SLOW_COMPUTE`: one worker is slower than the others of its stage.",
    ),
    "EXPERT_IMBALANCE": Meaning(
        "The router sends more tokens to some experts than to others, so their ranks take longer.",
        "`SLOW_COMPUTE`: the same work takes longer. `NOT_JOINED`: a host fault.",
    ),
    "ACCIDENTAL_SYNC": Meaning(
        "The host waits for the device in the hot path, so the device runs dry: `.item()`, printing a tensor.",
        "`LAUNCH_BOUND`: the host does not wait, it cannot launch fast enough.",
    ),
    "UNEVEN_EVAL": Meaning(
        "Evaluation or logging happens on some ranks while the others wait.",
        "`WORK_IMBALANCE`: more of the same work, not work of another phase.",
    ),
    "COLD_START": Meaning(
        "Imports, first touch, warm-up: all ranks take longer in the first steps than later.",
        "`GLOBAL_SLOW`, later in the job; `COMPILE`, when it comes back.",
    ),
    "RANK_GONE": Meaning(
        "A rank's process has ended, and the others wait for it.",
        "`NOT_JOINED`: the process lives and does not call.",
    ),
    "RANK_CRASHED": Meaning(
        "A rank's own program failed first, and the job by it: an exception, an exit code, a crash signal.",
        "`RANK_KILLED` (ended from outside), `OOM_KILL`; ranks that only lost their connection to it are victims.",
    ),
    "FORK_DEADLOCK": Meaning(
        "A forked child waits for a lock that a thread of its parent held at the fork, and its parent waits for it.",
        "`NOT_JOINED`, which is said where stacks are missing, or children run, read, wait for work or have ended.",
    ),
    "NOT_JOINED": Meaning(
        "A host never issued the collective that the others wait in, and nothing says why.",
        "`GPU_HANG` (issued, and the device does not end it), `RANK_GONE`.",
    ),
    "RELEASE_REGRESSION": Meaning(
        "All ranks are slower since a restart that brought other versions.",
        "`GLOBAL_SLOW`: slower without a restart, or with the same versions.",
    ),
    "EXTERNAL_SERVICE": Meaning(
        "Blocked on a connection that leads outside the job: DNS, object store, tracker; the port is named.",
        "`DATALOADER_IO`: a file system, also a remote one.",
    ),
    "COMPILE": Meaning(
        "Graphs are compiled again in the middle of training: shapes or guards change.",
        "`COLD_START`: the first compilation.",
    ),
    "ALLOCATOR": Meaning(
        "The device allocator frees its cache and asks the driver again, which waits for the device.",
        "`ACCIDENTAL_SYNC`: a wait that the script asks for.",
    ),
    "LAUNCH_BOUND": Meaning(
        "Many small kernels: the host cannot launch them as fast as the device ends them.",
        "`ACCIDENTAL_SYNC`, `CPU_CONTENTION`: the launches are late for another reason.",
    ),
    "OVERLAP_LOST": Meaning(
        "Communication that was hidden behind computation is exposed now.",
        "`NET_CONGESTION`: the communication itself takes longer.",
    ),
    "COLLECTIVE_MISMATCH": Meaning(
        "Ranks called another operation, size or type under one sequence number.",
        "`NOT_JOINED`: no call at all.",
    ),
    "COLLECTIVE_DEADLOCK": Meaning(
        "Groups were called in opposite orders, so that they wait for each other in a circle.",
        "`NOT_JOINED`: a wait that ends at one rank and not in a circle.",
    ),
    "TRANSPORT_FALLBACK": Meaning(
        "The collective library chose a slower transport or algorithm than before.",
        "`NIC_RATE` (the link is slower), `P2P_OFF`.",
    ),
    "PROXY_STARVED": Meaning(
        "The library's progress thread did not get its CPU, so transfers stood still.",
        "`NET_CONGESTION`: the thread ran, the network did not.",
    ),
    "GPU_THERMAL": Meaning(
        "The GPU's clock is held down for heat; clocks elsewhere did not fall.",
        "`GPU_POWER`, `GPU_CLOCK_PIN`: the same clock, another reason that the driver tells.",
    ),
    "GPU_POWER": Meaning(
        "The GPU's clock is held down by its power limit or a power brake.",
        "`GPU_THERMAL`, `GPU_CLOCK_PIN`.",
    ),
    "GPU_CLOCK_PIN": Meaning(
        "A setting pins the GPU's clock below that of its peers.",
        "`GPU_THERMAL`, `GPU_POWER`.",
    ),
    "GPU_SILENT_SLOW": Meaning(
        "Slower kernels at equal clocks and inputs, with every device sensor present and clean.",
        "`SLOW_COMPUTE`, which is said where a device sensor is missing.",
    ),
    "SLOW_COMPUTE": Meaning(
        "A worker takes longer for the same work than its peers, and no sensor says why.",
        "`STAGE_IMBALANCE`, `SEQ_IMBALANCE`: more work, and no worker is bad.",
    ),
    "GPU_ECC": Meaning(
        "The GPU corrects or reports memory errors, or remaps rows.",
        "Xid lines after the job has stopped, or the same on all ranks: that is cleaning up.",
    ),
    "GPU_LOST": Meaning(
        "The GPU fell off the bus or does not answer.",
        "`GPU_HANG`: it answers, and a kernel does not end.",
    ),
    "GPU_HANG": Meaning(
        "A device does not end a kernel that its peers have ended, or that its host waits for.",
        "`NOT_JOINED`: the host never launched it. A utilisation of 100 % says nothing: waiting spins.",
    ),
    "GPU_COTENANT": Meaning(
        "The GPU computes for another process too.",
        "`SLOW_COMPUTE`: alone, and slower.",
    ),
    "PCIE_DEGRADED": Meaning(
        "The link between GPU and host runs below its width or generation.",
        "An idle link that saves power: it counts only while the job moves data.",
    ),
    "P2P_OFF": Meaning(
        "Direct access between the GPUs of a host is off, so copies go through the host.",
        "`NVLINK`: access is on, the links are bad.",
    ),
    "NVLINK": Meaning(
        "NVLinks are down or count errors.",
        "`P2P_OFF`, `PCIE_DEGRADED`. Errors without slow transfers are no cause.",
    ),
    "UNKNOWN_GPU": Meaning(
        "Time was lost on the device, and device sensors are missing.",
        "Every other device reason.",
    ),
    "NET_CONGESTION": Meaning(
        "Transfers are slower, packets queue, and none is lost.",
        "`NET_LOSS` (lost packets), `NIC_RATE` (one end is slow, with all its peers).",
    ),
    "NET_LOSS": Meaning(
        "Transfers are slower, and packets are lost or sent again.",
        "`NET_CONGESTION`; a few retransmissions in every healthy job.",
    ),
    "NET_FLAP": Meaning(
        "A link went down and came up again.",
        "`NIC_RATE`: it came up slower and stays so.",
    ),
    "UNKNOWN_NET": Meaning(
        "Transfers take longer once all ranks have come, and no counter says why.",
        "A late rank: then the collective waits, and the transfer is as short as ever.",
    ),
    "NIC_RATE": Meaning(
        "One end of a link runs below its rate, and all its flows are slow.",
        "`NET_CONGESTION`: only flows over one path are slow.",
    ),
    "DATALOADER_IO": Meaning(
        "Input is blocked on one host's reads; file system and device are named.",
        "`STORAGE_SLOW` (on many hosts at once), `DATALOADER_CPU`.",
    ),
    "CKPT_IO": Meaning(
        "A checkpoint is blocked on one host's writes.",
        "`STORAGE_SLOW`, `BLOCKING_LOG`.",
    ),
    "STORAGE_SLOW": Meaning(
        "Reads or writes are slow on many hosts at once.",
        "`DATALOADER_IO`, `CKPT_IO`: on one host.",
    ),
    "GLOBAL_SLOW": Meaning(
        "All ranks are slower against their own history, and none arrives late; ranks that always share CPUs wait "
        "longer for one another.",
        "Any cause of one rank: then somebody is late.",
    ),
}
