"""A package that the base install lacks is named with the way to get it, never by a traceback."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from rootwalk.graph.cli import is_host_package

ROOT = Path(__file__).resolve().parents[3]
HOST_FOLDERS = ("graph", "ebpf", "otel_receiver")


def find_packages() -> set[str]:
    """Return every package of others that a module of the host side imports, wherever in it."""
    found: set[str] = set()
    for path in (path for folder in HOST_FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"rootwalk"}


def run_without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from rootwalk.graph.cli import main\n"
        f"sys.exit(main({list(arguments)!r}))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_every_package_of_the_host_side_is_known_as_one() -> None:
    packages = find_packages()
    assert {"duckdb", "orjson", "pyarrow", "zstandard"} <= packages
    assert [name for name in packages if not is_host_package(name)] == []


@pytest.mark.parametrize("name", ["rootwalk", "json", ""])
def test_own_modules_and_python_s_are_no_packages_of_the_host_side(name: str) -> None:
    assert not is_host_package(name)


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("orjson", ("export", "s.duckdb", "--format", "otlp", "--output", "o.json")),
        ("duckdb", ("diagnose", "s.duckdb")),
    ],
)
def test_missing_package_is_told_with_the_way_to_get_it(
    package: str, arguments: tuple[str, ...]
) -> None:
    done = run_without(package, *arguments)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"no {package} in " in done.stderr
    assert "hint: pip install 'rootwalk[all]'" in done.stderr
