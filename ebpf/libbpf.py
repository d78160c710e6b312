"""The one place that loads BPF: a small binding to libbpf.so.1.

Objects are compiled at build time; nothing here needs a compiler or kernel headers. Links and maps belong to file
descriptors of this process, nothing is pinned: when it dies, by whatever signal, the kernel detaches everything.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from rootwalk.ebpf import bpf_calls
from rootwalk.ebpf.availability import Reason
from rootwalk.instrumentation.errors import UnavailableError

__all__ = ["BpfMap", "BpfObject", "Program", "read_run_time_ns"]

P = ctypes.c_void_p
INT = ctypes.c_int
# name -> (result, arguments); libbpf 1.0 has all of them.
FUNCTIONS: Mapping[str, tuple[type | None, tuple[type, ...]]] = {
    "bpf_object__open_file": (P, (ctypes.c_char_p, P)),
    "bpf_object__load": (INT, (P,)),
    "bpf_object__close": (None, (P,)),
    "bpf_object__next_program": (P, (P, P)),
    "bpf_object__next_map": (P, (P, P)),
    "bpf_program__name": (ctypes.c_char_p, (P,)),
    "bpf_program__attach": (P, (P,)),
    "bpf_program__attach_perf_event": (P, (P, INT)),
    "bpf_program__attach_uprobe_opts": (P, (P, INT, ctypes.c_char_p, ctypes.c_size_t, P)),
    "bpf_program__autoload": (ctypes.c_bool, (P,)),
    "bpf_program__set_autoload": (INT, (P, ctypes.c_bool)),
    "bpf_program__set_expected_attach_type": (INT, (P, INT)),
    "bpf_program__fd": (INT, (P,)),
    "bpf_link__destroy": (INT, (P,)),
    "bpf_map__name": (ctypes.c_char_p, (P,)),
    "bpf_map__fd": (INT, (P,)),
    "bpf_map__key_size": (ctypes.c_uint, (P,)),
    "bpf_map__value_size": (ctypes.c_uint, (P,)),
    "bpf_map__max_entries": (ctypes.c_uint, (P,)),
    "bpf_map__set_max_entries": (INT, (P, ctypes.c_uint)),
    "bpf_map__reuse_fd": (INT, (P, INT)),
    "bpf_map__set_initial_value": (INT, (P, P, ctypes.c_size_t)),
    "libbpf_set_print": (P, (P,)),
}

# Of `attach_function`: all processes, those that begin later too.
ANY_PROCESS = -1


class _FunctionOptions(ctypes.Structure):
    """`struct bpf_uprobe_opts`."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("reference_counter_at", ctypes.c_size_t),
        ("cookie", ctypes.c_uint64),
        ("is_return", ctypes.c_bool),
        ("function", ctypes.c_char_p),
    )


@cache
def _library() -> ctypes.CDLL:
    name = os.environ.get("ROOTWALK_LIBBPF", "libbpf.so.1")
    try:
        library = ctypes.CDLL(name, use_errno=True)
        for function, (result, arguments) in FUNCTIONS.items():
            entry = getattr(library, function)
            entry.restype = result
            entry.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise UnavailableError(
            f'cannot load "{name}": saw {error}; needs libbpf 1.0 or newer',
            reason=Reason.NO_LIBBPF,
            hint=Reason.NO_LIBBPF.hint,
        ) from error
    library.libbpf_set_print(None)  # its messages go to stderr otherwise
    return library


def _refused(attempt: str, code: int, no_hook: int | None = None) -> UnavailableError:
    """Return the error to raise; `no_hook` is the code by which libbpf says that the kernel has no such hook."""
    reason, needs = Reason.LOAD_REFUSED, "CAP_BPF and CAP_PERFMON"
    if code in (errno.EPERM, errno.EACCES):
        reason = Reason.NO_PRIVILEGE
    elif code == no_hook:
        reason, needs = Reason.NO_HOOK, "a hook that this kernel does not have"
    return UnavailableError(
        f"cannot {attempt}: saw {os.strerror(code)} (uid {os.geteuid()}); needs {needs}",
        reason=reason,
        hint=reason.hint,
    )


