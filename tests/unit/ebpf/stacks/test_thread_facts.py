"""What /proc shows of a thread, and what is left out where it shows nothing or something else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rootwalk.ebpf.stacks.thread_facts import (
    CALL_NAMES,
    Registers,
    list_threads,
    read_facts,
    read_start,
)

STACK = "[<0>] futex_wait+0xb1/0x150\n[<0>] __x64_sys_futex+0x1/0x2\n[<0>] do_syscall_64+0x1/0x2\n"
FUTEX = next(number for number, name in CALL_NAMES.items() if name == "futex")


def write(folder: Path, **files: str) -> Path:
    task = folder / "7" / "task" / "8"
    task.mkdir(parents=True)
    for name, text in files.items():
        (task / name).write_text(text, encoding="utf-8")
    return folder


def test_a_thread_that_waits_is_shown(tmp_path: Path) -> None:
    call = f"{FUTEX} 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffc10 0x7f0020\n"
    facts = read_facts(7, 8, write(tmp_path, comm="pt_main\n", syscall=call, stack=STACK))
    assert facts.name == "pt_main"
    assert facts.system_call == "futex"
    assert facts.registers == Registers(pc=0x7F0020, sp=0x7FFC10)
    assert [frame.function for frame in facts.kernel] == [
        "futex_wait",
        "__x64_sys_futex",
        "do_syscall_64",
    ]


@pytest.mark.parametrize(
    ("call", "registers"),
    [
        ("running\n", None),
        ("", None),
        ("-1 0x7ffc10 0x7f0020\n", Registers(0x7F0020, 0x7FFC10)),
        ("-1 0x0 0x0\n", None),
        ("9999 a b c d e f g h\n", None),
    ],
)
def test_a_thread_in_no_call_has_no_name_of_one(
    tmp_path: Path, call: str, registers: Registers | None
) -> None:
    facts = read_facts(7, 8, write(tmp_path, syscall=call))
    assert (facts.system_call, facts.registers) == (None, registers)


def test_where_the_stack_may_not_be_read_one_function_is_shown(tmp_path: Path) -> None:
    facts = read_facts(7, 8, write(tmp_path, wchan="do_nanosleep", stack=""))
    assert [frame.function for frame in facts.kernel] == ["do_nanosleep"]
    assert read_facts(7, 9, tmp_path).kernel == ()
    assert read_facts(7, 8, write(tmp_path / "other", wchan="0")).kernel == ()


@pytest.mark.parametrize("last", ["asm_sysvec_apic_timer_interrupt", "el0t_64_irq_handler"])
def test_what_interrupted_a_thread_is_not_what_it_does(tmp_path: Path, last: str) -> None:
    stack = f"[<0>] irqentry_exit_to_user_mode+0x1/0x2\n[<0>] {last}+0x1/0x2\n"
    assert read_facts(7, 8, write(tmp_path, syscall="running", stack=stack)).kernel == ()


def test_a_page_fault_is_what_it_does(tmp_path: Path) -> None:
    stack = "[<0>] filemap_fault+0x1/0x2\n[<0>] asm_exc_page_fault+0x1/0x2\n"
    assert len(read_facts(7, 8, write(tmp_path, stack=stack)).kernel) == 2


def test_hostile_names_are_cut_and_printable(tmp_path: Path) -> None:
    facts = read_facts(7, 8, write(tmp_path, comm="a\x1b[31m" * 99, stack="[<0>] " + "x" * 999))
    assert facts.name.isprintable()
    assert len(facts.name) == len(facts.kernel[0].function or "") == 64


def test_our_own_threads_are_listed() -> None:
    assert threading.get_native_id() in list_threads(os.getpid())
    assert list_threads(1 << 30) == []
    assert read_start(os.getpid()).isdigit()
    assert read_start(1 << 30) == ""
