"""What the stack program tells, as bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rootwalk.ebpf.programs
from rootwalk.ebpf.stacks import records

HEADER = Path(next(iter(rootwalk.ebpf.programs.__path__))) / "stacks.h"
FORMS = {
    "stack_config": records.CONFIG,
    "interpreter": records.INTERPRETER,
    "stack_key": records.KEY,
    "stack_value": records.VALUE,
    "stack_wait": records.WAIT,
}


@pytest.mark.parametrize("name", FORMS)
def test_sizes_are_those_of_the_program(name: str) -> None:
    found = re.search(rf"sizeof\(struct {name}\) == (\d+)", HEADER.read_text(encoding="utf-8"))
    assert found is not None
    assert FORMS[name].size == int(found[1])


def test_counters_are_those_of_the_program() -> None:
    text = HEADER.read_text(encoding="utf-8")
    found = dict(re.findall(r"COUNTER_(\w+) = (\d+),", text))
    assert int(found.pop("COUNT")) == len(records.Counter)
    assert {name: int(number) for name, number in found.items()} == {
        one.name: one.value for one in records.Counter
    }


def test_a_chain_that_claims_too_much_is_cut() -> None:
    data = records.CHAIN.pack(3, 0, *range(1, 129))
    assert records.decode_chain(data) == records.Chain((1, 2, 3), is_cut=False)
    data = records.CHAIN.pack(1 << 31, records.CHAIN_CUT, *range(1, 129))
    assert len(records.decode_chain(data).addresses) == 128
    assert records.decode_chain(data).is_cut
