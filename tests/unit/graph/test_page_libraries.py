"""Libraries of others that the live page ships: the bytes of named versions, with their licences, named in NOTICE."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from rootwalk.graph.serve import static_files
from rootwalk.graph.serve.static_files import library_paths, read_static

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "graph" / "serve" / "libraries"
SUMS = {
    name: digest
    for digest, name in (
        line.split("  ") for line in (FOLDER / "SHA256SUMS").read_text().splitlines()
    )
}
LOCKED = {
    name.removeprefix("node_modules/"): package
    for name, package in json.loads((FOLDER / "package-lock.json").read_text())["packages"].items()
    if name
}


def test_every_file_is_as_it_was_fetched() -> None:
    found = {
        str(path.relative_to(FOLDER)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FOLDER.glob("*/*")
    }
    assert found == SUMS, "make page-libraries fetches them again"


def test_versions_are_pinned_and_free() -> None:
    wanted = json.loads((FOLDER / "package.json").read_text())["dependencies"]
    assert {name: LOCKED[name]["version"] for name in wanted} == wanted
    for name, package in LOCKED.items():
        assert package["integrity"].startswith("sha512-")
        assert package["license"] == "MIT"
        assert f"{Path(name).name}/LICENSE" in SUMS


def test_the_notice_names_them_all() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for name, package in LOCKED.items():
        assert re.search(rf"{re.escape(name)} {re.escape(package['version'])}\b", notice), name


def test_they_ask_nobody_and_run_no_text() -> None:
    for path in FOLDER.glob("*/*.js"):
        text = path.read_text()
        assert not re.search(r"\beval\(|new Function|XMLHttpRequest|\bfetch\(|importScripts", text)


@pytest.mark.parametrize("path", list(library_paths()))
def test_a_library_is_kept_by_its_version(path: str) -> None:
    file = read_static(path)
    assert file is not None
    assert re.fullmatch(r"[a-z]+-\d+\.\d+\.\d+/[\w.]+", path)
    assert file.cache == static_files.KEPT_FOR_GOOD
    assert len(file.zipped) < len(file.content)
    assert (FOLDER / path.partition("-")[0] / path.rpartition("/")[2]).read_bytes() == file.content
