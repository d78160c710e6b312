"""BTF by hand: the few types of a kernel that a test needs."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field


@dataclass
class FakeTypes:
    """Collects types, numbered from 1 in the order in which they are added, and encodes them.

    Args:
        order: Byte order as `struct` writes it.
    """

    order: str = "<"
    types: bytearray = field(default_factory=bytearray)
    strings: bytearray = field(default_factory=lambda: bytearray(b"\0"))
    count: int = 0

    def add(
        self, kind: int, name: str = "", word: int = 0, extra: bytes = b"", info: int = 0
    ) -> int:
        """Add a type of any kind; return its number."""
        self.types += self._pack("III", self._place(name), kind << 24 | info, word) + extra
        self.count += 1
        return self.count

    def integer(self, name: str, size_bytes: int) -> int:
        """Add an integer."""
        return self.add(1, name, size_bytes, self._pack("I", size_bytes * 8))

    def array(self, element: int, length: int) -> int:
        """Add an array."""
        return self.add(3, extra=self._pack("III", element, element, length))

    def structure(
        self, name: str, size_bytes: int, members: list[tuple[str, int, int]], kind: int = 4
    ) -> int:
        """Add a structure (kind 4) or union (5); each member is its name, type and place in bits."""
        extra = b"".join(self._pack("III", self._place(n), t, at) for n, t, at in members)
        return self.add(kind, name, size_bytes, extra, len(members))

    def bit_fields(self, name: str, members: list[tuple[str, int, int, int]]) -> int:
        """Add a structure with bit fields; each member has its number of bits last, 0 for a whole one."""
        extra = b"".join(
            self._pack("III", self._place(n), t, bits << 24 | at) for n, t, at, bits in members
        )
        return self.add(4, name, 8, extra, 1 << 31 | len(members))

    def tracepoint(self, name: str, arguments: list[int]) -> int:
        """Add a tracepoint with arguments of these types, behind the program's own one."""
        own = self.add(2)  # void *
        parameters = b"".join(self._pack("II", 0, kind) for kind in (own, *arguments))
        prototype = self.add(13, extra=parameters, info=len(arguments) + 1)
        return self.add(8, f"btf_trace_{name}", self.add(2, word=prototype))

    def encode(self) -> bytes:
        """Return the file."""
        sizes = (0, len(self.types), len(self.types), len(self.strings))
        head = self._pack("HBBIIIII", 0xEB9F, 1, 0, 24, *sizes)
        return head + bytes(self.types) + bytes(self.strings)

    def _place(self, name: str) -> int:
        if not name:
            return 0
        word = b"\0" + name.encode() + b"\0"
        if word not in self.strings:
            self.strings += word[1:]
        return self.strings.index(word) + 1

    def _pack(self, form: str, *values: int) -> bytes:
        return struct.pack(self.order + form, *values)


def fake_kernel(order: str = "<", switch_arguments: int = 4) -> FakeTypes:
    """Return what the scheduler's programs read, at places of no real kernel.

    task_struct: thread_info at 0 (cpu at 8), flags at 40, pid at 100, tgid at 104, comm at 200. pt_regs: as on x86,
    orig_ax at 24, di at 32, si at 40.
    """
    fake = FakeTypes(order)
    u32, char = fake.integer("unsigned int", 4), fake.integer("char", 1)
    alias = fake.add(8, "pid_t", u32)
    name = fake.array(char, 16)
    thread_info = fake.structure("thread_info", 16, [("cpu", u32, 64)])
    inner = fake.structure("", 8, [("pid", alias, 0), ("tgid", alias, 32)])
    fake.structure(
        "task_struct",
        256,
        [
            ("thread_info", thread_info, 0),
            ("flags", u32, 320),
            ("", inner, 800),
            ("comm", name, 1600),
        ],
    )
    word = fake.integer("unsigned long", 8)
    fake.structure("pt_regs", 64, [("orig_ax", word, 192), ("di", word, 256), ("si", word, 320)])
    for hook in ("wakeup", "wakeup_new", "migrate_task", "process_exit", "process_fork"):
        fake.tracepoint(f"sched_{hook}", [word])
    fake.tracepoint("sched_switch", [word] * switch_arguments)
    return fake
