"""Switches the instrumentation of this process on, once."""

from __future__ import annotations

from rootwalk.instrumentation import import_hook, torch_hooks
from rootwalk.instrumentation.program_end import watch_exceptions
from rootwalk.instrumentation.runtime import Runtime, is_disabled

__all__ = ["start"]

_runtimes: list[Runtime] = []


def start() -> Runtime | None:
    """Watch this process's training, whether torch is imported yet or not.

    Returns:
        The process's instrumentation, the same at every call; None when the user has switched it off.
    """
    if is_disabled():
        return None
    if not _runtimes:
        runtime = Runtime()
        _runtimes.append(runtime)
        torch_hooks.install_into_loaded_modules(runtime)
        import_hook.install(runtime)
        watch_exceptions(runtime.note_exception)
        from rootwalk.instrumentation.loop_marks import offer_on_package

        offer_on_package()
    return _runtimes[0]
