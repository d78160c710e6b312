"""Loaded by the interpreter of every process under `rootwalk run`, because this folder leads PYTHONPATH.

Switches the instrumentation on and then runs the `sitecustomize` that would have run without us. Nothing here may
fail, print or import anything heavy: pip, launchers and helpers run it too.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _load_rootwalk() -> None:
    """Make `rootwalk.instrumentation` importable, also where the package is not installed."""
    if importlib.util.find_spec("rootwalk") is not None:
        if importlib.util.find_spec("rootwalk.instrumentation") is not None:
            return
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    package = importlib.util.module_from_spec(
        importlib.machinery.ModuleSpec("rootwalk", None, is_package=True)
    )
    sys.modules.setdefault("rootwalk", package)
    spec = importlib.util.spec_from_file_location(
        "rootwalk.instrumentation",
        os.path.join(folder, "__init__.py"),
        submodule_search_locations=[folder],
    )
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["rootwalk.instrumentation"] = module
        spec.loader.exec_module(module)


def _note(error: Exception) -> None:
    """Leave a note for `rootwalk run` and `rootwalk check`; the package may be what cannot be imported."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(folder, "start_notes.py")
    try:
        spec = importlib.util.spec_from_file_location("_rootwalk_start_notes", path)
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            module.leave_note(error)
    except Exception:  # noqa: BLE001, S110  (a process must start as if we were not there)
        pass


def _run_shadowed() -> None:
    """Run the `sitecustomize` that ours hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _start() -> None:
    if os.environ.get("ROOTWALK_DISABLED", "").strip().lower() in {"1", "true", "yes", "on"}:
        return
    _load_rootwalk()
    from rootwalk.instrumentation.start import start

    start()


try:
    _start()
except Exception as error:  # noqa: BLE001  (a process must start as if we were not there)
    _note(error)
    if os.environ.get("ROOTWALK_DEBUG"):
        sys.stderr.write(f"rootwalk: not instrumented: {error!r}\n")
_run_shadowed()
