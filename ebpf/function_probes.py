"""Probes in functions of files (uprobes): a program with its probes, which come and go by file.

Since Linux 6.6 one link holds the probes of a whole file; before, each probe is one. That matters at the end: newer
kernels wait 0.1 s for each link that goes.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rootwalk.ebpf import bpf_calls
from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.libbpf import BpfMap, BpfObject
from rootwalk.ebpf.targets import open_program
from rootwalk.instrumentation.errors import UnavailableError

__all__ = ["FunctionProbes", "Probes"]

# Long enough for a probe at its first byte.
PAGE = bytes(4096)


@dataclass(slots=True)
class Probes:
    """Probes in one file, as long as they are attached.

    Attributes:
        descriptors: Of the links that hold many.
        links: Of those that hold one.
    """

    descriptors: list[int] = field(default_factory=list)
    links: list[int] = field(default_factory=list)


class FunctionProbes:
    """A loaded program with two functions, for the begin and the return of functions of others.

    Args:
        name: Its file without `.bpf.o`.
        begin: The program at a function's begin.
        end: The program at its return.
        configure: Called before it is loaded.
        by_file: Use one link a file where the kernel has it.
        is_checked: Another program has tried already whether functions can be attached to, and with `by_file` or not.

    Raises:
        UnavailableError: As `open_program` does, and NO_UPROBES where the kernel refuses probes in functions.
    """

    def __init__(
        self,
        name: str,
        begin: str,
        end: str,
        configure: Callable[[BpfObject], None],
        *,
        by_file: bool = True,
        is_checked: bool = False,
    ) -> None:
        self._name, self._begin, self._end = name, begin, end
        self._configure = configure
        self._by_file = by_file
        self._held: list[Probes] = []
        self._object = self._open()
        try:
            if not is_checked:
                self._check()
        except UnavailableError:
            self._object.close()
            raise

    @property
    def by_file(self) -> bool:
        """Whether one link holds the probes of a file."""
        return self._by_file

    @property
    def maps(self) -> Mapping[str, BpfMap]:
        """The program's maps."""
        return self._object.maps

    def attach(self, path: Path, places: Sequence[tuple[int, int]]) -> Probes:
        """Attach to functions of a file, in all processes.

        Args:
            path: The file.
            places: For each function where in the file it begins, and what the program is told at its calls.

        Raises:
            UnavailableError: NO_UPROBES or LOAD_REFUSED.
        """
        probes = Probes()
        self._held.append(probes)
        # Returns first: no call begins that cannot end.
        for program, is_return in ((self._end, True), (self._begin, False)):
            code = self._attach(probes, program, path, places, is_return=is_return)
            if code:
                self.detach(probes)
                raise _refused(code)
        return probes

    def detach(self, probes: Probes) -> None:
        """Take probes away; safe twice."""
        for descriptor in probes.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        for link in probes.links:
            self._object.detach(link)
        probes.descriptors, probes.links = [], []
        if probes in self._held:
            self._held.remove(probes)

    def run_time_ns(self) -> dict[str, int]:
        """Return the CPU time spent in each program, ns; nothing where the kernel keeps no statistics."""
        return self._object.run_time_ns()

    def close(self) -> None:
        """Detach and unload; safe twice."""
        for probes in list(self._held):
            self.detach(probes)
        self._object.close()

    def _open(self) -> BpfObject:
        def configure(opened: BpfObject) -> None:
            self._configure(opened)
            if self._by_file:
                opened.expect(bpf_calls.MANY_FUNCTIONS, self._begin, self._end)

        return open_program(self._name, configure, (self._begin, self._end))

    def _attach(
        self,
        probes: Probes,
        program: str,
        path: Path,
        places: Sequence[tuple[int, int]],
        *,
        is_return: bool,
    ) -> int:
        """Attach one of the programs; return 0 or the error number."""
        if self._by_file:
            offsets, cookies = zip(*places, strict=True)
            descriptor, code = bpf_calls.attach_functions(
                self._object.descriptor(program), bytes(path), offsets, cookies, is_return=is_return
            )
            if not code:
                probes.descriptors.append(descriptor)
            return code
        for offset, cookie in places:
            link, code = self._object.attach_function(
                program, path, offset, cookie, is_return=is_return
            )
            if link is None:
                return code
            probes.links.append(link)
        return 0

    def _check(self) -> None:
        """Attach to a function that nobody calls, in a file of our own, and let go of it."""
        descriptor = os.memfd_create("rootwalk-probe", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, PAGE)
            path, probes = Path(f"/proc/self/fd/{descriptor}"), Probes()
            code = self._attach(probes, self._begin, path, [(0, 0)], is_return=False)
            self.detach(probes)
            if code == errno.EINVAL and self._by_file:  # an older kernel
                self._object.close()
                self._by_file = False
                self._object = self._open()
                self._check()
            elif code:
                raise _refused(code)
        finally:
            os.close(descriptor)


def _refused(code: int) -> UnavailableError:
    is_privilege = code in (errno.EPERM, errno.EACCES)
    reason = Reason.NO_UPROBES if is_privilege else Reason.LOAD_REFUSED
    return UnavailableError(
        f"cannot attach to functions: saw {os.strerror(code)} (uid {os.geteuid()}); "
        "needs CAP_SYS_ADMIN, or CAP_PERFMON since Linux 6.6",
        reason=reason,
        hint=reason.hint,
    )
