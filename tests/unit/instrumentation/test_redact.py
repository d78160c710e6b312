"""Which thread names leave as they are, and which only as a hash."""

from __future__ import annotations

import pytest

from rootwalk.instrumentation.redact import redact_thread_name

KNOWN = [
    "python",
    "python3.11",
    "pt_main_thread",
    "pt_autograd_0",
    "pt_nccl_watchdg",
    "pt_gloo_runloop",
    "pt_tcpstore_uv",
    "pt_data_worker",
    "NCCL Service 0",
    "NCCL Progress 1",
    "cuda-EvtHandlr",
    "cuda00001400006",
    "jemalloc_bg_thd",
    "iou-wrk-4411",
    "Thread-12",
    "rootwalk-export",
    "",
]
CHOSEN = [
    "alice-upload",
    "sk-live-4eC39Hq",
    "/home/alice/ckp",
    "python train.py",  # what setproctitle makes of a command line
    "python-s3cret",
    "Thread-1 (uploa",  # Python 3.14 puts the function's name there
    "my_nccl",
    "gloo secret",
    "pt_ümlaut",
]


@pytest.mark.parametrize("name", KNOWN)
def test_names_that_software_gives_its_threads_stay(name: str) -> None:
    assert redact_thread_name(name) == name


@pytest.mark.parametrize("name", CHOSEN)
def test_names_that_somebody_chose_leave_as_a_hash(name: str) -> None:
    harmless = redact_thread_name(name)
    assert harmless.startswith("thread-")
    assert len(harmless) == len("thread-") + 8
    assert harmless == redact_thread_name(name)


def test_different_names_stay_apart() -> None:
    assert len({redact_thread_name(name) for name in CHOSEN}) == len(CHOSEN)


@pytest.mark.parametrize(("value", "is_let_through"), [("0", True), ("off", True), ("1", False)])
def test_the_user_may_opt_out(
    monkeypatch: pytest.MonkeyPatch, value: str, is_let_through: bool
) -> None:
    monkeypatch.setenv("ROOTWALK_REDACT", value)
    assert (redact_thread_name("alice-upload") == "alice-upload") is is_let_through
