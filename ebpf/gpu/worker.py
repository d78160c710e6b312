"""The helper process that asks NVML: a line of JSON on its standard output for every look.

    python -m rootwalk.ebpf.gpu.worker INTERVAL_S        ends when its standard input does, or its parent

A process and not a thread: a thread inside a driver that hangs can be neither ended nor left, and the agent could not
end either; and what NVML does to the memory of its process is nobody else's. Words: `reason` is set when nothing can be
read at all, and the process ends after that line.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.garbage import collect_seldom
from rootwalk.ebpf.gpu.device import LOST, DeviceReading
from rootwalk.ebpf.gpu.nvml import Nvml, NvmlError

__all__ = ["GpuWorker", "main"]

# Devices come and go rarely; those that were lost may be back after a reset, which takes NVML to begin again.
LIST_INTERVAL_S, REOPEN_INTERVAL_S = 5.0, 15.0
PR_SET_PDEATHSIG = 1
_PACKAGE = {"PACKAGE_MISSING": Reason.NO_NVML_PACKAGE, "PACKAGE_WRONG": Reason.WRONG_NVML_PACKAGE}


class GpuWorker:
    """Owns NVML and what is known of each GPU; `readings` by UUID.

    Args:
        clock_s: Monotonic clock, s.

    Raises:
        NvmlError: When nothing can be read.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.clock_s = clock_s
        self.nvml = Nvml()
        self._driver = self.nvml.open()
        self.readings: dict[str, DeviceReading] = {}
        # By number: those that do not even tell their UUID.
        self._silent: list[tuple[int, str]] = []
        # By number, what was there last: a GPU that no longer tells its UUID is still that one.
        self._last: dict[int, DeviceReading] = {}
        self._next_list_s = 0.0
        self._opened_s = clock_s()
        self._list()
        if not self.readings and not self._silent:
            raise NvmlError("GPU_NOT_FOUND")

    def look(self) -> dict[str, Any]:
        """Return what every GPU says now."""
        now_s = self.clock_s()
        is_hurt = bool(self._silent) or any(one.is_lost for one in self.readings.values())
        if is_hurt and now_s - self._opened_s >= REOPEN_INTERVAL_S:
            self._reopen(now_s)
        if now_s >= self._next_list_s:
            self._list()
        peers = [one.device for one in self.readings.values()]
        for reading in self.readings.values():
            reading.look(peers)
        lost = self._find_lost()
        return {
            "driver": self._driver,
            "cpu_s": time.process_time(),
            "silent": self._silent,
            "devices": [_as_json(one) for one in (*self.readings.values(), *lost)],
            "errors": [[uuid, self._bus_of(uuid), code] for uuid, code in self.nvml.reported()],
        }

    def close(self) -> None:
        """Let go of the driver."""
        self.nvml.close()

    def _find_lost(self) -> list[DeviceReading]:
        """Return the GPUs that were there, and of which the driver says no more than that they are lost."""
        silent = [number for number, error in self._silent if error in LOST]
        lost = [self._last[number] for number in silent if number in self._last]
        lost = [one for one in lost if one.device.uuid not in self.readings]
        for one in lost:
            one.lose()
        return lost

    def _bus_of(self, uuid: str) -> str:
        last = {one.device.uuid: one for one in self._last.values()}
        reading = self.readings.get(uuid) or last.get(uuid)
        return "" if reading is None else reading.bus

    def _reopen(self, now_s: float) -> None:
        """Begin again, so that a GPU that was reset is found; handles from before are worth nothing."""
        self._opened_s = now_s
        self.nvml.close()
        self._driver = self.nvml.open()
        self.readings.clear()
        self._next_list_s = 0.0

    def _list(self) -> None:
        self._next_list_s = self.clock_s() + LIST_INTERVAL_S
        devices, self._silent = self.nvml.list_devices()
        known = self.readings
        self.readings = {
            device.uuid: known[device.uuid]
            if device.uuid in known and known[device.uuid].device.number == device.number
            else DeviceReading(self.nvml, device, self.clock_s)
            for device in devices
        }
        self._last |= {one.device.number: one for one in self.readings.values()}
        if self.readings.keys() != known.keys():
            self.nvml.listen(devices)


def _as_json(reading: DeviceReading) -> dict[str, Any]:
    processes = reading.processes
    return {
        "uuid": reading.device.uuid,
        "index": reading.device.number,
        "name": reading.name,
        "bus": reading.bus,
        "is_lost": reading.is_lost,
        "is_vgpu": reading.is_vgpu,
        "values": reading.values,
        "missing": reading.missing,
        "processes": None if processes is None else list(processes.items()),
    }


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _begin() -> None:
    """Take the name by which Rootwalk's own processes are known, and end with the parent whatever happens to it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text("rootwalk-gpu", encoding="ascii")
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a key press is the parent's


def main() -> int:
    """Ask until the standard input ends; return the exit status."""
    interval_s = float(sys.argv[1])
    _begin()
    try:
        worker = GpuWorker()
        collect_seldom()
        next_s = time.monotonic()
        while True:
            _say(worker.look())
            next_s = max(next_s + interval_s, time.monotonic())
            while (rest_s := next_s - time.monotonic()) > 0:
                if select.select([0], [], [], rest_s)[0] and not os.read(0, 4096):
                    worker.close()
                    return 0
    except NvmlError as error:
        reason = _PACKAGE.get(error.name, error.reason)
        _say({"reason": reason.value, "detail": error.name})
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001
        # Nobody reads a traceback of this process: the agent says it in one line.
        _say({"reason": Reason.READER_FAILED.value, "detail": repr(error)})
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
