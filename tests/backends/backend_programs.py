"""Build a Collector, Jaeger, Prometheus and a Python with OpenTelemetry's distribution into .setup/backends.

Needs go; downloads about 1 GB the first time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from support.built_programs import SETUP, build_once, run_build  # noqa: E402

COLLECTOR_VERSION = "v0.159.0"
# Where each program lies in its folder.
PROGRAMS = {
    "collector": "built/otelcol-backends",
    "jaeger": "jaeger",
    "prometheus": "prometheus",
    "python": "venv/bin/python",
}


def build_collector(folder: Path) -> None:
    """Install the Collector's own builder and let it build."""
    builder = f"go.opentelemetry.io/collector/cmd/builder@{COLLECTOR_VERSION}"
    run_build("env", f"GOBIN={folder}", "go", "install", builder, cwd=folder)
    run_build(str(folder / "builder"), "--config", "builder.yaml", cwd=folder)


def build_jaeger(folder: Path) -> None:
    """Compile with what go.sum allows; its page is a placeholder, its query API is whole."""
    package = "github.com/jaegertracing/jaeger/cmd/jaeger"
    run_build("go", "build", "-o", "jaeger", package, cwd=folder)


def build_prometheus(folder: Path) -> None:
    """Compile with what go.sum allows, without the discovery of targets, which is most of it."""
    package = "github.com/prometheus/prometheus/cmd/prometheus"
    run_build("go", "build", "-tags", "remove_all_sd", "-o", "prometheus", package, cwd=folder)


def build_python(folder: Path) -> None:
    """Make an environment with OpenTelemetry's distribution, and this copy of Rootwalk as users have it."""
    run_build(sys.executable, "-m", "venv", "venv", cwd=folder)
    pip = ("venv/bin/pip", "install", "-q", "--disable-pip-version-check", "--no-deps")
    run_build(*pip, "--only-binary", ":all:", "-r", "requirements.txt", cwd=folder)
    run_build(*pip, "--editable", str(HERE.parents[1]), cwd=folder)
    run_build("venv/bin/pip", "check", cwd=folder)


BUILDERS: dict[str, Callable[[Path], None]] = {
    "collector": build_collector,
    "jaeger": build_jaeger,
    "prometheus": build_prometheus,
    "python": build_python,
}


def build_program(name: str) -> Path:
    """Return a program that is built from today's sources."""
    return build_once(HERE / name, SETUP / "backends" / name, BUILDERS[name]) / PROGRAMS[name]
