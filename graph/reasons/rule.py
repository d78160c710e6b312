"""What a rule of one reason is: layer, owner, evidence, look-alikes, action; and the parts that several rules share."""

from __future__ import annotations

from dataclasses import dataclass

from rootwalk.graph.reasons.codes import Reason, Signal


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason.

    `magnitude` is the signal whose excess explains the seconds, unless the end of a chain names another; `coverage` the
    weight of each sensor that decides it; `excludes` pairs a look-alike with the signal whose silence excludes it, the
    better signal first. How likely it is beforehand is in `priors.toml`.
    """

    reason: Reason
    layer: str | None
    owner: str
    title: str
    magnitude: Signal
    coverage: tuple[tuple[str, float], ...]
    excludes: tuple[tuple[str, Signal, str], ...]
    action_code: str
    action: str


# Weight of the scheduler sensor where clocks and interrupts could also decide.
SCHED_ONLY = (("sched", 1.0),)
# Without a clock a CPU that executes more slowly looks like more work: never a high confidence.
SCHED_AND_CLOCKS = (("sched", 0.65), ("cpu_frequency", 0.25), ("interrupts", 0.1))

# Of reasons that counters tell out of another one; whichever sensor sends the counter. One that counts no less than
# those of the reason that it comes out of: taking the sensor away never makes the verdict surer.
BY_COUNTER = (("sched", 0.3), ("counter", 0.7))

# Look-alikes with the signals that are quiet when they are not it.
NO_STRANGER = ("CPU_CONTENTION", Signal.FOREIGN, "other processes {value:.3f} s")
NO_QUEUE = ("THREAD_OVERSUBSCRIPTION", Signal.OWN, "own threads {value:.3f} s")
NO_LIMIT = (
    ("CPU_QUOTA", Signal.THROTTLED, "throttled {value:z.2f} s"),
    ("CPU_QUOTA", Signal.IDLE, "CPU idle while runnable {value:.3f} s"),
)
NO_WORK = ("WORK_IMBALANCE", Signal.RUNNING, "own running time {value:+.3f} s")
NO_INTERRUPTS = (
    "IRQ_SOFTIRQ",
    Signal.INTERRUPT,
    "interrupts on its CPU {value:+.3f} s",
)
NO_GC = ("PY_GC", Signal.GC, "garbage collection {value:+.3f} s")
NO_DECODING = ("DATALOADER_CPU", Signal.LOADER_CPU, "loader workers' CPU time {value:+.3f} s")

NOT_ON_CPU = (NO_STRANGER, *NO_LIMIT, NO_WORK, NO_GC)
