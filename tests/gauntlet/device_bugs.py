"""Bugs in what ranks do with their devices: of a real GPU, and of one that a stand-in plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gauntlet.bugs import Bug, Work
from gauntlet.stand_in_device import StandInDevice
from gauntlet.stand_in_nccl import StandInNccl, register_backend


class Synchronise(Bug):
    """Reads a number from the GPU `times` times before each forward pass, as one does to print or to compare it."""

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Read."""
        number = tokens.sum()
        for _ in range(int(self.settings["times"])):
            number.item()
        return True


class ThrashAllocator(Bug):
    """Gives memory of the GPU back and asks for it again: `times` blocks of `bytes` before each forward pass."""

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Allocate and free."""
        for _ in range(int(self.settings["times"])):
            torch.empty(int(self.settings["bytes"]), dtype=torch.uint8, device=tokens.device)
            torch.cuda.empty_cache()
        return True


class SmallKernels(Bug):
    """Launches `times` kernels of a few numbers before each forward pass: the GPU waits for the host."""

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Launch."""
        few = torch.zeros(8, device=tokens.device)
        for _ in range(int(self.settings["times"])):
            few += 1.0
        return True


class UseDevice(Work):
    """Gives a device work before each forward pass and waits for it.

    A stand-in, by a scenario of each rank (`scenario`.RANK), in the library `runtime`. Where the file `host`.RANK
    exists, the rank also runs forward passes of its own on the host, as `work` does.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        scenario = Path(f"{self.settings['scenario']}.{self.rank}")
        transfers = self.settings.get("transfers") == "yes"
        self._device = StandInDevice(self.settings["runtime"], scenario, transfers=transfers)
        self._host = Path(f"{self.settings['host']}.{self.rank}")

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Enqueue, and wait."""
        if getattr(self, "_inside", False):
            return False
        self._device.work()
        return super().in_forward(model, tokens) if self._host.exists() else True


class SendOverNccl(Work):
    """What ranks send to each other also takes the time of a stand-in of NCCL, in the folder `libraries`.

    What it plays is told by a scenario of each rank (`scenario`.RANK). Once the file `again` exists, the rank makes its
    communicator anew, as after a restart in place; where `host`.RANK exists, it also runs forward passes of its own.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        libraries, scenario = (Path(self.settings[key]) for key in ("libraries", "scenario"))
        self._nccl = StandInNccl(
            libraries, scenario.with_suffix(f".{self.rank}"), self.rank, self.world_size
        )
        self.backend = register_backend(self._nccl)
        self._again, self._is_anew = Path(self.settings["again"]), False
        self._host = Path(f"{self.settings['host']}.{self.rank}")

    def in_forward(self, model: Any, tokens: torch.Tensor) -> bool:
        """Make the communicator anew, once, when it is time to."""
        if getattr(self, "_inside", False):
            return False
        is_time = not self._is_anew and self._again.exists()
        if is_time:
            self._nccl.make_anew()
            self._is_anew = True
        is_at_work = self._host.exists() and super().in_forward(model, tokens)
        return is_time or is_at_work


DEVICE_BUGS: dict[str, type[Bug]] = {
    "use_device": UseDevice,
    "send_over_nccl": SendOverNccl,
    "synchronise": Synchronise,
    "thrash_allocator": ThrashAllocator,
    "small_kernels": SmallKernels,
}
