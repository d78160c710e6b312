"""The documents: their links lead somewhere, their commands are commands, and those of a store are run as written."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rootwalk.graph.cli import COMMANDS, build_parser
from rootwalk.graph.reasons.contract import CONTRACT
from rootwalk.graph.reasons.meanings import MEANINGS
from rootwalk.graph.serve.answers import INDEX
from support.jobs import Fault, Job, write_job

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TOP_PAGES = [
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DUMPS = ROOT / "tests" / "data" / "nvrx_flight_recorder" / "fr_traces" / "lock_gil_1st"
TRAIN = ROOT / "examples" / "train_ddp.py"


def blocks(path: Path) -> list[tuple[str, str]]:
    """The kind and text of each block of a page."""
    return BLOCK.findall(path.read_text(encoding="utf-8"))


def commands() -> list[tuple[str, str]]:
    """Every `rootwalk …` of a block of the documents and the README, with its page."""
    found = []
    for path in [*TOP_PAGES, *PAGES]:
        for _, text in blocks(path):
            found += [(path.name, line) for line in text.splitlines() if "rootwalk " in line]
    return found


def anchors(path: Path) -> set[str]:
    """What a link can lead to inside a page, as GitHub names its headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_can_be_reached_and_every_link_leads_somewhere() -> None:
    linked = set()
    for path in [*TOP_PAGES, *PAGES]:
        text = path.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
            leads = path.parent / target if target else path
            assert leads.exists(), f"{path.name} links to {target}"
            assert not anchor or anchor in anchors(leads), f"{path.name} links to {target}#{anchor}"
            linked.add(leads.resolve())
    assert {path.resolve() for path in PAGES} <= linked


def test_every_command_in_the_documents_can_be_said() -> None:
    parser = build_parser()
    seen = 0
    for page, line in commands():
        words = shlex.split(
            re.sub(r"^srun (--\S+ )*|^\.venv/bin/|\s&$", "", line.strip()), comments=True
        )
        if words[0] != "rootwalk":
            continue
        assert words[1] in COMMANDS, f"{page}: {line}"
        parser.parse_args(words[1:])
        seen += 1
    assert seen > 20


def test_every_reason_code_has_a_page_entry_and_a_meaning() -> None:
    text = (DOCS / "reasons.md").read_text(encoding="utf-8")
    assert MEANINGS.keys() == CONTRACT.keys()
    for part in ("layer", "evidence", "looks like", "action"):
        assert text.count(f"\n- **{part}**") == len(CONTRACT), part
    assert re.findall(r"^### (\w+)$", text, re.MULTILINE) == list(
        dict.fromkeys(code for layer in dict.fromkeys(v[0] for v in CONTRACT.values())
                      for code, (of_layer, _) in CONTRACT.items() if of_layer == layer)
    )  # fmt: skip
    for code, meaning in MEANINGS.items():
        named = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", meaning.looks_like))
        assert named <= CONTRACT.keys() - {code}, f"{code} looks like something unknown"


def test_the_api_in_the_documents_is_the_servers() -> None:
    text = (DOCS / "page.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(/api/v1/[^`]+)` \|", text, re.MULTILINE)) == set(INDEX)


@pytest.mark.variant
@pytest.mark.parametrize("page", [path.stem for path in PAGES])
def test_the_commands_of_a_page_run_as_written(page: str, tmp_path: Path) -> None:
    has_torch = importlib.util.find_spec("torch") is not None
    texts = [
        text
        for kind, text in blocks(DOCS / f"{page}.md")
        if kind == "sh" or (kind == "sh torch" and has_torch)
    ]
    write_job(
        tmp_path / "job.duckdb",
        Job(ranks=4, steps=60, faults=(Fault("contention", 2, 0.06, 40),)),
    )
    shutil.copytree(DUMPS, tmp_path / "dumps")
    shutil.copy(TRAIN, tmp_path / "train.py")
    if page == "attach":
        (tmp_path / "job.duckdb").unlink()  # the page makes its own
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for text in texts:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip()
