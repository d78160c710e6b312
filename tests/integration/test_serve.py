"""The live page's server over real stores: its API, its refusals, and stores that are odd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rootwalk.graph.serve import answers
from rootwalk.graph.serve.snapshots import Snapshots
from rootwalk.graph.serve.static_files import library_paths
from rootwalk.graph.verdict import to_json
from rootwalk.otel_receiver import store
from support.counters import Told, add_counters, growing, level
from support.growing_store import GrowingStore, Watched
from support.jobs import Fault, Job, write_job
from support.page_server import Served, serving
from support.pages import Page, read_page

EVIL = "<img src=x onerror=alert(1)>\x07\u202e"
JOB = Job(
    name="a <b>job</b>", ranks=4, hosts=2, steps=60, faults=(Fault("contention", 3, 0.06, 40, name=EVIL),)
)  # fmt: skip
IN_JOB = "job=a+%3Cb%3Ejob%3C%2Fb%3E"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_job(tmp_path_factory.mktemp("serve") / "s.duckdb", JOB)
    nic = {"network.interface.name": "eth0"}
    told = (
        Told("hw.network.bandwidth.limit", level(1.25e9, 1.25e9, 0.0), 0, None, nic),
        Told("training.nic.carrier.changes", growing(1.0, 2.0), 1, None, nic),
    )
    add_counters(path, told, 10.0)
    with store.writing(path) as connection:
        connection.execute("UPDATE metric_records SET job = NULL")
    return path


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Served]:
    with serving(path) as served:
        yield served


def test_the_api_says_what_the_verdict_says(served: Served, path: Path) -> None:
    report, _ = read_page(path)
    answer = served.ask(f"/api/v1/verdict?{IN_JOB}")
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.json | {"cost": None} == json.loads(to_json(report.verdict)) | {"cost": None}
    (finding,) = report.verdict.findings

    live = served.ask(f"/api/v1/live?{IN_JOB}").json
    assert live["schema"] == "rootwalk.live/1"
    assert live["job"] == {"id": JOB.name, "attempt": 0, "world_size": 4, "ranks": 4}
    assert live["last_step"] == 59
    assert live["step_s"] == pytest.approx(0.18, abs=0.002)
    assert live["steps_per_s"] == pytest.approx(1 / 0.18, rel=0.02)
    assert [s["step"] for s in live["steps"]] == list(range(1, 60))
    assert [(f["id"], f["state"], f["rank"]) for f in live["findings"]] == [(finding.id, "open", 3)]
    assert "\x07" not in live["findings"][0]["text"]
    assert live["receiver"] == "not running"

    heat = served.ask(f"/api/v1/heat-map?{IN_JOB}").json
    assert (heat["measure"], len(heat["values"]), len(heat["steps"])) == ("lateness", 4, 60)
    assert max(heat["values"][3]) == pytest.approx(0.06, abs=0.005)
    graph = served.ask(f"/api/v1/graph?{IN_JOB}").json
    ids = {node["id"] for node in graph["nodes"]}
    assert finding.subject.node in ids
    assert {edge["source"] for edge in graph["edges"]} <= ids
    (path_,) = graph["paths"]
    assert (path_["finding"], path_["culprit"]) == (finding.id, finding.subject.node)
    assert [link["seconds"] for link in path_["links"]] == [link.seconds for link in finding.chain]
    assert {link[end] for link in path_["links"] for end in ("source", "target")} <= ids
    steps = served.ask(f"/api/v1/steps?{IN_JOB}").json
    assert steps["steps"] == list(range(60))
    assert steps["values"][-1] == pytest.approx(0.18, abs=0.002)
    assert steps["healthy_step_s"] == pytest.approx(0.12, abs=0.005)
    assert [job["job"] for job in served.ask("/api/v1/jobs").json["jobs"]] == [JOB.name]
    assert served.ask("/api/v1").json["routes"] == answers.INDEX


def test_a_rank_in_a_step_has_its_phases_and_who_ran_in_its_place(served: Served) -> None:
    step = served.ask(f"/api/v1/rank-step?{IN_JOB}&rank=3&step=50").json
    lanes = {lane["name"]: lane["pieces"] for lane in step["lanes"]}
    assert [piece["text"] for piece in lanes["phases"]] == [
        "data_load", "forward", "backward", "optimizer"
    ]  # fmt: skip
    assert len(lanes["collectives"]) == 2
    (wait,) = [p for p in lanes["main 1003 python"] if p["kind"] == "foreign"]
    assert wait["end_s"] - wait["start_s"] == pytest.approx(0.06)
    assert "pid 4411" in wait["text"]
    assert step["step_s"] == pytest.approx(0.18, abs=0.001)


def test_the_way_between_two_ranks_has_what_its_hops_count(served: Served) -> None:
    hops = served.ask(f"/api/v1/route?{IN_JOB}&from=0&to=3").json["hops"]
    assert [(hop["kind"], hop["health"]) for hop in hops] == [
        ("rank", "not seen"),
        ("GPU", "not seen"),
        ("interface", "quiet"),
        ("network", "not seen"),
        ("interface", "bad"),
        ("GPU", "not seen"),
        ("rank", "not seen"),
    ]
    assert len(hops[-1]["findings"]) == 1
    assert [fact["text"] for fact in hops[4]["facts"]] == ["2\u00a0change"]
    page = Page(served.ask(f"/view/route?{IN_JOB}&from=0&to=3").text)
    assert "carrier changes" in page.text
    assert "named by a finding" in page.text


def test_files_are_compressed_for_who_accepts_that_and_libraries_are_kept(served: Served) -> None:
    library = next(path for path in library_paths() if path.endswith("cytoscape.min.js"))
    plain = served.ask(f"/static/{library}")
    assert plain.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert plain.headers["Cache-Control"].endswith("immutable")
    assert "Content-Encoding" not in plain.headers
    zipped = served.ask(f"/static/{library}", Accept_Encoding="br, gzip")
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert zipped.text == plain.text
    assert int(zipped.headers["Content-Length"]) < int(plain.headers["Content-Length"]) / 2
    assert served.ask("/static/serve.js").headers["Cache-Control"] == "no-store"
    assert served.ask(f"/static/{library}/..").status == 404
    assert f'"/static/{library}"' in served.ask("/").text


@pytest.mark.parametrize(
    "view", ["/", f"/view/job?{IN_JOB}", f"/view/rank-step?{IN_JOB}&rank=3&step=50", "/view/route?from=0&to=9"]
)  # fmt: skip
def test_html_is_well_formed_and_names_stay_text(served: Served, view: str) -> None:
    answer = served.ask(view)
    assert answer.status == 200
    page = Page(answer.text)
    assert page.open == []
    assert page.count("img") == page.count("b") == 0
    assert [a for _, a in page.elements if any(name.startswith("on") for name in a)] == []
    assert "\x07" not in answer.text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "unsafe" not in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("request_path", "headers", "status", "code"),
    [
        ("/", {"Host": "evil.example"}, 421, "wrong_host"),
        ("/api/v1/jobs", {"Host": "evil.example:80"}, 421, "wrong_host"),
        ("/api/v1/jobs", {"Sec_Fetch_Site": "cross-site"}, 403, "cross_site"),
        ("/api/v1/live?job=other", {}, 400, "bad_request"),
        ("/api/v1/rank-step?rank=x&step=1", {}, 400, "bad_request"),
        ("/api/v1/rank-step?rank=%C2%B2&step=1", {}, 400, "bad_request"),
        ("/api/v1/rank-step?rank=0", {}, 400, "bad_request"),
        ("/api/v1/rank-step?rank=0&step=99999999999999999", {}, 404, "not_found"),
        ("/api/v1/route?from=0&to=77", {}, 404, "not_found"),
        ("/static/..%2Fserver.py", {}, 404, "not_found"),
        ("/login", {}, 404, "not_found"),
        ("/nothing", {}, 404, "not_found"),
    ],
)
def test_every_refusal_has_one_form(
    served: Served, request_path: str, headers: dict[str, str], status: int, code: str
) -> None:
    answer = served.ask(request_path, None, **headers)
    assert answer.status == status
    assert answer.json.keys() == {"schema", "error"}
    assert answer.json["error"]["code"] == code
    assert answer.json["error"]["message"].startswith("cannot ")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_token_is_asked_for_where_there_is_one(path: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("s3cret\n")
    with serving(path, token_file=tokens) as served:
        refused = served.ask("/api/v1/jobs")
        assert (refused.status, refused.json["error"]["code"]) == (401, "no_token")
        assert served.ask("/view/job").status == 401
        assert "Token" in Page(served.ask("/").text).text
        assert served.ask("/static/serve.css").status == 200
        assert served.ask("/api/v1/jobs", Authorization="Bearer s3cret").status == 200
        assert served.ask("/login", data=b"token=wrong").status == 401
        # The cookie is of the answer that redirects, which urllib follows without it: back at the token.
        assert served.ask("/login", data=b"token=s3cret").status == 401


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    store.create_store(tmp_path / "s.duckdb")
    with serving(tmp_path / "s.duckdb") as served:
        assert served.ask("/api/v1/jobs").json["jobs"] == []
        answer = served.ask("/api/v1/live")
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
        assert "no job yet" in answer.json["error"]["message"]


def test_a_newer_store_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = write_job(tmp_path / "s.duckdb", Job(steps=10))
    with serving(path) as served:
        with store.writing(path) as connection:
            connection.execute("UPDATE schema_versions SET version = 999")
        answer = served.ask("/api/v1/jobs")
    assert (answer.status, answer.json["error"]["code"]) == (503, "store")
    assert "999" in answer.json["error"]["message"]


def test_one_rank_and_one_step_are_shown(tmp_path: Path) -> None:
    path = write_job(tmp_path / "s.duckdb", Job(ranks=1, steps=1, sensor=None))
    with serving(path) as served:
        live = served.ask("/api/v1/live").json
        assert (live["last_step"], live["steps"], live["step_s"]) == (0, [], None)
        page = Page(served.ask("/view/job").text)
        assert page.open == []
        assert page.count("h1") == 1


@pytest.mark.long
def test_findings_of_live_detection_open_and_close(tmp_path: Path) -> None:
    fault = Fault("contention", 1, 0.06, 60, 75)
    watched = Watched(GrowingStore(tmp_path / "s.duckdb", Job(steps=90, faults=(fault,))))
    watched.run(70, every=5)
    with serving(watched.growing.path) as served:
        (opened,) = served.ask("/api/v1/live").json["findings"]
        watched.run(90, every=5)
        (closed,) = served.ask("/api/v1/live").json["findings"]
    assert (opened["state"], opened["closed_unix_ns"], opened["rank"]) == ("open", None, 1)
    assert (closed["id"], closed["state"]) == (opened["id"], "closed")
    assert closed["closed_unix_ns"] > opened["named_unix_ns"]


def test_answers_are_made_for_who_looks_and_when_there_is_news(tmp_path: Path) -> None:
    growing_store = GrowingStore(tmp_path / "s.duckdb", Job(steps=30))
    growing_store.grow(20)
    now = [0.0]
    snapshots = Snapshots(growing_store.path, lambda report: "", now_s=lambda: now[0])
    assert snapshots.due() is None, "nobody looks"
    snapshots.want("j1", ())
    assert snapshots.due() == "j1"
    snapshots.make("j1")
    now[0] += 10.0
    assert snapshots.due() is None, "what the diagnosis itself has written is no news"
    growing_store.grow(1)
    assert snapshots.due() == "j1"
    now[0] += 30.0
    assert snapshots.due() is None, "nobody looks any more"
    snapshots.want("j1", ())
    assert snapshots.due() == "j1"
    first, problem = snapshots.want("j1", ())
    assert (first is not None, problem) == (True, None)
