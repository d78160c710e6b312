"""A rank's steps tell which GPU it uses, as NVML calls it: an agent between a ring, a stand-in of NVML and a server."""

from __future__ import annotations

from pathlib import Path

import pytest

import rootwalk.ebpf.gpu.reader as readers
from support.fake_ranks import agent_of, drive, rank_process
from support.nvml_standin import GIB, Scenario, has_compiler, uuid_of
from support.otlp_sink import OtlpSink, attributes, otlp_sink

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_compiler(), reason="needs a C compiler"),
]

# Of 80 ms: metrics, and with them whose each GPU is, are told every 5 s.
STEPS = 130
GPUS = 3


def gpus_of_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch, used: tuple[int, ...]
) -> list[str | None]:
    """Return which GPU the steps of a rank tell that uses some of three, in order."""
    monkeypatch.setattr(readers, "FIRST_ANSWER_S", 30.0)
    scenario = Scenario(folder / "scenario", gpus=GPUS)
    for name, value in scenario.write().items():
        monkeypatch.setenv(name, value)
    rings = folder / "rings"
    rings.mkdir()
    with otlp_sink() as sink, agent_of(sink, rings, ["bpf"]) as agent:
        with rank_process(rings, STEPS) as process:
            for gpu in used:
                scenario.add(gpu, "process", process.pid, GIB)
            scenario.change()
            drive(agent, process, rings)
        return read_gpus(sink)


def read_gpus(sink: OtlpSink) -> list[str | None]:
    steps = [span for span in sink.spans() if span.name == "training.rank_step"]
    found = sorted((span.start_time_unix_nano, attributes(span).get("hw.id")) for span in steps)
    return [None if gpu is None else str(gpu) for _, gpu in found]


def test_steps_tell_the_gpu_that_their_rank_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = gpus_of_steps(tmp_path, monkeypatch, (1,))
    assert len(told) == STEPS
    assert told[-1] == uuid_of(1)
    assert set(told) <= {None, uuid_of(1)}


@pytest.mark.parametrize(
    "used", [pytest.param((), id="none", marks=pytest.mark.variant), pytest.param((0, 2), id="two")]
)
def test_a_rank_of_which_no_one_gpu_is_known_tells_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: tuple[int, ...]
) -> None:
    assert set(gpus_of_steps(tmp_path, monkeypatch, used)) == {None}
