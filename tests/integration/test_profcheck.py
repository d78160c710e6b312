"""Our rules of the profiles format beside sig-profiling's own checker: it refuses nothing that ours let pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from support import profcheck
from support.profile_breakers import BREAKERS, build, list_numbers, parse
from support.profile_rules import find_own_violations

# What the proto or Pyroscope ask for and profcheck does not look at.
OURS_ALONE = (
    *("null in a list:", "addresses:", "joined samples:", "profile id:", "payload:"),
    *("one form of key:", "resource keys:", "one value a period:", "sample type:", "time:"),
    # Numbers in values and on resources, which it does not read.
    *("indices: attribute_table[", "indices: resource", "indices: scope", "unique keys: resource"),
)
ZEROS = "has an id of zeros"
MUTATIONS = 200
SEED = 7


@pytest.fixture(autouse=True)
def _at_hand() -> None:
    if not profcheck.PROFCHECK:
        pytest.skip("profcheck: needs its binary in PROFCHECK")


@pytest.mark.parametrize(("rule", "break_it"), BREAKERS)
def test_both_refuse_what_breaks_a_rule_of_both(rule: str, break_it: Callable[[Any], Any]) -> None:
    request = build()
    break_it(request)
    data = request.SerializeToString()
    ours = find_own_violations(data)
    assert any(text.startswith(f"{rule}:") for text in ours)
    shared = [one for one in ours if not one.startswith(OURS_ALONE) and ZEROS not in one]
    assert bool(profcheck.find_complaints(data)) >= bool(shared), shared


def test_both_let_what_is_built_pass() -> None:
    data = build().SerializeToString()
    assert (find_own_violations(data), profcheck.find_complaints(data)) == ([], [])


def test_what_it_refuses_ours_refuse() -> None:
    """Numbers of entries, lines and times that are changed at random: most of them break something, some do not."""
    data, random_numbers = build().SerializeToString(), random.Random(SEED)  # noqa: S311
    refused = 0
    for _ in range(MUTATIONS):
        request = parse(data)
        for message, name in random_numbers.choices(list_numbers(request), k=2):
            number = random_numbers.choice((-1, 0, 1, 2, 3, 5, 14))
            if name.endswith("_indices"):
                getattr(message, name).append(number)
            else:
                setattr(message, name, number)
        changed = request.SerializeToString()
        theirs, ours = profcheck.find_complaints(changed), find_own_violations(changed)
        refused += bool(theirs)
        assert bool(ours) >= bool(theirs), theirs
    assert MUTATIONS / 2 < refused < MUTATIONS
