"""The page of `rootwalk serve` in a real browser: light and dark, by keys, while the store grows, and when it stops.

Needs Chromium and the two packages of tests/browser, which `make test-browser` installs beside a copy of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rootwalk.otel_receiver import store
from support.browsers import PICTURES, find_chromium, look, start_looking
from support.growing_store import GrowingStore
from support.jobs import Fault, Job, write_job
from support.large_jobs import LargeJob, write_large_job

EVIL = "<img src=x onerror=alert(1)>\x07\u202e"
JOBS = {
    "2": Job(faults=(Fault("contention", 1, 0.06, 40, name=EVIL),)),
    "8": Job(
        ranks=8, steps=120, hosts=2, jitter_ratio=0.08, gc_s=0.001, has_cgroup=True, loader_s=0.004,
        faults=(Fault("contention", 5, 0.06, 70, 100), Fault("gc", 2, 0.03, 70, phase="forward")),
    ),
    "64": Job(
        ranks=64, steps=200, hosts=8, jitter_ratio=0.08, faults=(Fault("contention", 37, 0.05, 120),)
    ),
    "1": Job(ranks=1, steps=1, sensor=None),
}  # fmt: skip
RANK = {"2": 1, "8": 5, "64": 37, "1": 0}
# From a fault's onset to the page showing it.
MAX_SECONDS_TO_SHOW = 20.0
# Eleven keys and clicks on the graph, the drawing of all its nodes among them.
MAX_MS_FOR_KEYS = 1000.0


@pytest.fixture
def chromium() -> str:
    return find_chromium()


@contextmanager
def served(path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve a store by the installed command; yields its address and process."""
    ready = path.with_name("ready.json")
    process = subprocess.Popen(
        [sys.executable, "-m", "rootwalk.graph", "serve", str(path), "--address", "127.0.0.1:0",
         "--ready-file", str(ready), "--quiet"],
    )  # fmt: skip
    try:
        deadline_s = time.monotonic() + 120
        while not ready.exists() and time.monotonic() < deadline_s:
            assert process.poll() is None
            time.sleep(0.05)
        yield json.loads(ready.read_text())["url"], process
    finally:
        process.terminate()
        assert process.wait(30) == 0


def check(seen: dict[str, Any]) -> None:
    assert seen["said"] == []
    assert seen["requests"] == []
    assert seen["violations"] == []
    assert seen["rules"] > 20, "axe looked at the page"
    assert seen["images"] == 0
    # Pictures scroll in a narrow window, the page does not.
    assert seen["narrow"] == 400, seen["widest"]
    assert seen["hidden"] <= 0, "the bar wraps"
    assert "\x07" not in seen["text"]


def ask(url: str, what: str) -> dict[str, Any]:
    """Return an answer of the API, once there is one."""
    with urllib.request.urlopen(f"{url}api/v1/{what}", timeout=60) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
        return found


def check_graph(seen: dict[str, Any], told: dict[str, Any]) -> None:
    """The drawn graph is the API's, keys show a node, and all that within a second."""
    ids = {node["id"] for node in told["nodes"]}
    assert sorted(seen["all"]) == sorted(ids), "every node of the store's graph once"
    links = told["paths"][0]["links"]
    assert set(seen["path"]) == {end for link in links for end in (link["source"], link["target"])}
    assert seen["detail"].startswith("collective all_reduce"), "below the job"
    assert "waits for" in seen["facts"]
    assert seen["last"].startswith("process "), "the cause is the path's last node"
    shown = "".join([seen["last"], *seen["words"]])
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert max(words.count("\n") for words in seen["words"]) <= 2, "three rows fit into a node"
    assert seen["zoomed"] == pytest.approx(1.3)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", JOBS)
