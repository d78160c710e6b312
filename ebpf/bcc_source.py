"""The kernel programs in the form that BCC compiles: the same source, not a second one.

What libbpf does to an object when it loads it, BCC has no word for. Here it is done to the text before it is compiled:

    structures of the kernel    get their fields where its BTF says that they are
    `task->pid` and the like    become reads of the kernel's memory, `LOAD` in `programs/bcc.bpf.h`
    `if (HAS_FIELD(...)) x;`    becomes `x;`, or nothing where its BTF has no such field
    maps                        are made first; `&name` in a call becomes the descriptor of one
    variables                   become what the kernel makes of them anyway: arrays of one element
    `tp_btf` programs           become raw tracepoint programs: the same arguments, without types
    functions                   are all inline: there are no calls between them
    helpers                     are BCC's own declarations

What is overlooked here does not compile, or the kernel refuses it: a plain load through an argument without a type is
forbidden. BCC's own rewriting of C is not used: it looks at the main text only, and the programs are included by it.
Pure but for reading the shipped sources.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from rootwalk.ebpf.btf import KernelTypes, Member

__all__ = ["BccSource", "translate"]

# As the compiler of the objects is told.
ARCHITECTURE = "arm64" if platform.machine() == "aarch64" else "x86"
HEAD = f"#define ROOTWALK_BCC 1\n#define __TARGET_ARCH_{ARCHITECTURE} 1\n"
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)
STRUCTURE = re.compile(r"struct (\w+) \{([^{}]*)\} RELOCATED;")
FLAVOUR = "___"  # what follows it is not part of a structure's name
POINTER = re.compile(r"\bstruct (\w+) \*(\w+)\b")
ACCESS = re.compile(r"(?<!&)\b(\w+)->(\w[\w.]*(?:\[\w+\])*)")
CONDITIONAL = re.compile(r"if \(HAS_FIELD\((\w+)->([\w.]+)\)\)\s+([^;]*;)")
FIELD = re.compile(r"(?P<type>[\w ]+?[ *]+)(?P<name>\w+)(?P<array>(?:\[\w+\])*)")
HELPER = re.compile(r"^static [^\n;]*\(\*bpf_\w+\)\([^\n;]*\) = \(void \*\)\d+;\n", re.MULTILINE)
FUNCTION = re.compile(r"^static (?:__attribute__\(\(noinline\)\) )?(?=\w+ \w+\()", re.MULTILINE)
MAP = re.compile(r'struct \{\s*__uint\(type, MAP_TYPE_(\w+)\);[^{}]*\} (\w+) SEC\("\.maps"\);')
MAP_ARGUMENT = re.compile(r"\b(bpf_\w+\()&(\w+)\b")
VARIABLE = re.compile(r"^(const )?volatile (struct \w+) (\w+) = [^;]*;", re.MULTILINE)
HOOK = re.compile(r'SEC\("(?:tp_btf|raw_tp)/(\w+)"\)\s*int (\w+)\(u64 \*ctx\)')
# How an instruction names a map by its descriptor, and the value of an array's only element (BPF_PSEUDO_MAP_*).
MAP_BY_DESCRIPTOR, VALUE_BY_DESCRIPTOR = 1, 2


@dataclass(frozen=True, slots=True)
class MapForm:
    """How BCC is to make one map, in the words of C.

    Attributes:
        name: As libbpf calls it.
        kind: BCC's word for its type.
        key: Type of its keys.
        value: Type of its values.
        entries: How many it holds.
    """

    name: str
    kind: str
    key: str
    value: str
    entries: str


@dataclass(frozen=True, slots=True)
class BccSource:
    """One program, translated.

    Attributes:
        definitions: The text that defines maps; nothing of it runs.
        programs: The text that uses them, by the names `MAP_<name>`.
        maps: How to make each map, by its name in C.
        hooks: Tracepoint of each program by its name.
    """

    definitions: str
    programs: str
    maps: Mapping[str, MapForm]
    hooks: Mapping[str, str]

    def maps_text(self, path: str, entries: Mapping[str, int]) -> str:
        """Return the main text of a module that only makes the maps.

        Args:
            path: Where `definitions` is.
            entries: Capacities of maps, other than those in the source.
        """
        lines = [f'#include "{path}"']
        for name, form in self.maps.items():
            count = entries.get(name, form.entries)
            if form.kind == "ringbuf":
                lines.append(f"BPF_RINGBUF_OUTPUT(made_{name}, ({count}) / PAGE_SIZE);")
            else:
                line = f'BPF_TABLE("{form.kind}", {form.key}, {form.value}, made_{name}, {count});'
                lines.append(line)
        return "\n".join(lines) + "\n"

    def programs_text(self, path: str, descriptors: Mapping[str, int]) -> str:
        """Return the main text of the module with the programs.

        Args:
            path: Where `programs` is.
            descriptors: File descriptor of every map by its name.
        """
        lines = [f"#define MAP_{name} {fd}" for name, fd in descriptors.items()]
        lines.append(f'#include "{path}"')
        lines += [
            f"int {name}(struct bpf_raw_tracepoint_args *ctx) {{ return run_{name}((u64 *)ctx); }}"
            for name in self.hooks
        ]
        return "\n".join(lines) + "\n"


def translate(name: str, types: KernelTypes) -> BccSource:
    """Return a shipped program as BCC can compile it.

    Args:
        name: Its file without `.bpf.c`.
        types: Where the running kernel has its fields.

    Raises:
        ValueError: If the source has a form that is not known here.
    """
    text = HELPER.sub("", _expand(f"{name}.bpf.c", set()))
    text = _read_by_helper(_answer_conditions(text, types))
    text = STRUCTURE.sub(lambda found: _place_fields(found[1], found[2], types), text)
    text = FUNCTION.sub("INLINE ", text)
    hooks = {program: tracepoint for tracepoint, program in HOOK.findall(text)}
    text = HOOK.sub(r"INLINE int run_\2(u64 *ctx)", text)
    maps = {variable: _map_form(variable, kind) for kind, variable in MAP.findall(text)}
    if text.count("SEC(") != len(maps) + 2:  # beside maps its own definition and the licence
        raise ValueError(f'cannot translate "{name}": saw a section that is not known here')
    for is_constant, structure, variable in VARIABLE.findall(text):
        section = f"{name}.rodata" if is_constant else f"{name}.data"
        maps[variable] = MapForm(section, "array", "u32", structure, "1")
    programs = MAP_ARGUMENT.sub(
        lambda found: (
            f"{found[1]}(void *)bpf_pseudo_fd({MAP_BY_DESCRIPTOR}, MAP_{found[2]})"
            if found[2] in maps
            else found[0]
        ),
        MAP.sub("", text),
    )
    programs = VARIABLE.sub(
        rf"#define \3 (*(volatile \2 *)bpf_pseudo_fd({VALUE_BY_DESCRIPTOR}, MAP_\3))", programs
    )
    definitions = VARIABLE.sub(r"static \g<0>", text)
    return BccSource(HEAD + definitions, HEAD + programs, maps, hooks)


def _map_form(variable: str, kind: str) -> MapForm:
    key, value = f"__typeof__(*{variable}.key)", f"__typeof__(*{variable}.value)"
    entries = f"sizeof(*{variable}.max_entries) / sizeof(int)"
    return MapForm(variable, kind.lower(), key, value, entries)


def _expand(file: str, seen: set[str]) -> str:
    """Return a source with its own headers in it, each once, without comments."""
    if file in seen:
        return ""
    seen.add(file)
    text = (files("rootwalk.ebpf.programs") / file).read_text(encoding="utf-8")
    return INCLUDE.sub(lambda found: _expand(found[1], seen), COMMENT.sub("", text))


def _answer_conditions(text: str, types: KernelTypes) -> str:
    """Return a source without statements that are for kernels with other fields."""
    structures = {name: structure.split(FLAVOUR)[0] for structure, name in POINTER.findall(text)}
    return CONDITIONAL.sub(
        lambda found: found[3] if types.member(structures[found[1]], found[2]) else "", text
    )


def _read_by_helper(text: str) -> str:
    """Return a source that reads what is behind pointers to the kernel's structures by `LOAD`."""
    structures = {structure for structure, _ in STRUCTURE.findall(text)}
    pointers = {name for structure, name in POINTER.findall(text) if structure in structures}
    text = ACCESS.sub(
        lambda found: f"LOAD(&{found[0]})" if found[1] in pointers else found[0], text
    )
    return text.replace("__builtin_preserve_access_index", "")


