"""The registry has the form of Weaver's `definition/2`, and depends on the core conventions that we use.

Weaver itself is no Python package; what is held here is what its documentation of the syntax asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rootwalk.instrumentation import semconv
from rootwalk.instrumentation.identity import read_identity

REGISTRY = Path(__file__).parents[2] / "instrumentation" / "registry"
FILES = ("attributes.yaml", "entities.yaml", "signals.yaml")
CORE_RESOURCE = ("host.", "process.", "service.", "telemetry.sdk.")
STABILITIES = {"development", "alpha", "beta", "release_candidate", "stable"}
LEVELS = {"required", "recommended", "opt_in"}
TYPES = {"string", "int", "double", "boolean", "string[]", "int[]", "double[]", "boolean[]", "any"}
INSTRUMENTS = {"counter", "updowncounter", "gauge", "histogram"}
NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
COMMON = {"brief", "note", "stability", "deprecated", "annotations"}
# For each group: what names a definition, what it must have, and what it may have beside that.
GROUPS = {
    "attributes": ("key", {"type"}, {"examples"}),
    "metrics": ("name", {"instrument", "unit"}, {"attributes", "entity_associations"}),
    "spans": ("type", {"kind", "name"}, {"attributes", "entity_associations"}),
    "events": ("name", set(), {"attributes", "entity_associations"}),
    "entities": ("type", {"identity"}, {"description"}),
}


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((REGISTRY / name).read_text(encoding="utf-8"))
    return loaded


def definitions() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield every definition with its group and name."""
    for name in FILES:
        for group, listed in load(name).items():
            if group != "file_format":
                for one in listed:
                    yield group, one[GROUPS[group][0]], one


def references(one: dict[str, Any]) -> list[dict[str, Any]]:
    lists = [one.get(name, []) for name in ("attributes", "identity", "description")]
    return [reference for listed in lists for reference in listed]


@pytest.mark.parametrize("name", FILES)
def test_file_is_of_the_form(name: str) -> None:
    loaded = load(name)
    assert loaded["file_format"] == "definition/2"
    assert loaded.keys() - {"file_format"} <= GROUPS.keys()


def test_every_definition_has_what_its_kind_needs_and_nothing_else() -> None:
    for group, name, one in definitions():
        named, needed, allowed = GROUPS[group]
        must = {named, "brief", "stability"} | needed
        assert must <= one.keys() <= must | allowed | COMMON, name
        assert one["stability"] in STABILITIES, name
        assert one["brief"].strip(), name
        if group in ("attributes", "metrics", "events", "entities"):
            assert NAME.fullmatch(name), name
        if group == "metrics":
            assert one["instrument"] in INSTRUMENTS, name
            assert isinstance(one["unit"], str), name
            assert one["unit"], name
        if group == "spans":
            assert one["kind"] == "internal", name
            assert one["name"].keys() == {"note"}, name


def test_every_type_is_one_of_the_form() -> None:
    for group, name, one in definitions():
        if group != "attributes":
            continue
        if isinstance(one["type"], str):
            assert one["type"] in TYPES, name
            assert one["type"] == "boolean" or one.get("examples"), name
        else:
            ids = [member["id"] for member in one["type"]["members"]]
            assert len(set(ids)) == len(ids) > 0, name
            assert all({"id", "value", "stability"} <= m.keys() for m in one["type"]["members"])


def test_every_name_is_defined_once_and_every_reference_is_to_a_name() -> None:
    names = [(group, name) for group, name, _ in definitions()]
    assert len(names) == len(set(names))
    for _, name, one in definitions():
        for reference in references(one):
            assert reference["ref"] in semconv.ATTRIBUTES, name
            assert reference.keys() <= {"ref", "requirement_level", "brief", "note"}, name
            level = reference.get("requirement_level", "recommended")
            if isinstance(level, dict):  # what is required under a condition says under which
                ((level, condition),) = level.items()
                assert condition.strip(), name
                assert level in ("conditionally_required", "recommended", "opt_in"), name
            else:
                assert level in LEVELS, name


def test_names_that_are_not_ours_are_not_defined_again() -> None:
    own = ("training.", "rootwalk.", "collective.")
    assert [
        n for group, n, _ in definitions() if group == "attributes" and not n.startswith(own)
    ] == []


def test_the_registry_depends_on_the_core_conventions() -> None:
    manifest = load("manifest.yaml")
    assert manifest["schema_url"] == semconv.SCHEMA_URL
    (core,) = manifest["dependencies"]
    assert core["schema_url"] == "https://opentelemetry.io/schemas/1.44.0"
    assert "semantic-conventions/archive/refs/tags/v1.44.0.zip[model]" in core["registry_path"]


def test_the_resource_of_a_rank_is_made_of_entities() -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "ROOTWALK_JOB": "j1"}
    sent = read_identity(environment).resource_attributes().keys()
    ours = {
        r["ref"] for group, _, one in definitions() if group == "entities" for r in references(one)
    }
    identity = {"training.job.id", "training.job.attempt", "training.rank"}
    assert identity <= sent
    assert {key for key in sent if not key.startswith(CORE_RESOURCE)} <= ours
