"""The house keeps its own rules: what the style asks for and a machine can check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import duckdb
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("instrumentation", "ebpf", "otel_receiver", "graph", "examples")
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# What fits on a few screens (issue 39).
MAX_README_LINES, MAX_README_WORDS = 200, 1500
# One idea a module: past this it is more than one, below 150 lines it may be a part of one.
MAX_MODULE_LINES = 500
# Generated from the registry, one definition a line.
GENERATED = {"instrumentation/semconv.py"}
HEAVY = ("torch", "duckdb", "grpc", "bcc", "pynvml", "pyarrow", "networkx", "numpy", "jinja2")
# Put together at run time, so that this file does not match itself.
FOREIGN_PATHS = tuple("/" + name + "/" for name in ("work", "root"))


def list_modules() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def list_texts() -> list[Path]:
    """Every text file that git keeps, or would keep, in this copy."""
    tops = [*FOLDERS, "tests", ".ci", "changes", "docs"]
    paths = [path for top in tops for path in (ROOT / top).rglob("*") if path.is_file()]
    paths += [path for path in ROOT.iterdir() if path.is_file()]
    return [
        path
        for path in sorted(paths)
        if "__pycache__" not in path.parts
        and path.suffix not in {".o", ".pyc", ".duckdb", ".whl"}
        and path.relative_to(ROOT).parts[:2] != ("tests", "data")  # what others recorded, unchanged
    ]


def read_views() -> list[str]:
    schema = (ROOT / "otel_receiver" / "schema.sql").read_text(encoding="utf-8")
    return re.findall(r"CREATE (?:OR REPLACE )?VIEW (?:IF NOT EXISTS )?(\w+)", schema)


def read_view_rows() -> dict[str, str]:
    """The documents' table of views: name to query."""
    text = (ROOT / "docs" / "receiver.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| `(SELECT [^`]+)` \|$", text, re.MULTILINE))


def test_rootwalk_is_a_namespace_without_an_init() -> None:
    assert not (ROOT / ".editable" / "rootwalk" / "__init__.py").exists()
    for folder in FOLDERS:
        link = ROOT / ".editable" / "rootwalk" / folder
        assert link.is_symlink()
        assert link.readlink() == Path("../..") / folder
        assert (ROOT / folder / "py.typed").exists()


