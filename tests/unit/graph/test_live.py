"""The ledger of findings: what opens, changes and closes as verdicts of a growing store come in."""

from __future__ import annotations

import json

from rootwalk.graph.live.track import Change, Ledger, Notice
from support.live_verdicts import NS, make_episode, make_finding, make_verdict


def told(notices: tuple[Notice, ...]) -> list[tuple[Change, str, int | None]]:
    return [(n.change, n.finding.reason, n.finding.rank) for n in notices]


def test_a_finding_opens_once_and_closes_with_its_episode() -> None:
    # steps 40 to 44 slow, then to 60, then over at 70
    ledger = Ledger()
    verdict = make_verdict(make_finding())

    first = ledger.take(verdict, make_episode(40, 44), 100)
    second = ledger.take(verdict, make_episode(40, 60), 200)
    third = ledger.take(verdict, make_episode(40, 69, is_open=False), 300)

    assert told(first) == [(Change.OPENED, "CPU_QUOTA", 1)]
    assert second == ()
    assert told(third) == [(Change.CLOSED, "CPU_QUOTA", 1)]
    closed = third[0].finding
    assert (closed.first_step, closed.last_step) == (40, 69)
    assert (closed.onset_unix_ns, closed.detected_unix_ns) == (40 * NS, 45 * NS)
    assert (closed.named_unix_ns, closed.closed_unix_ns) == (100, 300)


def test_an_episode_ends_where_detection_says_in_the_end() -> None:
    """Steps 60 and 61 are healthy, which two of them do not show yet; named again or not at its end."""
    for last in (make_verdict(make_finding()), make_verdict()):
        ledger = Ledger()
        ledger.take(make_verdict(make_finding()), make_episode(40, 61), 100)

        (closed,) = ledger.take(last, make_episode(40, 59, is_open=False), 200)

        assert (closed.change, closed.finding.last_step) == (Change.CLOSED, 59)


def test_the_id_stays_when_the_onset_moves() -> None:
    ledger = Ledger()

    (opened,) = ledger.take(make_verdict(make_finding(onset_step=40)), make_episode(40, 44), 100)
    moved = make_verdict(make_finding(onset_step=39), first_step=39)
    assert ledger.take(moved, make_episode(39, 50), 200) == ()

    (known,) = ledger.findings("j1", 0)
    assert known.id == opened.finding.id == "CPU_QUOTA/1/40"
    assert known.first_step == 40
    told_by_verdict = json.loads(known.verdict)["findings"][0]
    assert told_by_verdict["id"] == known.id
    assert told_by_verdict["onset"] == {"step": 40, "unix_ns": 40 * NS}
    assert (told_by_verdict["detected_unix_ns"], told_by_verdict["named_unix_ns"]) == (45 * NS, 100)


def test_a_later_episode_of_the_same_cause_is_another_finding() -> None:
    ledger = Ledger()
    ledger.take(make_verdict(make_finding()), make_episode(40, 59, is_open=False), 100)

    later = make_verdict(make_finding(onset_step=90), first_step=90)
    notices = ledger.take(later, make_episode(90, 95), 200)

    assert told(notices) == [(Change.OPENED, "CPU_QUOTA", 1)]
    assert notices[0].finding.id == "CPU_QUOTA/1/90"


def test_another_reason_for_the_same_rank_replaces_the_first() -> None:
    ledger = Ledger()
    ledger.take(make_verdict(make_finding("UNKNOWN_HOST")), make_episode(40, 44), 100)

    (notice,) = ledger.take(make_verdict(make_finding("PY_GC")), make_episode(40, 50), 200)

    assert notice.change is Change.CHANGED
    assert notice.previous is not None
    assert (notice.previous.reason, notice.previous.closed_unix_ns) == ("UNKNOWN_HOST", 200)
    assert (notice.finding.reason, notice.finding.is_open) == ("PY_GC", True)
    # one slowdown: detected when the first was, named now
    assert (notice.finding.detected_unix_ns, notice.finding.named_unix_ns) == (45 * NS, 200)
    assert [f.reason for f in ledger.findings("j1", 0) if f.is_open] == ["PY_GC"]


def test_a_second_cause_opens_beside_the_first() -> None:
    ledger = Ledger()
    one, two = make_finding(), make_finding("PY_GC", rank=0)
    ledger.take(make_verdict(one), make_episode(40, 44), 100)

    assert told(ledger.take(make_verdict(one, two), make_episode(40, 60), 200)) == [
        (Change.OPENED, "PY_GC", 0)
    ]


def test_a_cause_is_missed_twice_before_it_closes() -> None:
    ledger = Ledger()
    one, two = make_finding(), make_finding("PY_GC", rank=0)
    ledger.take(make_verdict(one, two), make_episode(40, 50), 100)

    assert ledger.take(make_verdict(one), make_episode(40, 55), 200) == ()
    assert ledger.take(make_verdict(one, two), make_episode(40, 60), 300) == ()
    assert ledger.take(make_verdict(one), make_episode(40, 65), 400) == ()
    assert told(ledger.take(make_verdict(one), make_episode(40, 70), 500)) == [
        (Change.CLOSED, "PY_GC", 0)
    ]


