"""Build the client programs into .setup/clients; what is there and whose sources are the same is kept.

Needs npm, go, and mvn with a JDK of 17 or newer; downloads about 300 MB the first time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from support.built_programs import SETUP, build_once  # noqa: E402
from support.built_programs import run_build as run  # noqa: E402

COLLECTOR_VERSION = "v0.159.0"


def build_python(folder: Path) -> None:
    """Make an environment for the exporter of JSON, with what the file of hashes names."""
    run(sys.executable, "-m", "venv", "venv", cwd=folder)
    options = ("--require-hashes", "--no-deps", "--only-binary", ":all:")
    run("venv/bin/pip", "install", *options, "-r", "requirements.txt", cwd=folder)


def build_js(folder: Path) -> None:
    """Install what the lock file names."""
    run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)


def build_go(folder: Path) -> None:
    """Compile with what go.sum allows."""
    run("go", "build", "-o", "client", ".", cwd=folder)


def build_java(folder: Path) -> None:
    """Compile, and check the libraries against their recorded sums."""
    goals = ("compile", "dependency:copy-dependencies", "-DoutputDirectory=libs")
    run("mvn", "-q", "-B", *goals, cwd=folder)
    run("sha256sum", "--check", "--quiet", "libs.sha256", cwd=folder)


def build_collector(folder: Path) -> None:
    """Install the Collector's own builder and let it build."""
    run(
        "env", f"GOBIN={folder}", "go", "install",
        f"go.opentelemetry.io/collector/cmd/builder@{COLLECTOR_VERSION}", cwd=folder,
    )  # fmt: skip
    run(str(folder / "builder"), "--config", "builder.yaml", cwd=folder)


BUILDERS: dict[str, Callable[[Path], None]] = {
    "python": build_python,
    "js": build_js,
    "go": build_go,
    "java": build_java,
    "collector": build_collector,
}


def build_program(name: str) -> Path:
    """Return the folder of a client that is built from today's sources."""
    return build_once(HERE / name, SETUP / "clients" / name, BUILDERS[name])
