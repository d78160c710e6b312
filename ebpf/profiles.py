"""Profiles as an OTLP request, for the programs that take stacks; importers of others' profiles build theirs alike."""

from __future__ import annotations

from rootwalk.instrumentation.profiles import (
    Binary,
    Frame,
    FrameKind,
    Profile,
    Sample,
    ValueKind,
    build_request,
)

__all__ = ["Binary", "Frame", "FrameKind", "Profile", "Sample", "ValueKind", "build_request"]
