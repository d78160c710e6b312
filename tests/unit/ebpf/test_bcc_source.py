"""The shipped programs as BCC gets them, with fields where a kernel made by hand has them."""

from __future__ import annotations

import re

import pytest

from rootwalk.ebpf import bcc_source
from rootwalk.ebpf.bcc_source import translate
from rootwalk.ebpf.btf import KernelTypes
from support.fake_types import FakeTypes, fake_kernel

TYPES = KernelTypes(fake_kernel().encode())


def test_hooks_are_those_of_the_source() -> None:
    assert translate("sched", TYPES).hooks == {
        "on_switch": "sched_switch",
        "on_waking": "sched_waking",
        "on_wakeup": "sched_wakeup",
        "on_wakeup_new": "sched_wakeup_new",
        "on_migrate": "sched_migrate_task",
        "on_exit": "sched_process_exit",
    }
    assert translate("targets", TYPES).hooks == {
        "on_fork": "sched_process_fork",
        "on_end": "sched_process_exit",
    }


@pytest.mark.parametrize("name", ["sched", "sched_5_15", "targets"])
def test_nothing_of_libbpf_is_left(name: str) -> None:
    source = translate(name, TYPES)
    for word in ('SEC(".maps")', "tp_btf", "const volatile", "(void *)181"):
        assert word not in source.programs
    assert "#include" not in source.definitions
    # Every map that a call uses is one that is made.
    used = set(re.findall(r"bpf_pseudo_fd\(1, MAP_(\w+)\)", source.programs))
    assert used <= set(source.maps)
    assert "targets" in used


def test_program_for_an_older_kernel_is_the_same_one() -> None:
    old, new = translate("sched_5_15", TYPES), translate("sched", TYPES)
    assert old.hooks == new.hooks
    assert old.maps.keys() - new.maps.keys() == {"steps"}
    assert "#define BEFORE_5_18" in old.programs
    assert "#define BEFORE_5_18" not in new.programs


def test_fields_are_where_this_kernel_has_them() -> None:
    text = translate("sched", TYPES).programs
    for field, offset in (("flags", 40), ("pid", 100), ("tgid", 104), ("comm", 200)):
        assert f"char before_{field}[{offset}];" in text
        assert f"offsetof(struct task_struct, {field}) == {offset}" in text
    assert "char before_cpu[8]; u32 cpu;" in text
    assert "sizeof(((struct task_struct *)0)->comm) == 16" in text


def test_structure_and_field_that_the_kernel_does_not_have() -> None:
    fake = FakeTypes()
    u32 = fake.integer("unsigned int", 4)
    fake.structure("task_struct", 256, [("flags", u32, 320)])
    text = translate("sched", KernelTypes(fake.encode())).programs
    assert "struct thread_info;" in text
    assert "before_flags[40]" in text
    assert "before_pid" not in text


def test_data_section_is_a_map_of_one_element() -> None:
    source = translate("sched", TYPES)
    form = source.maps["config"]
    assert (form.name, form.kind, form.value, form.entries) == (
        "sched.rodata",
        "array",
        "struct sched_config",
        "1",
    )
    assert "#define config (*(volatile struct sched_config *)bpf_pseudo_fd(2, MAP_config))" in (
        source.programs
    )


def test_variable_that_changes_is_a_map_too() -> None:
    source = translate("sched", TYPES)
    assert source.maps["detail"].name == "sched.data"
    assert "bpf_pseudo_fd(2, MAP_detail)" in source.programs


def test_questions_about_fields_are_answered_before_compiling() -> None:
    text = translate("sched", TYPES).programs
    assert "HAS_FIELD(" not in text.split("struct system_call", 1)[1]
    assert "LOAD(&x86->orig_ax)" in text
    assert "arm64->" not in text


def test_element_of_an_array_is_read_alone() -> None:
    fake = FakeTypes()
    word, s32 = fake.integer("unsigned long", 8), fake.integer("int", 4)
    registers = [
        ("regs", fake.array(word, 31), 0),
        ("orig_x0", word, 2048),
        ("syscallno", s32, 2112),
    ]
    fake.structure("pt_regs", 288, registers)
    text = translate("sched", KernelTypes(fake.encode())).programs
    assert "LOAD(&arm64->regs[1])" in text
    assert "x86->" not in text


def test_main_texts() -> None:
    source = translate("targets", TYPES)
    made = source.maps_text("/x/maps.c", {"targets": 7})
    assert 'BPF_TABLE("hash", __typeof__(*targets.key), __typeof__(*targets.value)' in made
    assert "made_targets, 7);" in made
    used = source.programs_text("/x/programs.c", {"targets": 12})
    assert "#define MAP_targets 12" in used
    assert (
        "int on_fork(struct bpf_raw_tracepoint_args *ctx) { return run_on_fork((u64 *)ctx); }"
        in used
    )


def test_memory_of_the_kernel_is_read_by_a_helper() -> None:
    text = translate("sched", TYPES).programs
    assert "find_target(LOAD(&next->tgid))" in text
    assert "LOAD(&task->thread_info.cpu)" in text
    assert not re.search(r"(?<!&)\b(task|next|previous)->", text)
    assert "thread->since_ns = now;" in text  # not the kernel's: a map's


def test_no_function_is_called() -> None:
    text = translate("sched", TYPES).programs
    assert "noinline" not in text
    assert not re.search(r"^static (?!inline)\w[^;=]*\)$", text, re.MULTILINE)


@pytest.mark.parametrize(
    "section",
    ['SEC("kprobe/do_exit")\nint on_it(void *ctx) {}', 'struct { int x; } y SEC(".maps");'],
)
def test_section_of_an_unknown_form_is_refused(
    monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    plain = bcc_source._expand
    monkeypatch.setattr(bcc_source, "_expand", lambda file, seen: plain(file, seen) + section)
    with pytest.raises(ValueError, match="not known here"):
        translate("targets", TYPES)


@pytest.mark.parametrize("body", ["int (*call)(void);", "union { int a; };", "u32 bits : 3;"])
def test_field_of_an_unknown_form_is_refused(body: str) -> None:
    with pytest.raises(ValueError, match="needs one field"):
        bcc_source._place_fields("task_struct", body.rstrip(";") + ";", TYPES)
