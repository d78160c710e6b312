"""Questions to a kernel made by hand: what is answered, what is lost on the way, what is refused."""

from __future__ import annotations

import pytest

from rootwalk.ebpf.inet_diag import NLM_F_DUMP_INTR, decode_connection
from rootwalk.ebpf.sock_diag import DiagSocket
from rootwalk.instrumentation.errors import UnavailableError
from support import diag_messages as made
from support.diag_messages import FakeKernel

WHO = [
    made.identity(number, ("10.0.0.1", 40_000 + number), ("10.0.0.2", 443)) for number in range(5)
]
INFO = made.tcp_info(1009)
KNOWN = [
    decode_connection(raw, 0, len(raw))
    for raw in (made.connection(who, 100 + number, INFO) for number, who in enumerate(WHO))
]
NOTHING = (made.done(),)  # a family without connections


def test_dump_finds_what_is_wanted_among_all() -> None:
    both = made.connection(WHO[0], 100, INFO) + made.connection(WHO[1], 101, INFO)
    other = made.connection(WHO[2], 102, INFO)
    asked = DiagSocket(lambda: FakeKernel((both, other + made.done()), NOTHING))
    answers = asked.dump({101, 102})
    assert [one.inode for one in answers.connections] == [101, 102]
    assert (answers.seen, answers.is_complete) == (3, True)


def test_interrupted_dump_is_not_complete() -> None:
    script = (made.connection(WHO[0], 100, INFO, flags=2 | NLM_F_DUMP_INTR), made.done())
    asked = DiagSocket(lambda: FakeKernel(script, NOTHING))
    answers = asked.dump({100})
    assert [one.inode for one in answers.connections] == [100]
    assert not answers.is_complete


@pytest.mark.parametrize(
    "script",
    [
        (),
        (made.connection(WHO[0], 100, INFO),),
        (made.error(16),),
        (made.connection(WHO[0], 100, INFO)[:50], made.done()),
        (made.connection(WHO[0], 100, INFO)[:-4], made.done()),
    ],
    ids=["no answer", "no end", "refused", "cut in its identity", "cut in its record"],
)
def test_dump_that_is_not_whole_is_not_complete(script: tuple[bytes, ...]) -> None:
    asked = DiagSocket(lambda: FakeKernel(script, NOTHING))
    assert not asked.dump({100}).is_complete


def test_what_is_cut_is_counted_and_the_rest_is_read() -> None:
    cut, whole = made.connection(WHO[0], 100, INFO)[:-4], made.connection(WHO[1], 101, INFO)
    asked = DiagSocket(lambda: FakeKernel((cut, whole, made.done()), NOTHING))
    assert [one.inode for one in asked.dump({100, 101}).connections] == [101]
    assert asked.malformed == 1


def test_answers_to_a_question_that_was_given_up_are_passed_over() -> None:
    late = made.connection(WHO[0], 100, INFO, sequence=0)
    asked = DiagSocket(lambda: FakeKernel((late, made.done()), NOTHING))
    answers = asked.dump({100})
    assert (answers.connections, answers.is_complete) == ([], True)


def test_look_up() -> None:
    script = (
        made.connection(WHO[0], 100, INFO, sequence=1),
        made.error(2, sequence=2),
        made.connection(WHO[2], 102, INFO, sequence=3),
    )
    asked = DiagSocket(lambda: FakeKernel(script))
    answers = asked.look_up(KNOWN[:3])
    assert [one.inode for one in answers.connections] == [100, 102]
    assert (answers.gone, answers.is_complete) == ([1], True)


def test_look_up_of_which_answers_are_lost_says_nothing_about_those() -> None:
    script = (made.connection(WHO[2], 102, INFO, sequence=3),)
    asked = DiagSocket(lambda: FakeKernel(script))
    answers = asked.look_up(KNOWN[:3])
    assert [one.inode for one in answers.connections] == [102]
    assert (answers.gone, answers.is_complete) == ([], False)


def test_kernel_that_cannot_answer_now_does_not_say_that_it_is_gone() -> None:
    asked = DiagSocket(lambda: FakeKernel((made.error(12),)))  # ENOMEM
    assert asked.look_up(KNOWN[:1]).gone == []


def test_many_are_looked_up_in_batches() -> None:
    many = KNOWN * 20
    kernel = FakeKernel(
        [made.error(2, sequence=index + 1) for index in range(64)],
        [made.error(2, sequence=index + 1) for index in range(36)],
    )
    assert DiagSocket(lambda: kernel).look_up(many).gone == list(range(100))
    assert len(kernel.questions) == 3  # with the probe's


def test_kernel_without_the_interface() -> None:
    kernel = FakeKernel()
    kernel._scripts.clear()
    kernel._scripts.append((made.error(2),))
    with pytest.raises(UnavailableError) as caught:
        DiagSocket(lambda: kernel)
    assert caught.value.reason == "NO_INET_DIAG"
    assert kernel.is_closed


def test_kernel_without_the_protocol() -> None:
    def refuse() -> FakeKernel:
        raise OSError(93, "Protocol not supported")

    with pytest.raises(UnavailableError, match="Protocol not supported"):
        DiagSocket(refuse)
