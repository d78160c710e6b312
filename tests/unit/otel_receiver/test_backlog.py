"""The bound of what is acknowledged and not stored yet."""

from __future__ import annotations

from rootwalk.otel_receiver.backlog import SAMPLE_INTERVAL_S, Backlog


def test_it_is_full_from_its_limit_on() -> None:
    waiting = [99]
    now_s = 0.0
    backlog = Backlog(100, lambda: waiting[0], lambda: now_s)

    assert not backlog.is_full()
    waiting[0] = 100
    now_s += SAMPLE_INTERVAL_S
    assert backlog.is_full()
    waiting[0] = 40
    now_s += SAMPLE_INTERVAL_S
    assert not backlog.is_full()


def test_the_files_are_not_looked_at_for_every_request() -> None:
    looks: list[float] = []
    now_s = 0.0

    def look() -> int:
        looks.append(now_s)
        return 0

    backlog = Backlog(100, look, lambda: now_s)
    for _ in range(100):
        backlog.is_full()
        now_s += SAMPLE_INTERVAL_S / 10

    assert 10 <= len(looks) <= 11
