"""What a training job imports of Rootwalk runs on Python 3.10, though the host side needs 3.11."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "instrumentation"
OLDEST = (3, 10)
# Names that came with Python 3.11 or later, by module; `text_enum` has the one that is needed.
NEWER = {
    "asyncio": {"TaskGroup", "Runner", "Barrier", "timeout"},
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "ReprEnum", "EnumCheck", "verify", "member", "nonmember"},
    "hashlib": {"file_digest"},
    "itertools": {"batched"},
    "operator": {"call"},
    "typing": {
        "LiteralString",
        "Never",
        "NotRequired",
        "Required",
        "Self",
        "TypeVarTuple",
        "Unpack",
        "assert_never",
        "assert_type",
        "dataclass_transform",
        "override",
        "reveal_type",
    },
    "warnings": {"deprecated"},
}
NEWER_MODULES = {"tomllib"}
NEWER_NAMES = {"BaseExceptionGroup", "ExceptionGroup"}


def list_modules() -> list[Path]:
    return sorted(FOLDER.rglob("*.py"))


def find_newer(tree: ast.Module) -> list[str]:
    """Return what a module uses that Python 3.10 lacks."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = NEWER.get(node.module or "", set())
            found += [f"{node.module}.{one.name}" for one in node.names if one.name in names]
            found += [str(node.module)] if node.module in NEWER_MODULES else []
        elif isinstance(node, ast.Import):
            found += [one.name for one in node.names if one.name in NEWER_MODULES]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NEWER.get(node.value.id, set()):
                found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Name) and node.id in NEWER_NAMES:
            found.append(node.id)
    return found


@pytest.mark.parametrize("path", list_modules(), ids=lambda path: str(path.relative_to(FOLDER)))
def test_module_of_the_job_runs_on_the_oldest_python(path: Path) -> None:
    # `feature_version` refuses the newer syntax (exception groups, type statements).
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST)
    is_own = path.name == "text_enum.py"
    assert [name for name in find_newer(tree) if not (is_own and name == "enum.StrEnum")] == []


def test_newer_names_are_found() -> None:
    source = "from enum import StrEnum\nimport tomllib\nimport datetime\nprint(datetime.UTC)\n"
    assert find_newer(ast.parse(source)) == ["enum.StrEnum", "tomllib", "datetime.UTC"]
