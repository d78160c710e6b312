"""Profiles are compressed unless the environment says otherwise; spans only where it asks for it."""

from __future__ import annotations

import pytest

from rootwalk.instrumentation.export import OtlpSender
from support.otlp_sink import otlp_sink

BODY = b""  # an empty request of any signal


@pytest.mark.parametrize(
    ("signal", "environment", "encoding"),
    [
        ("profiles", {}, "gzip"),
        ("profiles", {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, "gzip"),
        ("profiles", {"OTEL_EXPORTER_OTLP_COMPRESSION": "none"}, None),
        ("profiles", {"OTEL_EXPORTER_OTLP_PROFILES_COMPRESSION": "none"}, None),
        (
            "profiles",
            {
                "OTEL_EXPORTER_OTLP_PROFILES_COMPRESSION": "gzip",
                "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            },
            "gzip",
        ),
        ("traces", {}, None),
        ("traces", {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, "gzip"),
        ("traces", {"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip"}, "gzip"),
        (
            "traces",
            {
                "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none",
                "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            },
            None,
        ),
    ],
)
def test_environment_decides_after_the_signal(
    monkeypatch: pytest.MonkeyPatch, signal: str, environment: dict[str, str], encoding: str | None
) -> None:
    for name in ("", "_PROFILES", "_TRACES"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP{name}_COMPRESSION", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with otlp_sink() as sink:
        sender = OtlpSender(sink.endpoint, signal)
        try:
            assert sender.post(BODY, 0)
        finally:
            sender.close()
        ((_, headers),) = sink.headers
    assert headers.get("content-encoding") == encoding
    assert len(getattr(sink, signal)) == 1
