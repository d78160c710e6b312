"""Which loader is chosen, with loaders that are replaced by words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rootwalk.ebpf import backends
from rootwalk.ebpf.availability import Reason
from rootwalk.ebpf.backends import VARIABLE, choose_targets
from rootwalk.ebpf.bcc_backend import LIMITS
from rootwalk.ebpf.targets import CORE, Loader
from rootwalk.instrumentation.errors import ConfigError, UnavailableError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Reason | None, Reason | None], None]:
    """A machine where libbpf and BCC are missing for these reasons; None for what is there."""

    def has(core: Reason | None, bcc: Reason | None) -> None:
        def opened(_: Path, loader: Loader = CORE) -> str:
            missing = core if loader == CORE else bcc
            if missing is not None:
                raise UnavailableError(f"no {loader.name}", reason=missing, hint=missing.hint)
            return loader.name

        monkeypatch.delenv(VARIABLE, raising=False)
        monkeypatch.setattr(backends, "Targets", opened)

    return has


Machine = Callable[[Reason | None, Reason | None], None]


def test_libbpf_where_it_works(machine: Machine) -> None:
    machine(None, None)
    assert tuple(choose_targets()) == ("core", None)


@pytest.mark.parametrize("reason", [Reason.NO_LIBBPF, Reason.NO_OBJECT])
def test_bcc_where_libbpf_is_missing(machine: Machine, reason: Reason) -> None:
    machine(reason, None)
    assert tuple(choose_targets()) == ("bcc", f"no core; {LIMITS}")


@pytest.mark.parametrize("reason", [Reason.NO_PRIVILEGE, Reason.NO_BTF, Reason.LOAD_REFUSED])
def test_what_bcc_cannot_overcome(machine: Machine, reason: Reason) -> None:
    machine(reason, None)
    with pytest.raises(UnavailableError) as caught:
        choose_targets()
    assert caught.value.reason == reason


def test_neither(machine: Machine) -> None:
    machine(Reason.NO_LIBBPF, Reason.NO_BCC)
    with pytest.raises(UnavailableError, match="saw no core; no bcc") as caught:
        choose_targets()
    assert caught.value.reason == Reason.NO_LIBBPF


def test_variable_decides(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(None, None)
    monkeypatch.setenv(VARIABLE, "bcc")
    assert tuple(choose_targets()) == ("bcc", f"ROOTWALK_BPF_BACKEND=bcc; {LIMITS}")
    machine(Reason.NO_LIBBPF, None)
    monkeypatch.setenv(VARIABLE, "core")
    with pytest.raises(UnavailableError):
        choose_targets()


def test_variable_that_names_no_loader(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(None, None)
    monkeypatch.setenv(VARIABLE, "libbpf")
    with pytest.raises(ConfigError, match='saw ROOTWALK_BPF_BACKEND="libbpf"'):
        choose_targets()
