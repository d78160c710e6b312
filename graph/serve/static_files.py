"""Files that a browser asks for by name, with their media types; libraries of others are under their versions.

A library's path has its version, so a browser may keep it for good; what is ours is asked for again with every page.
"""

from __future__ import annotations

import functools
import gzip
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from rootwalk.graph.report.page import read_template

__all__ = ["LIBRARIES", "StaticFile", "library_paths", "read_static"]

SCRIPT: Final = "text/javascript"
STYLE: Final = "text/css"
# Ours, and whether the report has it too.
_OURS: Final = {
    "page.css": (STYLE, True),
    "page.js": (SCRIPT, True),
    "icon.svg": ("image/svg+xml", False),
    "serve.css": (STYLE, False),
    "charts.js": (SCRIPT, False),
    "graphs.js": (SCRIPT, False),
    "serve.js": (SCRIPT, False),
}
# Package, folder, file, media type; versions are in package.json.
LIBRARIES: Final = (
    ("uplot", "uplot", "uPlot.iife.min.js", SCRIPT),
    ("uplot", "uplot", "uPlot.min.css", STYLE),
    ("@dagrejs/dagre", "dagre", "dagre.min.js", SCRIPT),
    ("cytoscape", "cytoscape", "cytoscape.min.js", SCRIPT),
)
KEPT_FOR_GOOD: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file as it is sent; `cache` None for what the server says of all answers."""

    media_type: str
    content: bytes
    zipped: bytes
    cache: str | None


@functools.cache
def library_paths() -> dict[str, tuple[str, str, str]]:
    """Return folder, file and media type of each library by its path below /static/."""
    root = resources.files("rootwalk.graph.serve") / "libraries"
    versions = json.loads((root / "package.json").read_text("utf-8"))["dependencies"]
    return {
        f"{folder}-{versions[package]}/{name}": (folder, name, media_type)
        for package, folder, name, media_type in LIBRARIES
    }


@functools.cache
def read_static(path: str) -> StaticFile | None:
    """Return a file by its path below /static/; None where there is no such file."""
    if path in _OURS:
        media_type, is_of_report = _OURS[path]
        text = read_template(path) if is_of_report else _resource("templates", path).decode()
        return _static(media_type, text.encode(), None)
    if path in library_paths():
        folder, name, media_type = library_paths()[path]
        return _static(media_type, _resource("libraries", folder, name), KEPT_FOR_GOOD)
    return None


def _static(media_type: str, content: bytes, cache: str | None) -> StaticFile:
    return StaticFile(media_type, content, gzip.compress(content, mtime=0), cache)


def _resource(*names: str) -> bytes:
    found: Any = resources.files("rootwalk.graph.serve")
    for name in names:
        found = found / name
    content: bytes = found.read_bytes()
    return content
