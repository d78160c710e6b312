"""An endpoint that is away: one sentence, and one when it is back; none for a hiccup."""

from __future__ import annotations

import pytest

from rootwalk.ebpf.delivery import AWAY_TOLD_S, DeliveryWatch

ENDPOINT = "http://receiver:4318"


def tell(caplog: pytest.LogCaptureFixture, story: list[tuple[float, bool]]) -> list[str]:
    """Return what is said when requests at these times, s, are taken or not."""
    now_s = [0.0]
    watch = DeliveryWatch(ENDPOINT, lambda: now_s[0])
    for time_s, is_taken in story:
        now_s[0] = time_s
        watch.note(is_taken=is_taken)
    return caplog.messages


def test_said_once_and_taken_back_once(caplog: pytest.LogCaptureFixture) -> None:
    away = [(float(second), False) for second in range(12)]
    said = tell(caplog, [*away, (12.0, True), (13.0, True)])
    assert len(said) == 2
    assert said[0].startswith(f"nobody takes telemetry at {ENDPOINT}")
    assert said[1].startswith(f"{ENDPOINT} answers again after 12 s")


def test_second_absence_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    story = [(0.0, False), (6.0, False), (7.0, True), (20.0, False), (26.0, False)]
    assert len(tell(caplog, story)) == 3


def test_hiccup_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    story = [(0.0, True), (1.0, False), (1.0 + AWAY_TOLD_S * 0.9, False), (6.0, True), (9.0, False)]
    assert tell(caplog, story) == []