def test_the_page_in_a_browser(chromium: str, tmp_path: Path, ranks: str) -> None:
    path = write_job(tmp_path / "s.duckdb", JOBS[ranks])
    rank = RANK[ranks]
    with served(path) as (url, _):
        graph = ask(url, "graph")
        tasks: list[dict[str, Any]] = []
        for scheme in ("light", "dark"):
            task: dict[str, Any] = {"url": url, "scheme": scheme, "rank": rank}
            if ranks != "1":
                task["to"] = rank
            if PICTURES:
                task["picture"] = str(Path(PICTURES) / f"serve-{ranks}-{scheme}.png")
            tasks.append(task)
        looks = look(chromium, tasks, "live.mjs")
        for seen in looks:
            check(seen)
            assert seen["read"].startswith(f"rank {rank} "), "the keys move the cell"
            assert seen["detail"] == f"Rank {rank} in step {JOBS[ranks].steps - 1}"
            assert seen["lanes"].count("phases") == 4
            assert seen["chart"] == list(range(1, JOBS[ranks].steps))[-120:]
            assert seen["curve"] == list(range(JOBS[ranks].steps))
            if ranks == "1":
                assert "graph" not in seen, "nothing is found in one step"
                continue
            assert (seen["hops"][0], seen["hops"][-1]) == ("rank", "rank")
            assert len(seen["route"]) == len(seen["hops"]), "the graph has the hops of the list"
            assert seen["hop"].startswith("GPU of rank 0")
            assert seen["curve_read"].startswith(f"step {JOBS[ranks].steps - 2}: 0.1")
            check_graph(seen["graph"], graph)
            if ranks == "2":
                assert any("…, pid 4411" in words for words in seen["graph"]["words"]), (
                    "a name is cut, its number is not"
                )
            print(  # noqa: T201
                f"{ranks} ranks: {seen['keys_ms']:.0f} ms for the keys to a cell, "
                f"{seen['graph']['keys_ms']:.0f} ms for those of the graph"
            )
    if ranks != "1":
        # Of two looks one may fall into somebody else's work on this machine.
        assert min(seen["graph"]["keys_ms"] for seen in looks) <= MAX_MS_FOR_KEYS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_ranks_in_a_browser(chromium: str, tmp_path: Path) -> None:
    job = LargeJob(10_240)
    write_large_job(tmp_path / "s.duckdb", job)
    with served(tmp_path / "s.duckdb") as (url, _):
        (seen,) = look(chromium, [{"url": url, "scheme": "light", "rank": job.culprit}], "live.mjs")
    check(seen)
    assert seen["read"].startswith("ranks "), "a row of the heat map is many ranks"
    assert f"rank {job.culprit} " in seen["text"], "the answer names it"


@pytest.mark.slow
def test_an_empty_store_waits_decently(chromium: str, tmp_path: Path) -> None:
    store.create_store(tmp_path / "s.duckdb")
    with served(tmp_path / "s.duckdb") as (url, _):
        (seen,) = look(
            chromium, [{"url": url, "scheme": "light", "waiting": "The store is empty"}], "live.mjs"
        )
    check(seen)


@pytest.mark.slow
def test_a_server_that_ends_leaves_its_last_answer(chromium: str, tmp_path: Path) -> None:
    path = write_job(
        tmp_path / "s.duckdb", Job(steps=60, faults=(Fault("contention", 1, 0.06, 30),))
    )
    flag = tmp_path / "open"
    with served(path) as (url, process):
        task = {"url": url, "scheme": "light", "ready": str(flag), "afterwards": "does not answer"}
        looking = start_looking(chromium, [task], "live.mjs")
        while not flag.exists():
            assert looking.poll() is None
            time.sleep(0.1)
        process.terminate()
        out, error = looking.communicate(timeout=200)
    assert looking.returncode == 0, error
    (seen,) = json.loads(out)
    # The browser itself complains of each request that finds nobody.
    assert all("ERR_CONNECTION_REFUSED" in line for line in seen["said"])
    assert seen["violations"] == []
    assert "CPU contention" in seen["text"], "the last answer stays"


@pytest.mark.slow
def test_a_fault_is_shown_within_seconds_of_its_onset(chromium: str, tmp_path: Path) -> None:
    fault = Fault("contention", 2, 0.2, 60)
    job = GrowingStore(tmp_path / "s.duckdb", Job(ranks=4, steps=400, faults=(fault,)))
    job.grow(50)
    flag, ended = tmp_path / "open", threading.Event()
    began_s: list[float] = []

    def train() -> None:
        """Write what has ended every second, a step of 0.12 s or 0.32 s at its own pace, once the page is open."""
        while not flag.exists() and not ended.wait(0.1):
            pass
        while job.next_step < 400 and not ended.is_set():
            if job.next_step >= 60 and not began_s:
                began_s.append(time.time())
            is_slow = job.next_step >= 60
            ended.wait(0.96)
            job.grow(3 if is_slow else 5)

    with served(job.path) as (url, _):
        training = threading.Thread(target=train)
        training.start()
        try:
            task = {
                "url": url,
                "scheme": "light",
                "ready": str(flag),
                "afterwards": "CPU contention",
            }
            (seen,) = look(chromium, [task], "live.mjs")
        finally:
            ended.set()
            training.join()
    check(seen)
    seconds = seen["afterwards_ms"] / 1e3 - began_s[0]
    print(f"{seconds:.1f} s from onset to page")  # noqa: T201
    assert 0.0 < seconds <= MAX_SECONDS_TO_SHOW
    before, after = seen["chart_before"], seen["chart_after"]
    assert before == list(range(1, 50))
    assert after[: len(before)] == before, "the curve grows while the store is written"
    assert after[-1] >= 60
