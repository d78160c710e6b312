"""A process of its own that compiles and loads one program with BCC, hands over its descriptors, and ends.

BCC takes 150 MB that do not come back, writes to stderr, and looks for headers by an environment variable: none of
that belongs into an agent that runs for weeks. What is loaded belongs to its descriptors: it goes on when this ends.

    agent ── request (JSON, stdin) ──▶ python -m rootwalk.ebpf.bcc_loader SOCKET
    agent ◀── reply (JSON) with descriptors of maps, functions, links ── SOCKET
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.bcc_headers import write_headers
from rootwalk.ebpf.bcc_source import BccSource, translate
from rootwalk.ebpf.btf import KernelTypes
from rootwalk.ebpf.libbpf import BpfMap
from rootwalk.instrumentation.errors import UnavailableError

__all__ = ["Loaded", "Request", "find_bcc"]

# Where Debian and Ubuntu have their module, which a virtual environment does not see.
SYSTEM_FOLDER = Path("/usr/lib/python3/dist-packages")
KEY = bytes(4)


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be loaded.

    Attributes:
        name: A shipped program, its file without `.bpf.c`.
        initial: Bytes of data sections in hexadecimal, by the end of their name.
        entries: Capacities of maps, other than those in the source.
        shared: Descriptors of maps that exist already.
    """

    name: str
    initial: dict[str, str] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded: descriptors of this process, one a function in `functions` and `links`."""

    maps: list[BpfMap]
    functions: dict[str, int]
    links: list[int]


def _import_bcc(path: Path | None = None) -> ModuleType | None:
    """Return the module bcc, the one of a file or the one on the path; None where it cannot be imported."""
    for name in [name for name in sys.modules if name.split(".")[0] == "bcc"]:
        del sys.modules[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences, said since Python 3.12
            if path is None:
                return importlib.import_module("bcc")
            spec = importlib.util.spec_from_file_location("bcc", path)
            if spec is None or spec.loader is None:
                return None
            module = sys.modules["bcc"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    except (ImportError, OSError):
        return None


def find_bcc(system_folder: Path = SYSTEM_FOLDER) -> ModuleType:
    """Return the BPF compiler collection.

    Args:
        system_folder: Where the system's packages are.

    Raises:
        UnavailableError: NO_BCC, or WRONG_BCC for another package of that name.
    """
    found = _import_bcc()
    if found is not None and hasattr(found, "BPF"):
        return found
    system = _import_bcc(system_folder / "bcc" / "__init__.py")
    if system is not None and hasattr(system, "BPF"):
        return system
    if found is None:
        raise UnavailableError(
            "cannot compile BPF programs: saw no module bcc; needs the BPF compiler collection",
            reason=Reason.NO_BCC,
            hint=Reason.NO_BCC.hint,
        )
    raise UnavailableError(
        f'cannot compile BPF programs: saw another package named bcc ("{found.__file__}"); '
        "needs the BPF compiler collection",
        reason=Reason.WRONG_BCC,
        hint=Reason.WRONG_BCC.hint,
    )


def load(request: Request, bcc: Any, types: KernelTypes) -> Loaded:
    """Compile, load and attach a program.

    Raises:
        UnavailableError: LOAD_REFUSED.
    """
    source = translate(request.name, types)
    for tracepoint in source.hooks.values():
        if not types.has_hook(tracepoint):
            raise _refused(request, f"no hook {tracepoint} in this kernel")
    with tempfile.TemporaryDirectory(prefix="rootwalk-bcc-") as name:
        folder = Path(name)
        write_headers(folder / "kernel")
        os.environ["BCC_KERNEL_SOURCE"] = str(folder / "kernel")
        for text, file in ((source.definitions, "maps.c"), (source.programs, "programs.c")):
            (folder / file).write_text(text, encoding="utf-8")
        try:
            return _load(request, source, bcc.BPF, bcc.lib, folder)
        except Exception as error:  # BCC raises nothing narrower
            raise _refused(request, str(error)) from error


def _refused(request: Request, saw: str) -> UnavailableError:
    return UnavailableError(
        f'cannot load "{request.name}" by BCC: saw {saw}; needs CAP_BPF and CAP_PERFMON',
        reason=Reason.LOAD_REFUSED,
        hint=Reason.LOAD_REFUSED.hint,
    )


def _load(request: Request, source: BccSource, bpf: Any, library: Any, folder: Path) -> Loaded:
    made = bpf(text=source.maps_text(str(folder / "maps.c"), request.entries))
    maps = {}
    for variable, form in source.maps.items():
        fd = request.shared.get(form.name)
        if fd is None:
            fd = library.bpf_table_fd(made.module, f"made_{variable}".encode())
        maps[variable] = describe_map(form.name, fd)
        for suffix, value in request.initial.items():
            if form.name.endswith(suffix):
                maps[variable].write(KEY, bytes.fromhex(value))
    descriptors = {variable: entry.fd for variable, entry in maps.items()}
    programs = bpf(text=source.programs_text(str(folder / "programs.c"), descriptors))
    functions, links = {}, []
    for function, tracepoint in source.hooks.items():
        functions[function] = programs.load_func(function.encode(), bpf.RAW_TRACEPOINT).fd
        programs.attach_raw_tracepoint(tracepoint.encode(), function.encode())
        links.append(programs.raw_tracepoint_fds[tracepoint.encode()])
    return Loaded(list(maps.values()), functions, links)


def describe_map(name: str, fd: int) -> BpfMap:
    """Return a map by its descriptor, with the sizes that the kernel says it has."""
    text = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii")
    said = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    sizes = (int(said[word]) for word in ("key_size", "value_size", "max_entries"))
    return BpfMap(name, fd, *sizes)


def _answer(request: Request) -> tuple[Mapping[str, Any], list[int]]:
    """Return the reply, and the descriptors in the order in which it names them."""
    try:
        loaded = load(request, find_bcc(), KernelTypes.read())
    except UnavailableError as error:
        return {"reason": error.reason, "text": str(error)}, []
    descriptors = [entry.fd for entry in loaded.maps]
    descriptors += [*loaded.functions.values(), *loaded.links]
    return asdict(loaded), descriptors


def main() -> int:
    """Answer the one request on stdin by the socket whose descriptor is the first argument."""
    request = Request(**json.load(sys.stdin))
    reply, descriptors = _answer(request)
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        socket.send_fds(channel, [json.dumps(reply).encode()], descriptors)
    return 0


if __name__ == "__main__":
    sys.exit(main())
