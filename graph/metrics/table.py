"""What was read of a store's metrics, as arrays; knows no store."""

from __future__ import annotations

from dataclasses import dataclass

from rootwalk.graph.columns import FloatArray, SensorRow
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.model import DataQuality

__all__ = ["MetricCase", "Place", "Quantity"]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something was measured: a host by its name, and a device of it, "" for the host itself."""

    host: str
    device: str = ""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity at all places that tell it.

    `values` are (places, bins), in the unit of its rule, NaN where nothing was told; `parts` is what was largest
    inside each place, "" where there are no parts. `metric` is its name on the wire.
    """

    rule: str
    metric: str
    places: tuple[Place, ...]
    parts: tuple[str, ...]
    values: FloatArray


@dataclass(frozen=True, slots=True)
class MetricCase:
    """What a store has of a job without steps; bins are `width_ns` long and begin at `start_unix_ns`.

    `sensors` are the states that our agents told, none without an agent.
    """

    key: JobKey
    start_unix_ns: int
    width_ns: int
    quantities: dict[str, Quantity]
    sensors: tuple[SensorRow, ...] = ()
    quality: tuple[DataQuality, ...] = ()
    is_sound: bool = True

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host that told anything, by name."""
        return tuple(sorted({p.host for q in self.quantities.values() for p in q.places}))
