"""Names that are not ours are spelled as the installed OpenTelemetry conventions spell them."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from rootwalk.instrumentation.semconv import ATTRIBUTES, METRICS

OWN = ("training.", "rootwalk.", "collective.")
DEFINITION = re.compile(
    r'^[A-Z_]+: Final = "([a-z_.]+)"\n"""\n.*\nInstrument: (\w+)\nUnit: (\S+)\n', re.MULTILINE
)
ATTRIBUTE = re.compile(r'^[A-Z0-9_]+: Final = "([a-z0-9_.]+)"$', re.MULTILINE)


def read_conventions(folder: str) -> str:
    package = files("opentelemetry.semconv") / "_incubating" / folder
    return "".join(
        file.read_text(encoding="utf-8") for file in package.iterdir() if file.name.endswith(".py")
    )


CORE = {name: kind for name, *kind in DEFINITION.findall(read_conventions("metrics"))}
CORE_ATTRIBUTES = set(ATTRIBUTE.findall(read_conventions("attributes")))


@pytest.mark.parametrize("name", sorted(name for name in METRICS if not name.startswith(OWN)))
def test_metric_is_used_unchanged(name: str) -> None:
    # An older package may not know a newer name; one that it knows must agree.
    instrument, unit = CORE.get(name, (METRICS[name].instrument, METRICS[name].unit))
    assert (METRICS[name].instrument, METRICS[name].unit) == (instrument, unit)


def test_the_conventions_were_found() -> None:
    assert CORE["system.cpu.time"] == ["counter", "s"]
    used = {key for name in METRICS for key in METRICS[name].attributes if not key.startswith(OWN)}
    assert used <= ATTRIBUTES.keys()
    assert {"cpu.mode", "network.io.direction", "system.device"} <= used & CORE_ATTRIBUTES
