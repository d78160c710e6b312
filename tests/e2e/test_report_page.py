"""The page of `rootwalk report` in a real browser: nothing fetched, nothing complained of, keys work, text stands out.

Needs Chromium and the two packages of tests/browser, which `make test-browser` installs beside a copy of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.browsers import PICTURES, find_chromium, look
from support.jobs import Fault, Job
from support.pages import page_of, read_page
from support.sampled_jobs import Spent, write_sampled_job

JOBS = {
    "2": Job(faults=(Fault("contention", 1, 0.06, 40, name="<img src=x onerror=alert(1)>"),)),
    "8": Job(
        ranks=8, steps=120, hosts=2, jitter_ratio=0.08, gc_s=0.001, has_cgroup=True, loader_s=0.004,
        faults=(Fault("contention", 5, 0.06, 70, 100), Fault("gc", 2, 0.03, 70, phase="forward")),
    ),
    "64": Job(
        ranks=64, steps=200, hosts=8, jitter_ratio=0.08, faults=(Fault("contention", 37, 0.05, 120),)
    ),
    "1": Job(ranks=1, steps=1, sensor=None),
}  # fmt: skip

# From the start of loading to the page's answer to a key, 64 ranks with 200 steps included.
MAX_READY_MS = 1000


@pytest.fixture
def chromium() -> str:
    return find_chromium()


# A rank that holds the interpreter's lock in one thread and waits for it in another, with profiles.
SPENT = (
    Spent("main;step;backward;run@libtorch", on_s=0.06),
    Spent("main;step;forward;linear@libtorch", on_s=0.03, off_s=0.01),
    Spent("start;compress:<img src=x onerror=alert(1)>:3", on_s=0.06, ranks=(1,), first_step=40),
    Spent("main;step;forward;take_gil@python3", off_s=0.06, ranks=(1,), first_step=40),
)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [*JOBS, "sampled"])
def test_the_page_in_a_browser(chromium: str, tmp_path: Path, ranks: str) -> None:
    if ranks == "sampled":
        job = Job(ranks=4, faults=(Fault("gil", 1, 0.06, 40, phase="forward"),))
        report, text = read_page(write_sampled_job(tmp_path / "s.duckdb", job, SPENT, noise=1))
        assert len(report.flames) == 2
    else:
        _, text = page_of(tmp_path, JOBS[ranks])
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    tasks = [{"path": str(path), "scheme": scheme} for scheme in ("light", "dark")]
    if PICTURES:
        for task in tasks:
            task["picture"] = str(Path(PICTURES) / f"report-{ranks}-{task['scheme']}.png")
    looks = look(chromium, tasks)
    for seen in looks:
        assert seen["said"] == []
        assert seen["requests"] == []
        assert seen["violations"] == []
        assert seen["rules"] > 20, "axe looked at the page"
        assert seen["narrow"] == 400, "pictures scroll in a narrow window, the page does not"
        (read,) = seen["reads"]
        assert read.startswith("rank 0 " if ranks == "1" else "rank 1 "), "the keys move the cell"
        print(f"{ranks} ranks: {seen['ready_ms']:.0f} ms until the keys answered")  # noqa: T201
    # Of two looks one may fall into somebody else's work on this machine.
    assert min(seen["ready_ms"] for seen in looks) < MAX_READY_MS
