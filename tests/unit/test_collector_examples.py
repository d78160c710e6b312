"""What must hold of the configurations for a Collector without one; `make test-backends` runs them in a real one."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "collector").glob("*.yaml"))
SIGNALS = ["logs", "metrics", "traces"]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_documentation_lists_every_example() -> None:
    page = (ROOT / "docs" / "back-ends.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w-]+\.yaml)` \|", page, re.MULTILINE)
    assert sorted(listed) == [path.name for path in EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_signal_is_limited_batched_and_sent(path: Path) -> None:
    pipelines = load(path)["service"]["pipelines"]
    # The batch processor takes no profiles; one request of an agent has those of seconds.
    is_of_profiles = path.stem == "profiles"
    assert sorted(pipelines) == (["profiles"] if is_of_profiles else SIGNALS)
    processors = ["memory_limiter"] if is_of_profiles else ["memory_limiter", "batch"]
    for pipeline in pipelines.values():
        assert pipeline["receivers"] == ["otlp"]
        assert pipeline["processors"] == processors
        assert pipeline["exporters"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_exporter_is_used_and_no_file_is_shared(path: Path) -> None:
    configuration = load(path)
    pipelines = configuration["service"]["pipelines"].values()
    used = Counter(name for pipeline in pipelines for name in pipeline["exporters"])
    assert set(used) == set(configuration["exporters"])
    shared = [name for name, count in used.items() if name.startswith("file") and count > 1]
    assert shared == []  # the Collector crashes at its end where pipelines share one


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_addresses_can_be_given_and_listeners_are_local(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    addresses = re.findall(r"endpoint: (.+)", text)
    assert addresses
    assert all(re.fullmatch(r'"\$\{env:\w+:-[^}]+\}"', address) for address in addresses)
    for name in ("grpc", "http"):
        endpoint = load(path)["receivers"]["otlp"]["protocols"][name]["endpoint"]
        assert ":-localhost:" in endpoint