@pytest.mark.parametrize("path", list_modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_module_is_short_and_says_what_it_owns(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    if str(path.relative_to(ROOT)) not in GENERATED:
        lines = source.count("\n")
        assert lines < MAX_MODULE_LINES, "split it by idea"
    if source:
        assert ast.get_docstring(ast.parse(source)), "a module begins with what it owns"


def test_no_module_has_an_empty_name() -> None:
    empty = re.compile(r"(util|common|helper|manager|misc)s?$")
    assert [path.stem for path in list_modules() if empty.search(path.stem)] == []


def test_no_file_names_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {foreign}"
        for path in list_texts()
        for foreign in FOREIGN_PATHS
        if foreign in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []


@pytest.mark.parametrize(
    "name",
    ["generate_semconv", "generate_result_tables", "generate_reason_table", "generate_reason_page"],
)
def test_generated_files_are_up_to_date(name: str) -> None:
    done = subprocess.run(
        [sys.executable, f".ci/{name}.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_help_needs_no_heavy_import() -> None:
    # build_parser imports the module of every command.
    code = (
        "import sys; from rootwalk.graph.cli import build_parser; build_parser();"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_documents_list_every_public_view() -> None:
    views = read_views()
    assert "steps" in views
    # nodes, edges and evidence are tables that are public as they are.
    public = {*views, "rootwalk_schema", "nodes", "edges", "evidence"}
    assert public == set(read_view_rows())


@pytest.mark.parametrize("view", sorted(read_view_rows()))
def test_query_of_the_documents_runs_on_an_empty_store(view: str) -> None:
    query = read_view_rows()[view]
    assert re.search(rf"\b{view}\b", query), "the query is about its view"
    with duckdb.connect(":memory:") as connection:
        connection.execute((ROOT / "otel_receiver" / "schema.sql").read_text(encoding="utf-8"))
        connection.execute(query).fetchall()


def test_the_readme_is_short_and_shows_both_commands_first() -> None:
    lines = README.splitlines()
    assert len(lines) <= MAX_README_LINES
    assert len(README.split()) <= MAX_README_WORDS
    first_screen = "\n".join(lines[:20])
    assert "\nmake demo " in first_screen
    assert "\nmake test " in first_screen


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_every_row_of_a_table_belongs_to_a_table(page: str) -> None:
    check_tables(ROOT / page)


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_every_row_of_a_table_of_a_page_belongs_to_a_table(page: str) -> None:
    check_tables(ROOT / "docs" / page)


def check_tables(path: Path) -> None:
    """Fail where a row has no header above it: it would be rendered as a paragraph of pipes."""
    is_code, before = False, ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        is_code ^= line.startswith("```")
        if not is_code and line.startswith("|") and not before.startswith("|"):
            following = path.read_text(encoding="utf-8").splitlines()[number]
            assert re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", following), f"{path.name}:{number}"
        before = line


def test_contributing_names_every_dependency_and_why() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["all"]]
    names = {re.split(r"[<>=]", requirement)[0] for requirement in wanted}
    assert {name for name in names if f"`{name}`" not in CONTRIBUTING} == set()
    assert "torch" not in names


def test_make_targets_of_the_documents_exist() -> None:
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    pages = [
        README,
        CONTRIBUTING,
        *(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")),
    ]
    for text in pages:
        assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets


def test_change_notes_are_named_by_issue_and_kind() -> None:
    pattern = re.compile(r"\d+\.(feature|change|fix|removal)(\.\d+)?\.md")
    notes = [path for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    assert notes
    for note in notes:
        assert pattern.fullmatch(note.name), note.name
        assert note.read_text(encoding="utf-8").strip(), note.name


def test_licences_are_in_place() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert len((ROOT / "LICENSE").read_text(encoding="utf-8").splitlines()) > 200
    bsd = ROOT / "ebpf" / "programs" / "LICENSE.BSD-2-Clause"
    assert bsd.read_text(encoding="utf-8").startswith("BSD 2-Clause License")


def test_every_error_is_in_the_tree_at_the_top_of_its_module() -> None:
    source = (ROOT / "instrumentation" / "errors.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    docstring = ast.get_docstring(tree) or ""
    assert [name for name in classes if name not in docstring] == []


def test_errors_are_raised_with_the_one_form_of_text() -> None:
    """Literal texts of our errors start with `cannot` and have no full stop at the end."""
    names = {"ConfigError", "UnavailableError", "DecodeError", "StoreError"}
    names |= {"InsufficientDataError", "RootwalkError"}
    wrong = []
    for path in list_modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
                continue
            if not (isinstance(node.exc.func, ast.Name) and node.exc.func.id in names):
                continue
            text = literal_text(node.exc.args[0]) if node.exc.args else None
            if text is not None and (not text.startswith("cannot ") or text.endswith(".")):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text}")
    assert wrong == []


def literal_text(node: ast.expr) -> str | None:
    """The text of a string or f-string, fields as {}; None when it is put together elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    return None


def list_pins(install: str) -> list[str]:
    command = [sys.executable, ".ci/lowest.py", install]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("install", "wanted", "unwanted"),
    [("base", "opentelemetry-sdk", "duckdb"), ("all", "duckdb", "opentelemetry-sdk")],
)
def test_versions_are_pinned_down_from_their_lower_bounds(
    install: str, wanted: str, unwanted: str
) -> None:
    pins = list_pins(install)
    assert pins == sorted(pins)
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", pin) for pin in pins)
    names = {pin.partition("==")[0] for pin in pins}
    assert wanted in names
    assert unwanted not in names
