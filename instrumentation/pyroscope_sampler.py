"""pyroscope-io inside a rank: its own sampler, with job, rank, phase and a part of the step as tags.

For whoever has a Pyroscope and no agent with the privilege for eBPF. It sees this process alone, Python frames alone,
and sends to the address of `ROOTWALK_PYROSCOPE` by itself. Owns when it starts and stops, and the tags; the sampler is
the package's. Whatever goes wrong with it, the job and the other hooks go on.

    series labels   service_name, training_job_id, training_rank, host_name        one set for each rank
    sample labels   training_phase, training_step_block                            at most 7 x 64 of them

Pyroscope makes a series of each set of labels, those of samples too: the number of a step, which has no end, would be
one new series a step. So a step is told by its block of 100, and blocks are numbered round and round.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from rootwalk.instrumentation.identity import Identity

__all__ = ["ADDRESS", "PyroscopeSampler", "start_sampler"]

logger = logging.getLogger(__name__)

ADDRESS: Final = "ROOTWALK_PYROSCOPE"
# Those of the package's own documents.
USER, PASSWORD, TENANT = (
    "PYROSCOPE_BASIC_AUTH_USER",
    "PYROSCOPE_BASIC_AUTH_PASSWORD",
    "PYROSCOPE_TENANT_ID",
)
PACKAGE: Final = "pyroscope"
# A prime number, so that nothing of the job beats with it.
SAMPLES_HZ: Final = 97
PHASE, STEP_BLOCK = "training_phase", "training_step_block"
BLOCK_STEPS, BLOCKS = 100, 64
# What a rank does between input and backward pass; hooks tell no forward pass where the model has none of its own.
AFTER: Final[Mapping[str, str]] = {"data_load": "forward"}
# The last samples are sent when the process ends, to a server that may not answer.
STOP_S: Final = 3.0


class PyroscopeSampler:
    """The package's sampler and the tags of the main thread. Every method is safe to call from a hook: none raises.

    Args:
        library: The package.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._tags: dict[str, str] = {}
        self._phase = ""

    def begin_phase(self, phase: str, step: int) -> None:
        """Tag what follows with a phase of a step."""
        self._phase = phase
        self._tag(PHASE, phase)
        self._tag(STEP_BLOCK, str(step // BLOCK_STEPS % BLOCKS))

    def end_phase(self) -> None:
        """Tag what follows with what comes after the phase, or with none."""
        phase, self._phase = self._phase, ""
        self._tag(PHASE, AFTER.get(phase, ""))

    def _tag(self, key: str, value: str) -> None:
        known = self._tags.get(key, "")
        if value == known:
            return
        if known:
            self._guard(lambda: self._library.remove_thread_tag(key, known))
        if value:
            self._guard(lambda: self._library.add_thread_tag(key, value))
        self._tags[key] = value

    def _guard(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  (outermost frame of a hook: it must not reach the job)
            logger.debug("a tag for Pyroscope is lost: %r", error)

    def stop(self) -> None:
        """Send the last samples and end, within 3 s."""
        # Not joined at the end of the interpreter: a server that does not answer keeps nobody.
        thread = threading.Thread(target=lambda: self._guard(self._library.shutdown), daemon=True)
        thread.start()
        thread.join(STOP_S)


def start_sampler(
    identity: Identity, environment: Mapping[str, str] = os.environ
) -> PyroscopeSampler | None:
    """Start the sampler where the environment names a server; None otherwise, and with a warning where it cannot be.

    Args:
        identity: Of this rank.
        environment: Of this process.
    """
    address = environment.get(ADDRESS, "").strip()
    if not address:
        return None
    if urlsplit(address).scheme not in ("http", "https"):
        logger.warning(
            'cannot send samples to Pyroscope: saw %s="%s"; needs http:// or https://',
            ADDRESS,
            address,
        )
        return None
    try:
        library = importlib.import_module(PACKAGE)
    except ImportError as error:
        logger.warning(
            "cannot send samples to Pyroscope: saw %s; needs the package pyroscope-io"
            " (pip install 'rootwalk[pyroscope]')",
            error,
        )
        return None
    try:
        _configure(library, identity, address, environment)
    except Exception as error:  # noqa: BLE001  (outermost frame of a hook: it must not reach the job)
        logger.warning("cannot send samples to Pyroscope: saw %r", error)
        return None
    return PyroscopeSampler(library)


def _configure(
    library: Any, identity: Identity, address: str, environment: Mapping[str, str]
) -> None:
    library.configure(
        application_name=identity.service_name,
        server_address=address,
        basic_auth_username=environment.get(USER, ""),
        basic_auth_password=environment.get(PASSWORD, ""),
        tenant_id=environment.get(TENANT, ""),
        sample_rate=SAMPLES_HZ,
        oncpu=True,
        # By default only who holds the interpreter's lock is seen: PyTorch computes without it.
        gil_only=False,
        tags={
            "training_job_id": identity.job,
            "training_rank": str(identity.rank),
            "host_name": identity.host_name,
        },
    )
