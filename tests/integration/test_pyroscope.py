"""Profiles in a real Pyroscope, whose address is in PYROSCOPE: what its query API returns is what was sent."""

from __future__ import annotations

import json
import os
import secrets
import time
import urllib.request
from typing import Any

import pytest

from rootwalk.instrumentation.profiles import Profile, Sample, ValueKind, build_request
from support.profile_breakers import GEMM, MAIN, READ, STEP
from support.workloads import wait_until

GPU = ValueKind("gpu_kernel", "nanoseconds")
TYPE = "gpu_kernel:gpu_kernel:nanoseconds:gpu_kernel:nanoseconds"
SPANS = {rank: (secrets.token_bytes(16), secrets.token_bytes(8)) for rank in (0, 1)}
# By rank and phase; what is linked to the span is the forward's.
VALUES = {(0, "forward"): 3_000, (0, "backward"): 50, (1, "forward"): 700_000, (1, "backward"): 8}
SEARCHED_MS = 600_000
FOUND_AFTER_S = 60.0


def post(path: str, data: bytes, content_type: str) -> bytes:
    request = urllib.request.Request(  # noqa: S310  (the address is the tester's own)
        os.environ["PYROSCOPE"] + path, data, {"Content-Type": content_type}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return bytes(answer.read())


def query(method: str, **fields: Any) -> dict[str, Any]:
    body = json.dumps(fields).encode()
    found = post(f"/querier.v1.QuerierService/{method}", body, "application/json")
    answer: dict[str, Any] = json.loads(found)
    graph: dict[str, Any] = answer.get("flamegraph", {})
    return graph


def chosen(service: str, *labels: str) -> dict[str, Any]:
    """Return what selects the profiles of a service with these labels, of the last minutes."""
    now_ms = time.time_ns() // 1_000_000
    selector = "{" + ",".join([f'service_name="{service}"', *labels]) + "}"
    times = {"start": now_ms - SEARCHED_MS, "end": now_ms + 60_000}
    return {"profileTypeID": TYPE, "labelSelector": selector, **times}


def total(service: str, *labels: str, **fields: Any) -> int:
    found = query("SelectMergeStacktraces", **chosen(service, *labels), **fields)
    return int(found.get("total", 0))


@pytest.fixture(scope="module")
def service() -> str:
    """The name of a service of which Pyroscope has a profile of two ranks."""
    if not os.environ.get("PYROSCOPE"):
        pytest.skip("pyroscope: needs its address in PYROSCOPE")
    name = f"rootwalk-{secrets.token_hex(8)}"
    profiles = [
        Profile(
            {"service.name": name, "training.rank": rank},
            time.time_ns() - 10_000_000_000,
            5_000_000_000,
            GPU,
            [
                Sample(
                    (READ, MAIN) if phase == "backward" else (GEMM, STEP, MAIN),
                    value,
                    {"training.phase": phase},
                    SPANS[rank] if phase == "forward" else None,
                )
                for (of, phase), value in VALUES.items()
                if of == rank
            ],
            GPU,
            1,
        )
        for rank in (0, 1)
    ]
    body = build_request(profiles, "test", "")
    post("/v1development/profiles", body, "application/x-protobuf")
    wait_until(lambda: total(name) == sum(VALUES.values()), FOUND_AFTER_S)
    return name


def test_a_flame_graph_by_rank_and_phase(service: str) -> None:
    for (rank, phase), value in VALUES.items():
        labels = (f'"training.rank"="{rank}"', f'"training.phase"="{phase}"')
        assert total(service, *labels) == value
    found = query("SelectMergeStacktraces", **chosen(service, '"training.rank"="1"'))
    assert {"main", "step", "gemm", "vfs_read"} <= set(found["names"])


def test_the_difference_of_two_ranks(service: str) -> None:
    one, other = (chosen(service, f'"training.rank"="{rank}"') for rank in (0, 1))
    found = query("Diff", left=one, right=other)
    assert (found["leftTicks"], found["rightTicks"]) == ("3050", "700008")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_spans_own_profile(service: str, rank: int) -> None:
    span = SPANS[rank][1].hex()
    assert total(service, spanSelector=[span]) == VALUES[rank, "forward"]


def test_no_other_span_has_one(service: str) -> None:
    assert total(service, spanSelector=["00000000000000aa"]) == 0
