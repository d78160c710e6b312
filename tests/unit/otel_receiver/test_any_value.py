from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rootwalk.otel_receiver.any_value import json_attributes, json_value
from support.otlp_messages import any_value, key_values

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int64s = st.integers(-(2**63), 2**63 - 1)
# OTLP/JSON has one NaN, so the bits of a NaN are out of scope.
doubles = st.floats(allow_nan=False) | st.just(math.nan)
scalars = st.none() | st.booleans() | int64s | doubles | texts | st.binary(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", '"a"'),
        ('"\n\0', '"\\"\\n\\u0000"'),
        (True, "true"),
        (7, "7"),
        (9223372036854775807, "9223372036854775807"),
        (7.0, "7.0"),
        (1e22, "1e+22"),
        (float("nan"), '{"doubleValue":"NaN"}'),
        (float("-inf"), '{"doubleValue":"-Infinity"}'),
        (b"\x00\x01", '{"bytesValue":"AAE="}'),
        (None, "{}"),
        ([1, 2.0], '{"arrayValue":{"values":[{"intValue":"1"},{"doubleValue":2.0}]}}'),
        ({"k": "v"}, '{"kvlistValue":{"values":[{"key":"k","value":{"stringValue":"v"}}]}}'),
    ],
)
def test_the_written_form(value: Any, text: str) -> None:
    assert json_value(any_value(value)) == text


def test_a_repeated_key_stays_repeated() -> None:
    pairs = [*key_values({"a": 1}), *key_values({"a": "x"})]

    assert json_attributes(pairs) == '{"a":1,"a":"x"}'


@given(st.dictionaries(texts, values, max_size=5))
def test_nothing_is_lost(attributes: dict[str, Any]) -> None:
    """Reading the JSON back by the published rules gives the messages that were written."""
    sent = key_values(attributes)

    back = json.loads(json_attributes(sent))

    read = key_values({key: _read_natural(value) for key, value in back.items()})
    assert [m.SerializeToString() for m in read] == [m.SerializeToString() for m in sent]


def _read_natural(value: Any) -> Any:
    return _read_any_value(value) if isinstance(value, dict) else value


def _read_any_value(value: dict[str, Any]) -> Any:
    match value:
        case {"stringValue": text}:
            return text
        case {"boolValue": flag}:
            return flag
        case {"intValue": digits}:
            return int(digits)
        case {"doubleValue": number}:
            return float(str(number))
        case {"bytesValue": text}:
            return base64.b64decode(text)
        case {"arrayValue": {"values": items}}:
            return [_read_any_value(item) for item in items]
        case {"kvlistValue": {"values": items}}:
            return {item["key"]: _read_any_value(item["value"]) for item in items}
    assert value == {}
    return None
