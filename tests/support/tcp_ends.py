"""Processes that do with TCP what they are told, one word at a time: the ends of connections with known traffic."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

from support.namespaces import Machine

# Each line of standard input is a command; each is answered by one line. Connections are numbered from 0.
CODE = r"""
import ctypes, socket, struct, sys, threading
listener, ends, sinks, filters = None, [], [], []
LOSSES = struct.Struct("=HBBI")
def lose(end, ratio):
    # A filter of one's own: load a random number, keep the packet when it is at least the ratio.
    program = [(0x20, 0, 0, 0xFFFFF038), (0x35, 0, 1, int(ratio * 2**32)), (6, 0, 0, 0xFFFFFFFF), (6, 0, 0, 0)]
    code = ctypes.create_string_buffer(b"".join(LOSSES.pack(*one) for one in program))
    end.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", len(program), ctypes.addressof(code)))  # SO_ATTACH_FILTER
    return code
def drain(end, size):
    left = size
    while left:
        got = len(end.recv(min(left, 1 << 20)))
        if not got: break
        left -= got
    return size - left
for line in sys.stdin:
    word, *rest = line.split()
    answer = "done"
    if word == "listen":
        family = socket.AF_INET6 if ":" in rest[0] else socket.AF_INET
        listener = socket.create_server((rest[0], int(rest[1])), family=family)
        answer = listener.getsockname()[1]
    elif word == "connect":
        ends.append(socket.create_connection((rest[0], int(rest[1]))))
        answer = ends[-1].fileno()
    elif word == "accept":
        ends.append(listener.accept()[0])
        answer = ends[-1].fileno()
    elif word == "connect_many":
        ends += [socket.create_connection((rest[0], int(rest[1]))) for _ in range(int(rest[2]))]
    elif word == "accept_many":
        ends += [listener.accept()[0] for _ in range(int(rest[0]))]
    elif word == "send_each":
        for end in ends[:int(rest[0])]: end.sendall(bytes(int(rest[1])))
    elif word == "send":
        ends[int(rest[0])].sendall(bytes(int(rest[1])))
    elif word == "begin_send":
        thread = threading.Thread(target=ends[int(rest[0])].sendall, args=(bytes(int(rest[1])),), daemon=True)
        thread.start()
        sinks.append(thread)
    elif word == "join":
        while sinks:
            sinks.pop().join()
    elif word == "receive":
        answer = drain(ends[int(rest[0])], int(rest[1]))
    elif word == "lose":
        filters.append(lose(ends[int(rest[0])], float(rest[1])))
    elif word == "rtt":
        info = ends[int(rest[0])].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
        answer = struct.unpack_from("=I", info, 68)[0]
    elif word == "close":
        ends[int(rest[0])].close()
    elif word == "abort":
        ends[int(rest[0])].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ends[int(rest[0])].close()
    elif word == "hang_up":
        listener.close()
    print(answer, flush=True)
"""


class TcpEnd:
    """One such process.

    Args:
        process: It, with pipes.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def tell(self, *words: str | float) -> int:
        """Let it do something, and return its answer; 0 when that is none.

        Args:
            words: The command and what it needs.
        """
        self.ask(*words)
        return self.answer()

    def ask(self, *words: str | float) -> None:
        """Let it do something without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self._process.stdin.flush()

    def answer(self) -> int:
        """Return the answer to the oldest command that has none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the process has ended"
        return int(line) if line.isdigit() else 0

    def end(self) -> None:
        """End it; safe twice."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def tcp_end(machine: Machine | None = None) -> Iterator[TcpEnd]:
    """One process for the length of a block; on a machine of its own, or on this one."""
    words: Sequence[str] = [sys.executable, "-S", "-E", "-c", CODE]
    process = subprocess.Popen(
        machine.command(*words) if machine is not None else words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    end = TcpEnd(process)
    try:
        end.tell("ready")
        yield end
    finally:
        end.end()


def connect(one: TcpEnd, other: TcpEnd, address: str, port: int = 0) -> tuple[int, int]:
    """Connect two processes by a port of the second one's; return the descriptors of both ends."""
    port = other.tell("listen", address, port)
    descriptor = one.tell("connect", address, port)
    accepted = other.tell("accept")
    other.tell("hang_up")
    return descriptor, accepted


def transfer(
    sender: TcpEnd, receiver: TcpEnd, size: int, sends: int = 0, receives: int = 0
) -> None:
    """Send bytes from one process to another, and wait until all are there.

    Args:
        sender: From here
        receiver: to here.
        size: How many.
        sends: The sender's connection.
        receives: The receiver's.
    """
    sender.ask("send", sends, size)
    assert receiver.tell("receive", receives, size) == size
    sender.answer()