def _place_fields(structure: str, body: str, types: KernelTypes) -> str:
    """Return a structure of the kernel with its fields where the running one has them.

    A field that this kernel does not have is left out: what reads it does not compile.
    """
    kernels = structure.split(FLAVOUR)[0]
    if not types.has_structure(kernels):
        return f"struct {structure};"
    fields: list[str] = []
    checks: list[str] = []
    for declaration in filter(None, map(str.strip, body.split(";"))):
        found = FIELD.fullmatch(declaration)
        if found is None:
            raise ValueError(
                f'cannot translate "{structure}": saw "{declaration}"; needs one field'
            )
        place = types.member(kernels, found["name"])
        if place is not None:
            padding = f"char before_{found['name']}[{place.offset_bytes}]"
            fields.append(f"struct {{ {padding}; {declaration}; }};")
            checks += _check_field(structure, found, place)
    return "\n".join((f"struct {structure} {{ union {{", *fields, "}; };", *checks))


def _check_field(structure: str, field: re.Match[str], place: Member) -> Iterator[str]:
    """Yield what the compiler is to check: a field at another place, or of another size, would be read wrongly."""
    where = f"{structure}, {field['name']}"
    yield f'_Static_assert(__builtin_offsetof(struct {where}) == {place.offset_bytes}, "{where}");'
    is_part = field["type"].startswith("struct ") and "*" not in field["type"]
    if not is_part:  # of a structure within, only what is read is known here
        size = f"sizeof(((struct {structure} *)0)->{field['name']})"
        yield f'_Static_assert({size} == {place.size_bytes}, "{where}");'
