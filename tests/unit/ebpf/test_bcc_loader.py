"""Which module named bcc is taken, and what is said of the others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.bcc_headers import write_headers
from rootwalk.ebpf.bcc_loader import find_bcc
from rootwalk.instrumentation.errors import UnavailableError


def package(folder: Path, code: str) -> Path:
    (folder / "bcc").mkdir(parents=True)
    (folder / "bcc" / "part.py").write_text("BPF = 'the right one'\n")
    (folder / "bcc" / "__init__.py").write_text(code)
    return folder


RIGHT, LATTICE, BROKEN = (
    "from .part import BPF\n",
    "class Lattice: pass\n",
    "import no_such_module\n",
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is searched first, in a process that has no module bcc."""
    first = tmp_path / "first"
    first.mkdir()
    monkeypatch.syspath_prepend(str(first))
    yield first
    for name in [name for name in sys.modules if name.split(".")[0] == "bcc"]:
        del sys.modules[name]


def test_module_on_the_path(path: Path, tmp_path: Path) -> None:
    package(path, RIGHT)
    assert find_bcc(tmp_path / "none").BPF == "the right one"


@pytest.mark.parametrize("code", [None, LATTICE, BROKEN])
def test_module_of_the_system_that_the_environment_does_not_see(
    path: Path, tmp_path: Path, code: str | None
) -> None:
    if code is not None:
        package(path, code)
    assert find_bcc(package(tmp_path / "system", RIGHT)).BPF == "the right one"


def test_package_of_the_same_name_is_refused(path: Path, tmp_path: Path) -> None:
    package(path, LATTICE)
    with pytest.raises(UnavailableError, match="another package named bcc") as caught:
        find_bcc(tmp_path / "none")
    assert caught.value.reason == Reason.WRONG_BCC
    assert str(path) in str(caught.value)


def test_folder_of_that_name_is_refused(path: Path, tmp_path: Path) -> None:
    (path / "bcc").mkdir()
    with pytest.raises(UnavailableError) as caught:
        find_bcc(tmp_path / "none")
    assert caught.value.reason == Reason.WRONG_BCC


@pytest.mark.parametrize("code", [None, BROKEN])
def test_no_module(path: Path, tmp_path: Path, code: str | None) -> None:
    if code is not None:
        package(path, code)
    else:
        (path / "bcc.py").write_text("raise ImportError('as if it were not there')\n")
    with pytest.raises(UnavailableError) as caught:
        find_bcc(tmp_path / "none")
    assert caught.value.reason == Reason.NO_BCC


def test_headers_have_no_structure_of_the_kernel(tmp_path: Path) -> None:
    write_headers(tmp_path)
    texts = [path.read_text() for path in tmp_path.rglob("*.h")]
    assert len(texts) == 10
    assert not any("struct" in text for text in texts)
