"""OpenTelemetry entry points: `opentelemetry-instrument` and the resource detector load these."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor
from opentelemetry.sdk.resources import Resource, ResourceDetector

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.identity import is_rank, read_identity
from rootwalk.instrumentation.start import start

__all__ = ["RootwalkInstrumentor", "RootwalkResourceDetector"]


class RootwalkInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Watches PyTorch training in this process."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no requirement: torch may be imported later, or never."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        start()

    def _uninstrument(self, **kwargs: Any) -> None:
        runtime = start()
        if runtime is not None:
            runtime.switch_off()


class RootwalkResourceDetector(ResourceDetector):
    """Adds job, rank and host to every Resource of a rank."""

    def detect(self) -> Resource:
        """Return the rank's attributes; an empty Resource in a process that is no rank."""
        if not is_rank(os.environ):
            return Resource.get_empty()
        attributes = read_identity(os.environ).resource_attributes()
        attributes.pop(semconv.SERVICE_NAME)
        return Resource(dict(attributes), schema_url=semconv.SCHEMA_URL)
