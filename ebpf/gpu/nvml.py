"""The one door to NVML, NVIDIA's management library, through its own binding (nvidia-ml-py).

Runs in the helper process only: a call into a driver that hangs does not return, and cannot be interrupted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rootwalk.ebpf.availability import Reason

__all__ = ["LIBRARY", "Device", "Nvml", "NvmlError"]

# Errors of NVML that say why nothing at all can be read.
_WHOLE = {
    "DRIVER_NOT_LOADED": Reason.NO_DRIVER,
    "LIBRARY_NOT_FOUND": Reason.NO_NVML_LIBRARY,
    "LIB_RM_VERSION_MISMATCH": Reason.DRIVER_MISMATCH,
    "NO_PERMISSION": Reason.NO_DEVICE_PERMISSION,
    "GPU_IS_LOST": Reason.DEVICE_LOST,
    "GPU_NOT_FOUND": Reason.NO_DEVICE,
    "NOT_FOUND": Reason.NO_DEVICE,
}
_ERROR_PREFIX = "NVML_ERROR_"
# The name by which the binding loads it.
LIBRARY = "libnvidia-ml.so.1"


class NvmlError(Exception):
    """NVML refused; `name` is its error without the prefix, such as NOT_SUPPORTED."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    @property
    def reason(self) -> Reason:
        """Return what it means when it befalls everything."""
        return _WHOLE.get(self.name, Reason.NVML_FAILED)


class Device(NamedTuple):
    """One GPU as NVML numbers it now: its handle, and the UUID that NVML prints."""

    number: int
    handle: Any
    uuid: str


class Nvml:
    """Owns the library while it is open.

    Raises:
        NvmlError: PACKAGE_MISSING or PACKAGE_WRONG when there is no binding to use.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NvmlError("PACKAGE_MISSING") from error
        # Up to version 11.5 the package "pynvml" had a module of its own under the name of the real binding's. Which of
        # the two is found is chance; the old one lacks what is asked for here.
        if hasattr(pynvml, "__path__") or not hasattr(pynvml, "nvmlDeviceGetFieldValues"):
            raise NvmlError("PACKAGE_WRONG")
        self._binding: Any = pynvml
        self._names = {
            number: name.removeprefix(_ERROR_PREFIX)
            for name, number in vars(pynvml).items()
            if name.startswith(_ERROR_PREFIX) and isinstance(number, int)
        }
        self._functions: dict[str, Callable[..., Any]] = {}
        # The binding's own layout, without its attributes that format what they hold: half of the time of a look.
        layout = {"_fields_": pynvml.c_nvmlFieldValue_t._fields_}
        self._field_type: Any = type("FieldValue", (ctypes.Structure,), layout)
        self._questions: dict[tuple[tuple[int, int], ...], Any] = {}
        self._ask_fields: Callable[..., int] | None = None
        self._events: Any = None
        self._is_open = False

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what a function of the binding returns.

        Raises:
            NvmlError: With the name of NVML's error; FUNCTION_NOT_FOUND also when the binding does not know it.
        """
        known = self._functions.get(function)
        if known is None:
            known = getattr(self._binding, function, None)
            if known is None:
                raise NvmlError("FUNCTION_NOT_FOUND")
            self._functions[function] = known
        try:
            return known(*arguments)
        except self._binding.NVMLError as error:
            raise self._error(error.value) from None

    def _error(self, code: int) -> NvmlError:
        return NvmlError(self._names.get(code, f"CODE_{code}"))

    def open(self) -> str:
        """Begin; return the driver's version.

        Raises:
            NvmlError: When the driver does not let it.
        """
        self.call("nvmlInitWithFlags", 0)
        self._is_open = True
        self._ask_fields = getattr(ctypes.CDLL(LIBRARY), "nvmlDeviceGetFieldValues", None)
        return str(self.call("nvmlSystemGetDriverVersion"))

    def close(self) -> None:
        """End; safe twice, and when the driver is gone."""
        if self._is_open:
            self._is_open = False
            self._events = None
            try:
                self.call("nvmlShutdown")
            except NvmlError:
                return

    def list_devices(self) -> tuple[list[Device], list[tuple[int, str]]]:
        """Return the GPUs that answer, and the numbers of those that do not, with the error's name.

        Raises:
            NvmlError: When there is no telling how many there are.
        """
        devices, silent = [], []
        for index in range(self.call("nvmlDeviceGetCount")):
            try:
                handle = self.call("nvmlDeviceGetHandleByIndex", index)
                devices.append(Device(index, handle, str(self.call("nvmlDeviceGetUUID", handle))))
            except NvmlError as error:
                silent.append((index, error.name))
        return devices, silent

    def fields(self, handle: Any, asked: tuple[tuple[int, int], ...]) -> list[int | None]:
        """Return values of NVML's numbered fields; None for each that this GPU does not have.

        Args:
            handle: The GPU.
            asked: Number of the field and its scope: a link, or 0.

        Raises:
            NvmlError: When it answers none of them.
        """
        question = self._questions.get(asked)
        if question is None:
            question = self._questions[asked] = (self._field_type * len(asked))(*asked)
        # A copy for each answer: the driver writes no more of a value than its width.
        answers = type(question).from_buffer_copy(question)
        if self._ask_fields is None:
            raise NvmlError("FUNCTION_NOT_FOUND")
        code = self._ask_fields(handle, len(asked), answers)
        if code:
            raise self._error(code)
        # Every field that is asked for here is a count, whatever its width: the union is little-endian.
        return [None if one.nvmlReturn else one.value.ullVal for one in answers]

    def listen(self, devices: Sequence[Device]) -> None:
        """Let the driver report its errors (Xid) of these GPUs; where it cannot, nothing is reported."""
        xid = 0x8  # nvmlEventTypeXidCriticalError
        try:
            if self._events is not None:
                self.call("nvmlEventSetFree", self._events)
            self._events = self.call("nvmlEventSetCreate")
            for device in devices:
                self.call("nvmlDeviceRegisterEvents", device.handle, xid, self._events)
        except NvmlError:
            return

    def reported(self, most: int = 64) -> list[tuple[str, int]]:
        """Return the errors (UUID, Xid) since the last call, without waiting."""
        found: list[tuple[str, int]] = []
        while self._events is not None and len(found) < most:
            try:
                event = self.call("nvmlEventSetWait", self._events, 0)
                found.append(
                    (str(self.call("nvmlDeviceGetUUID", event.device)), int(event.eventData))
                )
            except NvmlError:
                break
        return found