def test_a_lack_of_evidence_closes_nothing_while_the_episode_goes_on() -> None:
    ledger = Ledger()
    ledger.take(make_verdict(make_finding()), make_episode(40, 44), 100)

    for now in (200, 300, 400):
        assert ledger.take(make_verdict(), make_episode(40, 60), now) == ()
    assert told(ledger.take(make_verdict(), make_episode(40, 70, is_open=False), 500)) == [
        (Change.CLOSED, "CPU_QUOTA", 1)
    ]


def test_an_episode_that_was_over_before_it_was_seen_opens_and_closes() -> None:
    notices = Ledger().take(make_verdict(make_finding()), make_episode(40, 49, is_open=False), 100)

    assert told(notices) == [
        (Change.OPENED, "CPU_QUOTA", 1),
        (Change.CLOSED, "CPU_QUOTA", 1),
    ]


def test_an_episode_that_goes_on_after_all_opens_the_same_finding_again() -> None:
    ledger = Ledger()
    verdict = make_verdict(make_finding())
    (opened, _) = ledger.take(verdict, make_episode(40, 49, is_open=False), 100)

    (again,) = ledger.take(verdict, make_episode(40, 60), 200)

    assert (again.change, again.finding.id) == (Change.OPENED, opened.finding.id)


def test_what_an_earlier_watcher_left_is_not_told_again() -> None:
    before = Ledger()
    before.take(make_verdict(make_finding()), make_episode(40, 44), 100)
    closed = make_verdict(make_finding("PY_GC", onset_step=10), first_step=10)
    before.take(closed, make_episode(10, 19, is_open=False), 50)

    after = Ledger()
    after.add(before.findings("j1", 0))

    assert after.unsaved() == ()
    assert after.take(closed, make_episode(10, 19, is_open=False), 150) == ()
    assert after.take(make_verdict(make_finding()), make_episode(41, 55), 200) == ()
    last = make_episode(41, 60, is_open=False)
    (notice,) = after.take(make_verdict(make_finding()), last, 300)
    assert (notice.change, notice.finding.named_unix_ns) == (Change.CLOSED, 100)


def test_a_finding_whose_episode_dissolves_is_closed() -> None:
    ledger = Ledger()
    ledger.take(make_verdict(make_finding()), make_episode(40, 44), 100)

    assert ledger.retain("j1", 0, [make_episode(41, 50)], 200) == ()
    assert ledger.retain("j1", 1, [], 200) == ()
    assert told(ledger.retain("j1", 0, [make_episode(80, 90)], 300)) == [
        (Change.CLOSED, "CPU_QUOTA", 1)
    ]


def test_jobs_do_not_close_each_other() -> None:
    ledger = Ledger()
    ledger.take(make_verdict(make_finding()), make_episode(40, 44), 100)

    other = make_verdict(make_finding(), job="j2")
    assert told(ledger.take(other, make_episode(40, 44), 200)) == [(Change.OPENED, "CPU_QUOTA", 1)]
    ledger.take(make_verdict(job="j2"), make_episode(40, 50, is_open=False), 300)

    assert [f.job for job in ("j1", "j2") for f in ledger.findings(job, 0) if f.is_open] == ["j1"]


def test_a_cause_that_joins_a_long_episode_begins_where_it_was_seen() -> None:
    # the verdict is about the last steps, from 400 on, of an episode since step 40
    ledger = Ledger()
    ledger.take(make_verdict(make_finding()), make_episode(40, 300), 100)
    late = make_verdict(make_finding(onset_step=400), make_finding("PY_GC", 0, 400), first_step=400)

    ledger.take(late, make_episode(40, 449), 200)

    steps = {f.reason: (f.first_step, f.onset_unix_ns) for f in ledger.findings("j1", 0)}
    assert steps == {"CPU_QUOTA": (40, 40 * NS), "PY_GC": (400, 400 * NS)}


def test_what_changed_waits_to_be_stored() -> None:
    ledger = Ledger()
    ledger.take(make_verdict(make_finding()), make_episode(40, 44), 100)
    assert [f.reason for f in ledger.unsaved()] == ["CPU_QUOTA"]
    ledger.forget_unsaved()
    assert ledger.unsaved() == ()

    ledger.take(make_verdict(make_finding()), make_episode(40, 60), 200)
    assert [f.last_step for f in ledger.unsaved()] == [60]


def test_closed_findings_do_not_pile_up() -> None:
    ledger = Ledger()
    for index in range(100):
        first = 40 + 50 * index
        verdict = make_verdict(make_finding(onset_step=first), first_step=first)
        ledger.take(verdict, make_episode(first, first + 9, is_open=False), index + 1)

    assert len(ledger.findings("j1", 0)) == 64
    assert len(ledger.unsaved()) == 100
