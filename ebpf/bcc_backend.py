"""The same programs, compiled on this machine by BCC, for one without libbpf or without compiled objects.

Same source, same maps, same events as `core_backend`: nothing differs but how a program is loaded. That happens in
another process (`bcc_loader`), which hands over the descriptors; from then on there is no BCC here.

What BCC cannot express, and what stands in its place (`bcc_source` puts it there):

    hooks with types (`tp_btf`)      raw tracepoints: the same arguments, but each field of a task costs a helper call
    calls between functions          everything inline; for `bpf_loop` the verifier walks through 128 rounds
    variables, and their values      an array of one element, all 0 until user space writes it
    questions about fields (CO-RE)   answered from BTF before compiling

Only the two programs for threads, `targets` and `sched`, are loaded like this. Interrupts, memory, block_io and
lifecycle need libbpf; where it is missing they say so, and `rootwalk check` shows `LIMITS` beside the scheduler.

Needs Debian's python3-bpfcc (tested with 0.26), BTF, CAP_BPF + CAP_PERFMON, and 150 MB for a second at the start.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.bcc_loader import Request
from rootwalk.ebpf.libbpf import BpfMap, read_run_time_ns
from rootwalk.ebpf.targets import Configure, Loader
from rootwalk.instrumentation.errors import UnavailableError
from rootwalk.instrumentation.semconv import TrainingThreadSensor

__all__ = ["BCC", "LIMITS", "BccProgram"]

# For people, beside why BCC was taken.
LIMITS = (
    "BCC compiled and loaded the program of threads' times only; interrupts, memory, block_io and "
    "lifecycle need libbpf"
)

# About a second for one program; an emulated machine needs 10 s, one whose cores are all taken more.
LOAD_DEADLINE_S = 60.0
REPLY_BYTES = 65_536
MAX_DESCRIPTORS = 253  # what one message may carry (SCM_MAX_FD)
# What libbcc writes to stderr where its Python says something else, or nothing.
REFUSALS = ("Operation not permitted", "super-user privileges")


class BccProgram:
    """One program compiled, loaded and attached by BCC: what `libbpf.BpfObject` is for a compiled one.

    Args:
        name: Its file without `.bpf.c`.
        configure: Called before it is loaded.

    Raises:
        UnavailableError: NO_BCC, WRONG_BCC, NO_PRIVILEGE or LOAD_REFUSED.
    """

    def __init__(self, name: str, configure: Configure | None = None) -> None:
        self.maps: dict[str, BpfMap] = {}
        self._request = Request(name)
        self._functions: dict[str, int] = {}
        self._owned: list[int] = []
        if configure is not None:
            configure(self)
        self._load()

    def set_initial(self, suffix: str, value: bytes) -> None:
        """Set the bytes of a data section (such as ``.rodata``) before loading."""
        self._request.initial[suffix] = value.hex()

    def set_max_entries(self, name: str, entries: int) -> None:
        """Set the capacity of a map before loading."""
        self._request.entries[name] = entries

    def share(self, shared: BpfMap) -> None:
        """Use a map of another program in place of this one's of the same name, before loading."""
        self._request.shared[shared.name] = shared.fd

    def run_time_ns(self) -> dict[str, int]:
        """Return the CPU time spent in each function, ns; nothing where the kernel keeps no statistics."""
        return read_run_time_ns(self._functions.items())

    def close(self) -> None:
        """Detach and unload; safe twice."""
        for descriptor in self._owned:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._owned = []
        self._functions = {}

    def _load(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            words = self._run_loader(theirs)
            ours.setblocking(False)
            try:
                message, self._owned, _, _ = socket.recv_fds(
                    ours, REPLY_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                raise self._refused("it ended without an answer", words) from None
        reply = json.loads(message)
        if "reason" in reply:
            self.close()
            if reply["reason"] == Reason.LOAD_REFUSED:
                raise self._refused(reply["text"], words)
            reason = Reason[reply["reason"]]
            raise UnavailableError(reply["text"], reason=reason, hint=reason.hint)
        self._take(reply)

    def _run_loader(self, channel: socket.socket) -> str:
        """Run the loader to its end; return what it wrote to stderr."""
        handed = (channel.fileno(), *self._request.shared.values())
        # Safe path: a folder named bcc where the agent was started is not BCC.
        command = [sys.executable, "-P", "-m", "rootwalk.ebpf.bcc_loader", str(channel.fileno())]
        try:
            done = subprocess.run(  # noqa: S603 - this interpreter and our own module
                command,
                input=json.dumps(asdict(self._request)).encode(),
                capture_output=True,
                pass_fds=handed,
                timeout=LOAD_DEADLINE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._refused(str(error), "") from error
        return done.stderr.decode("utf-8", "replace")

    def _take(self, reply: Mapping[str, Any]) -> None:
        """Put the descriptors in their places; they came in the order in which the reply names them."""
        descriptors = iter(list(self._owned))
        for fields in reply["maps"]:
            entry = BpfMap(**{**fields, "fd": next(descriptors)})
            self.maps[entry.name] = entry
        self._functions = {name: next(descriptors) for name in reply["functions"]}

    def _refused(self, saw: str, words: str) -> UnavailableError:
        """Return the error to raise, with the last line that BCC wrote."""
        lines = [line.strip() for line in words.splitlines() if line.strip()]
        is_forbidden = any(refusal in saw + words for refusal in REFUSALS)
        reason = Reason.NO_PRIVILEGE if is_forbidden else Reason.LOAD_REFUSED
        told = f'{saw}; BCC wrote "{lines[-1][:200]}"' if lines else saw
        return UnavailableError(
            f'cannot load "{self._request.name}" by BCC (uid {os.geteuid()}): saw {told}',
            reason=reason,
            hint=reason.hint,
        )


BCC = Loader(TrainingThreadSensor.BCC.value, BccProgram)
