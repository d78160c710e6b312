"""The page's parts as pure functions: what is drawn, what is said, what a name cannot do."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from rootwalk.graph.analysis import StepClock
from rootwalk.graph.columns import RankRow, ThreadState
from rootwalk.graph.lanes import CollectiveCall, Region
from rootwalk.graph.model import Window
from rootwalk.graph.passages import flowing, visible
from rootwalk.graph.render.markdown import render_markdown
from rootwalk.graph.report.axes import choose_columns, round_up, ticks
from rootwalk.graph.report.curve import draw_curve
from rootwalk.graph.report.heat_map import LEVELS, MAX_ROWS, draw_heat_map, scale_top_s
from rootwalk.graph.report.page import list_ranges, render_page
from rootwalk.graph.report.quantities import duration, quantity, ratio, size
from rootwalk.graph.report.reading import MAX_BARS, ReportData, choose_ranks, told_query
from rootwalk.graph.report.shares import Share, region_shares
from rootwalk.graph.verdict import empty_verdict
from support.pages import Page

EVIL = "</title></style><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\x00\u202e&\"'"
NOBODY = empty_verdict("j1", 0, 4, ())
AROUND_STEP_2 = replace(NOBODY, window=Window(None, None, 2, 3))


def rank_rows(count: int) -> tuple[RankRow, ...]:
    return tuple(RankRow(rank, f"id-{rank // 8}", f"host-{rank // 8}", 1) for rank in range(count))


def test_a_name_stays_text() -> None:
    text = render_page(ReportData(empty_verdict(EVIL, None, None, ()), EVIL))
    page = Page(text)
    assert page.count("script") == 1
    assert page.count("img") == 0
    assert page.references == []
    assert "<script>alert(1)</script><img src=x onerror=alert(1)>" in page.text
    assert "⟨U+001B⟩[31m⟨U+0000⟩⟨U+202E⟩&\"'" in page.text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)


def test_only_the_page_s_own_style_and_script_may_run() -> None:
    page = Page(render_page(ReportData(NOBODY, "s.duckdb")))
    policies = [a["content"] for tag, a in page.elements if a.get("http-equiv")]
    assert len(policies) == 1
    policy = policies[0] or ""
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert [a for _, a in page.elements if "style" in a] == []


def test_what_does_not_show_is_made_visible() -> None:
    assert visible("plain ümlaut 中文 'x'") == "plain ümlaut 中文 'x'"
    assert visible("a\nb\N{NO-BREAK SPACE}s") == "a\nb\N{NO-BREAK SPACE}s"
    assert visible("\x07\x7f\ud800\u200b") == "⟨U+0007⟩⟨U+007F⟩⟨U+D800⟩⟨U+200B⟩"
    assert flowing("node              unexplained 0.1 s") == "node; unexplained 0.1 s"


def test_markdown_cannot_be_added_by_a_name() -> None:
    text = render_markdown(empty_verdict("*a* _b_ <c> [d](e) `f`\n# all_reduce", 0, 2, ()))
    assert text.startswith(
        "**not enough evidence: the store has no complete step of all ranks and no operation that hangs**\n"
    )
    wanted = r"*Job \*a\* \_b\_ \<c\> \[d\](e) \`f\` \# all_reduce*"
    assert wanted not in text, "nothing is remarked about a job without a step"
    text = render_markdown(
        replace(empty_verdict("*a* _b_ <c>\n# all_reduce", 0, 2, ()), window=Window(1, 2, 3, 4))
    )
    assert text.splitlines()[2:] == [
        r"*Job \*a\* \_b\_ \<c\> \# all_reduce*",
        "",
        "- **steps** 3 to 4",
    ]


@pytest.mark.parametrize(("last", "count"), [(3, "1 step"), (4, "2 steps")])
def test_one_step_is_no_steps(last: int, count: str) -> None:
    short = replace(NOBODY, window=Window(1, 2, 3, last), step_s=0.5)
    assert render_markdown(short).startswith(
        f"**not enough evidence: {count} of 0.500 s, with nothing to compare"
    )


def test_cells_of_one_level_are_one_path() -> None:
    values_s = np.array([[0.0, 0.0, 0.08, 0.08], [0.0, 0.04, np.nan, 0.2]])
    drawn = draw_heat_map(values_s, rank_rows(2), (0, 1, 2, 3), AROUND_STEP_2, 0.08)
    assert drawn.paths[LEVELS - 2] == "M2 0h2v1h-2zM3 1h1v1h-1z"
    assert drawn.paths[LEVELS // 2 - 1] == "M1 1h1v1h-1z"
    assert drawn.unknown == "M2 1h1v1h-1z"
    assert [path for i, path in enumerate(drawn.paths) if i not in (3, 6)] == [""] * 5
    assert drawn.values_ms == ((0, 0, 80, 80), (0, 40, -1, 200))
    assert [row.inside for row in drawn.rows] == [
        "0.080\N{NO-BREAK SPACE}s",
        "0.200\N{NO-BREAK SPACE}s",
    ]
    assert drawn.rows[1].most.replace("\N{NO-BREAK SPACE}", " ") == "0.200 s at step 3"


def test_one_late_rank_of_ten_thousand_is_seen() -> None:
    ranks, steps = 10_240, 48
    values_s = np.full((ranks, steps), 0.001)
    values_s[7_777, 40:] = 0.5
    drawn = draw_heat_map(values_s, rank_rows(ranks), range(steps), NOBODY, scale_top_s(values_s))
    assert len(drawn.rows) == MAX_ROWS
    (row,) = [i for i, values in enumerate(drawn.values_ms) if max(values) == 500]
    assert drawn.rows[row].name == "ranks 7760 to 7839"
    chosen = choose_ranks(rank_rows(ranks), NOBODY, values_s)
    assert 7_777 in chosen
    assert MAX_BARS - 16 <= len(chosen) <= MAX_BARS
    assert {0, ranks - 1} <= set(chosen)


def test_one_slow_step_does_not_set_the_scale() -> None:
    values_s = np.full((4, 100), 0.002)
    values_s[1, 50:] = 0.06
    values_s[2, 7] = 30.0
    assert scale_top_s(values_s) == pytest.approx(0.064)
    assert scale_top_s(np.full((2, 3), np.nan)) == pytest.approx(0.001)


def region(states: dict[ThreadState, float], length_s: float = 1.0, end_s: float = 0.9) -> Region:
    """A backward phase with one collective that is called at 0.5 s; the states are unknown where none is given."""
    values = np.zeros(len(ThreadState)) if states else np.full(len(ThreadState), np.nan)
    for state, seconds in states.items():
        values[state] = seconds
    call = CollectiveCall(0, 0.5, end_s)
    return Region("backward", 0, 0.0, length_s, values, (call,), (call,), ())


def test_the_parts_of_a_region_add_up() -> None:
    shares = region_shares(
        region({ThreadState.RUNNING: 0.4, ThreadState.FOREIGN: 0.1, ThreadState.BLOCKED: 0.5})
    )
    assert shares.sum() == pytest.approx(1.0)
    assert shares[Share.RANKS] == pytest.approx(0.4)
    assert shares[Share.BLOCKED] == pytest.approx(0.1)
    assert (shares[Share.WORK], shares[Share.FOREIGN]) == (pytest.approx(0.4), pytest.approx(0.1))


def test_time_that_nobody_saw_is_a_part_of_its_own() -> None:
    shares = region_shares(region({}))
    assert shares.sum() == pytest.approx(1.0)
    assert shares[Share.RANKS] == pytest.approx(0.4)
    assert shares[Share.UNSEEN] == pytest.approx(0.6)


def test_sensors_that_count_more_than_the_step_are_brought_to_it() -> None:
    shares = region_shares(region({ThreadState.RUNNING: 0.9, ThreadState.BLOCKED: 0.3}))
    assert shares.sum() == pytest.approx(1.0)
    assert shares[Share.UNSEEN] == 0.0


def test_steps_share_columns_when_there_are_many() -> None:
    columns = choose_columns(range(100, 1_060))
    assert len(columns.bounds) == 240
    assert columns.label(0) == "steps 100 to 103"
    assert columns.span(104, 107) == (columns.x(1), columns.x(2))
    assert columns.span(2_000, 2_001) is None
    assert [tick.text for tick in columns.ticks()] == ["200", "400", "600", "800", "1000"]


@pytest.mark.parametrize(("value", "wanted"), [(0.0601, 0.1), (0.1, 0.1), (3.0, 5.0), (0.0, 1.0)])
def test_axes_end_at_round_numbers(value: float, wanted: float) -> None:
    assert round_up(value) == pytest.approx(wanted)
    assert ticks(wanted, 2) == pytest.approx((0.0, wanted / 2, wanted))


def test_a_cold_first_step_does_not_flatten_the_curve() -> None:
    step_s = np.array([9.0, *[0.1] * 99])
    end_s = np.cumsum(step_s)
    curve = draw_curve(StepClock(tuple(range(100)), end_s - step_s, end_s), NOBODY)
    assert [text.replace("\N{NO-BREAK SPACE}", " ") for _, text in curve.cut] == ["step 0: 9.000 s"]
    heights = {point.partition(",")[2] for point in curve.line.split()[1:]}
    assert len(heights) == 1
    assert float(heights.pop()) < 60.0


def test_numbers_have_units_that_suit_them() -> None:
    shown = [duration(5.0), duration(600.0), duration(7200.0), size(8100), size(12), ratio(0.0021)]
    shown += [quantity(0.06, "s"), quantity(1.5, "{cpu}"), quantity(None, "s")]
    assert [text.replace("\N{NO-BREAK SPACE}", " ") for text in shown] == [
        *("5.000 s", "10.0 min", "2.0 h", "8.1 kB", "12 B", "0.21 %"),
        *("0.060 s", "1.5 cpu", "unknown"),
    ]


def test_ranks_are_listed_as_ranges() -> None:
    assert list_ranges(()) == ""
    assert list_ranges((0, 1, 2, 5, 7, 8)) == "0 to 2, 5, 7 to 8"
    assert list_ranges(range(0, 1000, 2)).endswith("78, …")


def test_a_query_can_be_run_whatever_the_job_is_called() -> None:
    told = told_query("SELECT 1 WHERE job = ? AND step BETWEEN ? AND ?", "it's?", 3, 4)
    assert told == "SELECT 1 WHERE job = 'it''s?' AND step BETWEEN 3 AND 4"


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_stands_out_and_the_scale_only_gets_darker_or_lighter() -> None:
    """WCAG's contrast of text, in both modes; a scale by lightness can be read without seeing colours."""
    style = (resources.files("rootwalk.graph.report") / "templates" / "page.css").read_text()
    light, dark = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    )
    assert light.keys() == dark.keys()
    for colours in (light, dark):
        for ink in ("ink", "soft", "accent", "alarm"):
            for ground in ("ground", "tint"):
                both = sorted((luminance(colours[ink]), luminance(colours[ground])))
                assert (both[1] + 0.05) / (both[0] + 0.05) >= 4.5, (ink, ground)
        scale = [luminance(colours[f"h{level}"]) for level in range(LEVELS)]
        assert scale in (sorted(scale), sorted(scale, reverse=True))
