"""An exception that ends a program: its type and place, and nothing of its text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rootwalk.instrumentation import program_end
from rootwalk.instrumentation.program_end import (
    describe_exception,
    find_exception,
    has_inherited_rank,
    watch_exceptions,
)
from rootwalk.instrumentation.ring_exception import MAX_BODY_BYTES
from support.rings import Rank

TEXT = "alice's data set"


class OwnError(RuntimeError):
    """An exception of a program's own."""


def fail_in_library() -> None:
    json.loads("{" + TEXT)


def raised(call: Any) -> BaseException:
    try:
        call()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def test_the_place_is_the_program_s_own_function_and_not_the_library_s() -> None:
    kind, frames = describe_exception(raised(fail_in_library))
    assert kind == "json.decoder.JSONDecodeError"
    assert frames[0].startswith("fail_in_library (test_program_end.py:")
    assert frames[1].startswith("raised (test_program_end.py:")
    assert TEXT not in "".join(frames)
    assert "/" not in "".join(frames)


def test_where_no_function_is_the_program_s_own_everything_stays() -> None:
    code = compile("def inner():\n 1 / 0\ninner()", "/x/site-packages/lib.py", "exec")
    error = raised(lambda: exec(code, {}))  # noqa: S102
    frames = error.__traceback__
    assert frames is not None
    while frames is not None and "site-packages" not in frames.tb_frame.f_code.co_filename:
        frames = frames.tb_next
    kind, named = describe_exception(error.with_traceback(frames))
    assert (kind, named) == ("ZeroDivisionError", ["inner (lib.py:2)", "<module> (lib.py:3)"])


def test_a_deep_recursion_is_cut() -> None:
    def deeper() -> None:
        deeper()

    kind, frames = describe_exception(raised(deeper))
    assert kind == "RecursionError"
    assert len(frames) == 16


def test_an_exception_has_its_module_in_its_name() -> None:
    def fail() -> None:
        raise OwnError(TEXT)

    assert describe_exception(raised(fail))[0].endswith("test_program_end.OwnError")


def test_the_hook_that_was_there_is_called_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    noted: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda *what: shown.append(what))
    watch_exceptions(noted.append)
    error = raised(fail_in_library)
    sys.excepthook(type(error), error, error.__traceback__)
    assert noted == [error]
    assert shown == [(type(error), error, error.__traceback__)]


def test_an_exit_is_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    assert find_exception() is None
    try:
        try:
            fail_in_library()
        except ValueError:
            sys.exit(3)
    except SystemExit:
        assert find_exception() is None


def test_an_exception_on_its_way_is_found_in_an_exit_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    found = []

    def fail() -> None:
        try:
            raise OwnError
        finally:
            found.append(find_exception())

    assert raised(fail) == found[0]


def test_a_rank_that_torch_has_spawned_ends_by_what_was_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    source = "import sys\ntry:\n raise ValueError\nexcept ValueError:\n sys.exit(1)"
    for file, kind in (
        ("/x/torch/multiprocessing/spawn.py", ValueError),
        ("/x/own.py", type(None)),
    ):
        try:
            exec(compile(source, file, "exec"), {})  # noqa: S102
        except SystemExit:
            assert isinstance(find_exception(), kind)


def test_a_process_without_a_rank_has_inherited_none() -> None:
    assert not has_inherited_rank({})
    assert not has_inherited_rank({"RANK": "77", "LOCAL_RANK": "5"})


def test_a_ring_keeps_the_first_exception_and_tells_it_once(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    assert rank.reader.exception() is None
    rank.writer.set_exception(50, "ValueError", ["main (train.py:3)"])
    rank.writer.set_exception(60, "KeyError", [])
    found = rank.reader.exception()
    assert found == (50, "ValueError", ("main (train.py:3)",), False)
    rank.reader.mark_exception_sent()
    again = rank.reader.exception()
    assert again is not None
    assert again.is_sent
    rank.close()


def test_an_exception_that_does_not_fit_loses_its_outermost_functions(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    frames = [f"f{number} ({'x' * 300}.py:1)" for number in range(40)]
    rank.writer.set_exception(50, "E" * 500, frames)
    found = rank.reader.exception()
    assert found is not None
    assert 0 < len(found.frames) < 40
    assert list(found.frames) == frames[: len(found.frames)]
    assert len(json.dumps(found.frames)) <= MAX_BODY_BYTES
    rank.close()


def test_hooks_of_rootwalk_are_no_place_of_an_exception() -> None:
    """An exception of a library passes through our hook around it: the program's function is what counts."""
    scope: dict[str, Any] = {}
    hook = Path(program_end.__file__).with_name("torch_hooks.py")
    exec(compile("def wrapper(call, text):\n    return call(text)\n", str(hook), "exec"), scope)  # noqa: S102

    def train_step() -> None:
        scope["wrapper"](json.loads, "{" + TEXT)

    with pytest.raises(json.JSONDecodeError) as caught:
        train_step()
    _, frames = describe_exception(caught.value)
    assert frames[0].startswith("train_step (test_program_end.py:")
