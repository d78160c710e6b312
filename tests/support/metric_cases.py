"""Made-up metrics of a job without steps, as arrays: quantities that are alike everywhere until a test changes one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.metrics.rules import RULES
from rootwalk.graph.metrics.table import MetricCase, Place, Quantity

BINS = 40
WIDTH_NS = 30 * 10**9
# Mean of each quantity while all is well, and its standard deviation from bin to bin and from place to place.
USUAL: Mapping[str, tuple[float, float]] = {
    "gpu_busy": (0.96, 0.01),
    "gpu_power": (600.0, 8.0),
    "gpu_clock": (1.98e9, 5e6),
    "thermal": (0.0, 0.0),
    "gpu_heat": (62.0, 1.5),
    "network": (4e9, 1e8),
    "steal": (0.0, 0.0),
    "cpu_busy": (0.30, 0.02),
    "disk_busy": (0.05, 0.02),
    "disk_reads": (0.05, 0.02),
    "drops": (0.1, 0.1),
}


class Metrics:
    """Quantities of some hosts with some GPUs each; arrays are (places, bins) and may be changed."""

    def __init__(self, hosts: int = 4, gpus: int = 8, bins: int = BINS, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        names = [f"node{h}" for h in range(hosts)]
        self.hosts = [Place(name) for name in names]
        self.gpus = [Place(name, str(g)) for name in names for g in range(gpus)]
        self.values = {}
        for rule, (mean, spread) in USUAL.items():
            shape = (len(self.places(rule)), 1)
            each = draw.normal(mean, spread / 2, shape)
            self.values[rule] = np.abs(each + draw.normal(0, spread, (shape[0], bins)))

    def places(self, rule: str) -> list[Place]:
        return self.gpus if RULES[rule].component == "gpu" else self.hosts

    def without(self, *rules: str) -> Metrics:
        for rule in rules:
            del self.values[rule]
        return self

    def case(self) -> MetricCase:
        parts = {"disk_busy": "nvme0n1", "disk_reads": "nvme0n1", "drops": "eth0"}
        quantities = {
            rule: Quantity(
                rule,
                RULES[rule].sources[0].metric,
                tuple(self.places(rule)),
                tuple(parts.get(rule, "") for _ in self.places(rule)),
                values,
            )
            for rule, values in self.values.items()
        }
        return MetricCase(JobKey("j1", 0, None), 10**18, WIDTH_NS, quantities)
