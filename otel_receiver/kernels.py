"""The compiled decoders: loaded when there is enough to decode, and only where there is memory for the compiler.

numba takes a second to load, some 100 MB of memory and, the first time on a machine, tens of seconds to compile. A
receiver of one small job never needs it; one that takes a batch of `LOAD_BYTES` does. Machine code is kept in the
user's cache folder, in a folder named after the source that it was made of. Where numba is missing or broken, the
plain decoders do the same work.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.resources
import importlib.util
import logging
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Final

__all__ = ["LOAD_BYTES", "load_kernels", "loaded_kernels", "switch_kernels", "unload_kernels"]

logger = logging.getLogger(__name__)

# Journal bytes waiting to be decoded at once: some 10,000 spans, a third of a second of the plain decoder.
LOAD_BYTES: Final = 4 * 1024 * 1024

_MODULES: Final = ("wire_words", "wire_text", "wire_fields", "wire_checks", "wire_spans")
_guard = threading.Lock()


class _State:
    module: ModuleType | None = None
    is_allowed = True


def loaded_kernels() -> ModuleType | None:
    """Return the compiled functions if they are loaded."""
    return _State.module


def switch_kernels(*, is_allowed: bool) -> None:
    """Say whether the compiled functions may be used: not where memory is short."""
    _State.is_allowed = is_allowed
    if not is_allowed:
        _State.module = None


def unload_kernels() -> None:
    """Forget what was loaded and that it could not be; for tests."""
    _State.module, _State.is_allowed = None, True


def load_kernels() -> ModuleType | None:
    """Return the compiled functions, loaded now if need be; None where the plain decoders have to do."""
    with _guard:
        if _State.module is None and _State.is_allowed:
            _State.module = _load()
            # A try that failed is not repeated with every batch.
            _State.is_allowed = _State.module is not None
        return _State.module


def _load() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None:
        logger.info("numba is not installed: spans are decoded by plain Python")
        return None
    try:
        import numba

        numba.config.CACHE_DIR = str(_cache_folder())
        module = importlib.import_module("rootwalk.otel_receiver.wire_spans")
        # Compiled at the first call: here, not while a sender waits.
        module.check_request(b"\x0a\x00")
    except Exception:
        # Compilers fail in many ways (versions, a cache that cannot be written); none may stop the receiver.
        logger.warning(
            "cannot load the compiled decoder; plain Python does its work", exc_info=True
        )
        return None
    return module


def _cache_folder() -> Path:
    digest = hashlib.sha256()
    for name in _MODULES:
        source = importlib.resources.files("rootwalk.otel_receiver").joinpath(f"{name}.py")
        digest.update(source.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "rootwalk" / f"kernels-{digest.hexdigest()[:16]}"
