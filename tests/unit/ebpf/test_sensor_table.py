"""The table of sensors in the documentation knows every sensor that is read, and no other."""

from __future__ import annotations

from pathlib import Path

import yaml

from rootwalk.ebpf.readers import KINDS

REGISTRY = Path(__file__).resolve().parents[3] / "instrumentation" / "registry"
BEFORE = {"instrumentation", "sched", "procfs", "cgroup", "stacks"}


def test_every_sensor_has_its_row() -> None:
    rows = yaml.safe_load((REGISTRY / "sensors.yaml").read_text(encoding="utf-8"))["sensors"]
    told = [row["sensor"] for row in rows]
    assert len(told) == len(set(told))
    assert set(told) == BEFORE | {kind.sensor for kind in KINDS}
