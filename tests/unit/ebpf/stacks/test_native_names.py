"""Names of C++ as people write them; whatever is not understood stays as it is."""

from __future__ import annotations

from random import Random

import pytest

from rootwalk.ebpf.stacks.native_names import readable_name


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("main", "main"),
        ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
        ("_PyEval_EvalFrameDefault.cold", "_PyEval_EvalFrameDefault.cold"),
        ("_Z3foov", "foo"),
        ("_ZL6helperi", "helper"),
        (
            "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE",
            "std::condition_variable::wait",
        ),
        (
            "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE",
            "torch::autograd::Engine::thread_main",
        ),
        ("_ZNK3c104Type3strEv", "c10::Type::str"),
        ("_ZN4c10d7ReducerC2Ev", "c10d::Reducer::Reducer"),
        ("_ZN4c10d7ReducerD1Ev", "c10d::Reducer::~Reducer"),
        ("_ZN12_GLOBAL__N_13runEv", "(anonymous)::run"),
        ("_ZSt4moveIiEvv", "std::move"),
        ("_ZNSt", "_ZNSt"),
        ("_ZN999x", "_ZN999x"),
        ("_Z", "_Z"),
        ("_ZTV3Foo", "_ZTV3Foo"),
        ("", ""),
    ],
)
def test_names(mangled: str, name: str) -> None:
    assert readable_name(mangled) == name


def test_random_names_are_survived() -> None:
    random = Random(11)  # noqa: S311  (repeatable)
    for _ in range(3000):
        text = "_Z" + "".join(random.choices("NSKL0123456789abtCDE1_", k=random.randrange(40)))
        assert readable_name(text)
