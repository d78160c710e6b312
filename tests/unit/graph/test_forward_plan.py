"""Where `run` sends on to: what the options say, and the endpoint that the user's environment names."""

from __future__ import annotations

import pytest

from rootwalk.graph.commands.forward_plan import plan_forward
from rootwalk.instrumentation.errors import ConfigError

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("urls", "named", "expected"),
    [
        ([], "", ()),
        (["http://a:4318/"], "", ("http://a:4318",)),
        ([], "http://b:4317", ("http://b:4317",)),
        (["grpc://a"], "http://b:4317", ("grpc://a", "http://b:4317")),
        (["http://b:4317/"], "http://b:4317", ("http://b:4317",)),
    ],
)
def test_options_and_environment_add_up(
    urls: list[str], named: str, expected: tuple[str, ...]
) -> None:
    assert plan_forward(urls, None, {ENDPOINT: named}) == expected


def test_a_variable_that_cannot_be_used_is_said_and_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert plan_forward(["http://a"], None, {ENDPOINT: "collector"}) == ("http://a",)
    assert 'cannot forward to "collector"' in caplog.text
    assert "from OTEL_EXPORTER_OTLP_ENDPOINT" in caplog.text


def test_an_option_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(ConfigError, match="saw no such OTLP URL"):
        plan_forward(["collector"], None, {})


def test_a_receiver_on_another_host_forwards_itself() -> None:
    assert plan_forward([], "http://far:4318", {ENDPOINT: "http://b:4317"}) == ()
    with pytest.raises(ConfigError, match="cannot use --forward together with --endpoint"):
        plan_forward(["http://a"], "http://far:4318", {})