@dataclass(frozen=True, slots=True)
class BpfMap:
    """One map of a loaded object; keys and values are bytes of exactly the map's sizes."""

    name: str
    fd: int
    key_bytes: int
    value_bytes: int
    max_entries: int

    def read(self, key: bytes) -> bytes | None:
        """Return the value, or None when the key is absent."""
        value = ctypes.create_string_buffer(self.value_bytes)
        return None if bpf_calls.lookup(self.fd, self._key(key), value) else value.raw

    def write(self, key: bytes, value: bytes) -> None:
        """Set a value.

        Raises:
            OSError: If the map is full.
        """
        buffer = ctypes.create_string_buffer(value, self.value_bytes)
        code = bpf_calls.update(self.fd, self._key(key), buffer)
        if code:
            raise OSError(code, f"{os.strerror(code)} in map {self.name}")

    def delete(self, key: bytes) -> None:
        """Remove a key; nothing happens when it is absent."""
        bpf_calls.delete(self.fd, self._key(key))

    def items(self, *, take: bool = False) -> list[tuple[bytes, bytes]]:
        """Return everything in a hash map, in few system calls; keys that change meanwhile may be missing.

        Args:
            take: Remove what is returned, so that nothing is missing and nothing comes twice (since Linux 5.6).
        """
        capacity = 512
        keys = ctypes.create_string_buffer(self.key_bytes * capacity)
        values = ctypes.create_string_buffer(self.value_bytes * capacity)
        cursor = ctypes.create_string_buffer(max(self.key_bytes, 8))
        found: list[tuple[bytes, bytes]] = []
        first = None
        while True:
            count, code = bpf_calls.lookup_batch(
                self.fd, first, cursor, keys, values, capacity, take=take
            )
            if code not in (0, errno.ENOENT):
                return found
            found.extend(self._pairs(keys.raw, values.raw, count))
            if code:
                return found
            first = cursor

    def _pairs(self, keys: bytes, values: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
        for index in range(count):
            key, value = index * self.key_bytes, index * self.value_bytes
            yield keys[key : key + self.key_bytes], values[value : value + self.value_bytes]

    def _key(self, key: bytes) -> ctypes.Array[ctypes.c_char]:
        return ctypes.create_string_buffer(key, self.key_bytes)


class Program(Protocol):
    """What every loader makes: a program of ours, before and after it is loaded; it has its `maps` then."""

    maps: dict[str, BpfMap]

    def set_initial(self, suffix: str, value: bytes) -> None:
        """Set the bytes of a data section (such as ``.rodata``) before loading."""
        ...

    def set_max_entries(self, name: str, entries: int) -> None:
        """Set the capacity of a map before loading."""
        ...

    def share(self, shared: BpfMap) -> None:
        """Use a map of another program in place of this one's of the same name, before loading."""
        ...

    def run_time_ns(self) -> dict[str, int]:
        """Return the CPU time spent in each function, ns; nothing where the kernel keeps no statistics."""
        ...

    def close(self) -> None:
        """Detach and unload; safe twice."""
        ...


def read_run_time_ns(programs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the CPU time spent in programs, given by name and descriptor; nothing where no statistics are kept."""
    times: dict[str, int] = {}
    for name, descriptor in programs:
        text = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
        found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        run_time_ns = int(found.get("run_time_ns", "0"))
        if run_time_ns:
            times[name] = times.get(name, 0) + run_time_ns
    return times


class BpfObject:
    """One compiled object, opened, loaded and attached.

    Args:
        path: The `.bpf.o` file.
        configure: Called with the opened object before it is loaded.
        by_hand: Programs that are not attached yet.

    Raises:
        UnavailableError: NO_LIBBPF, NO_OBJECT, NO_PRIVILEGE, NO_HOOK or LOAD_REFUSED.
    """

    def __init__(
        self,
        path: Path,
        configure: Callable[[BpfObject], None] | None = None,
        by_hand: Collection[str] = (),
    ) -> None:
        self._library = _library()
        if not path.exists():
            raise UnavailableError(
                f'cannot open "{path.name}": saw no such file; needs the compiled BPF objects',
                reason=Reason.NO_OBJECT,
                hint=Reason.NO_OBJECT.hint,
            )
        self._links: list[int] = []
        self._by_hand = by_hand
        self.maps: dict[str, BpfMap] = {}
        self._object: int | None = self._library.bpf_object__open_file(str(path).encode(), None)
        if not self._object:
            raise _refused(f'open "{path.name}"', ctypes.get_errno())
        try:
            if configure is not None:
                configure(self)
            self._load(path.name)
        except BaseException:
            self.close()
            raise

    def _load(self, name: str) -> None:
        if self._library.bpf_object__load(self._object):
            raise _refused(f'load "{name}"', ctypes.get_errno(), errno.ESRCH)
        maps = map(self._read_map, self._handles("map"))
        self.maps = {entry.name: entry for entry in maps}
        for program in self._handles("program"):
            name = self._library.bpf_program__name(program).decode()
            if self._library.bpf_program__autoload(program) and name not in self._by_hand:
                self._attach(program)

    def _read_map(self, handle: int) -> BpfMap:
        library = self._library
        return BpfMap(
            library.bpf_map__name(handle).decode(),
            library.bpf_map__fd(handle),
            library.bpf_map__key_size(handle),
            library.bpf_map__value_size(handle),
            library.bpf_map__max_entries(handle),
        )

    def set_initial(self, suffix: str, value: bytes) -> None:
        """Set the bytes of a data section (such as ``.rodata``) before loading."""
        handle = self._map_handle(suffix)
        if self._library.bpf_map__set_initial_value(handle, value, len(value)):
            raise _refused(f'configure "{suffix}"', ctypes.get_errno())

    def set_max_entries(self, name: str, entries: int) -> None:
        """Set the capacity of a map before loading."""
        if self._library.bpf_map__set_max_entries(self._map_handle(name), entries):
            raise _refused(f'size map "{name}"', ctypes.get_errno())

    def share(self, shared: BpfMap) -> None:
        """Use a map of another object in place of this one's of the same name, before loading."""
        handle = self._map_handle(shared.name)
        if self._library.bpf_map__reuse_fd(handle, shared.fd):
            raise _refused(f'share map "{shared.name}"', ctypes.get_errno())

    def leave_out(self, *names: str) -> None:
        """Do not load these programs, whose hooks this kernel does not have; before loading."""
        for program in self._handles("program"):
            if self._library.bpf_program__name(program).decode() in names:
                self._library.bpf_program__set_autoload(program, False)

    def attach_event(self, name: str, descriptor: int) -> None:
        """Attach a program to a performance event.

        Args:
            name: One of `by_hand`.
            descriptor: The event's, which belongs to this object from now on.

        Raises:
            UnavailableError: NO_PRIVILEGE or LOAD_REFUSED.
        """
        for program in self._handles("program"):
            if self._library.bpf_program__name(program).decode() == name:
                link = self._library.bpf_program__attach_perf_event(program, descriptor)
                if not link:
                    raise _refused(f'attach probe "{name}"', ctypes.get_errno())
                self._links.append(link)

    def attach_function(
        self, name: str, path: Path, offset: int, cookie: int, *, is_return: bool
    ) -> tuple[int | None, int]:
        """Attach a program to a function of a file, in all processes.

        Args:
            name: One of `by_hand`.
            path: The file.
            offset: Where in the file the function begins.
            cookie: What the program is told at each call.
            is_return: At the function's end instead of its begin.

        Returns:
            What `detach` takes, and 0 or the error number.
        """
        options = _FunctionOptions(ctypes.sizeof(_FunctionOptions), 0, cookie, is_return, None)
        link: int | None = self._library.bpf_program__attach_uprobe_opts(
            self._program(name), ANY_PROCESS, bytes(path), offset, ctypes.byref(options)
        )
        if not link:
            return None, ctypes.get_errno()
        self._links.append(link)
        return link, 0

    def detach(self, link: int) -> None:
        """Take away what `attach_function` made; safe after `close`."""
        if link in self._links:
            self._links.remove(link)
            self._library.bpf_link__destroy(link)

    def expect(self, attach_type: int, *names: str) -> None:
        """Say what programs are going to be attached to, where their section does not; before loading."""
        for name in names:
            self._library.bpf_program__set_expected_attach_type(self._program(name), attach_type)

    def descriptor(self, name: str) -> int:
        """Return the descriptor of a loaded program."""
        return int(self._library.bpf_program__fd(self._program(name)))

    def _program(self, name: str) -> int:
        for program in self._handles("program"):
            if self._library.bpf_program__name(program).decode() == name:
                return program
        raise _refused(f'find program "{name}"', errno.ENOENT)

    def run_time_ns(self) -> dict[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return read_run_time_ns(self._loaded_programs())

    def _loaded_programs(self) -> Iterator[tuple[str, int]]:
        if self._object is None:
            return
        for program in self._handles("program"):
            if self._library.bpf_program__autoload(program):
                name = self._library.bpf_program__name(program).decode()
                yield name, self._library.bpf_program__fd(program)

    def close(self) -> None:
        """Detach and unload; safe twice."""
        for link in self._links:
            self._library.bpf_link__destroy(link)
        self._links = []
        if self._object is not None:
            self._library.bpf_object__close(self._object)
            self._object = None

    def _handles(self, kind: str) -> Iterator[int]:
        following = getattr(self._library, f"bpf_object__next_{kind}")
        handle = following(self._object, None)
        while handle:
            yield handle
            handle = following(self._object, handle)

    def _map_handle(self, suffix: str) -> int:
        for handle in self._handles("map"):
            if self._library.bpf_map__name(handle).decode().endswith(suffix):
                return handle
        raise _refused(f'find map "{suffix}"', errno.ENOENT)

    def _attach(self, program: int) -> None:
        link = self._library.bpf_program__attach(program)
        if not link:
            name = self._library.bpf_program__name(program).decode()
            raise _refused(f'attach probe "{name}"', ctypes.get_errno(), errno.ENOENT)
        self._links.append(link)
