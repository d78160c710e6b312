"""Show that every import contract breaks on a planted violation.

A contract that cannot fail proves nothing: a misspelt module name passes for ever. For each row of
`PLANTED` the tree is copied, one illegal import is appended to one module, and `lint-imports` must
report that contract, and only contracts that are expected, as broken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# `rootwalk` is a namespace: without this, half of it would be read from the original tree.
START = """
import sys
from importlinter.cli import lint_imports_command
sys.path[:] = [sys.argv.pop(1), *(path for path in sys.path if not path.endswith(".editable"))]
lint_imports_command()
"""
FOLDERS = ("instrumentation", "ebpf", "otel_receiver", "graph", "examples")


@dataclass(frozen=True, slots=True)
class Planted:
    """One illegal import.

    Args:
        contract: Name of the contract that it must break, as in `pyproject.toml`.
        module: File that gets the import.
        statement: The import.
    """

    contract: str
    module: str
    statement: str


PLANTED = (
    Planted("layers of the consumers", "otel_receiver/decode.py", "import rootwalk.graph.model"),
    Planted("layers of the consumers", "graph/walk.py", "import rootwalk.graph.analysis"),
    Planted("layers of the consumers", "graph/model.py", "import rootwalk.graph.walk"),
    Planted("layers of the consumers", "graph/render/text.py", "import rootwalk.graph.cli"),
    Planted("layers of the consumers", "graph/render/text.py", "import rootwalk.graph.report.page"),
    Planted(
        "producers know nothing of consumers", "instrumentation/ids.py", "import rootwalk.graph"
    ),
    Planted(
        "producers know nothing of consumers", "ebpf/agent.py", "import rootwalk.otel_receiver"
    ),
    Planted(
        "consumers know producers by OTLP only", "graph/walk.py", "import rootwalk.ebpf.events"
    ),
    Planted(
        "consumers know producers by OTLP only",
        "otel_receiver/store.py",
        "import rootwalk.instrumentation.shared_ring",
    ),
    Planted(
        "training code never needs the host side",
        "instrumentation/clock.py",
        "import rootwalk.ebpf.events",
    ),
    Planted("training code never needs the host side", "instrumentation/clock.py", "import duckdb"),
    Planted(
        "the agent reads only what the ranks share",
        "ebpf/agent.py",
        "import rootwalk.instrumentation.torch_hooks",
    ),
    Planted("duckdb has four doors", "graph/walk.py", "import duckdb"),
    Planted("duckdb has four doors", "otel_receiver/decode.py", "import duckdb"),
    Planted("NVML has one door", "ebpf/agent.py", "import pynvml"),
    Planted("jinja has one door", "graph/walk.py", "import jinja2"),
    Planted("networkx has one door", "graph/walk.py", "import networkx"),
    Planted("protobuf has few doors", "graph/walk.py", "import google.protobuf"),
    Planted("sockets of the receiver have few doors", "graph/walk.py", "import grpc"),
    Planted("the method is pure", "graph/walk.py", "import rootwalk.otel_receiver.store"),
    Planted(
        "the example knows nothing of Rootwalk",
        "examples/train_ddp.py",
        "import rootwalk.instrumentation",
    ),
    Planted("torch only in the hooks", "graph/walk.py", "import torch"),
)


def copy_tree(target: Path) -> None:
    """Copy the packages, the links that name them, and the contracts."""
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, target / folder, ignore=ignore)
    shutil.copytree(ROOT / ".editable", target / ".editable", symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", target)


def find_broken(tree: Path) -> set[str]:
    """Return the names of the contracts that `lint-imports` reports as broken in a tree.

    Raises:
        RuntimeError: If it stopped before it checked anything.
    """
    done = subprocess.run(
        [sys.executable, "-c", START, str(tree / ".editable"), "--no-cache"],
        cwd=tree,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if not any(line.startswith("Contracts:") for line in lines):
        raise RuntimeError(f"cannot check contracts: lint-imports said\n{done.stdout}{done.stderr}")
    return {line.partition(" BROKEN")[0] for line in lines if " BROKEN" in line}


def main() -> int:
    """Plant one violation after the other; return 1 when a contract did not break."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {contract["name"] for contract in project["tool"]["importlinter"]["contracts"]}
    faults = [
        f"no violation is planted for {name!r}"
        for name in sorted(contracts)
        if name not in {planted.contract for planted in PLANTED}
    ]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        before = find_broken(tree)
        faults += [f"{name!r} is broken without a planted violation" for name in sorted(before)]
        for planted in PLANTED:
            module = tree / planted.module
            if not module.exists():
                faults.append(f"cannot plant {planted.statement!r}: no {planted.module}")
                continue
            source = module.read_text(encoding="utf-8")
            module.write_text(f"{source}\n{planted.statement}\n", encoding="utf-8")
            broken = find_broken(tree)
            module.write_text(source, encoding="utf-8")
            mark = "broke" if planted.contract in broken else "DID NOT BREAK"
            sys.stdout.write(
                f"{mark}: {planted.contract}: {planted.statement} in {planted.module}\n"
            )
            if planted.contract not in broken:
                faults.append(f"{planted.contract!r} survived {planted.statement!r}")
    for fault in faults:
        sys.stdout.write(f"{fault}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
