"""What `run` says at its end: the verdict, or why there is none."""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rootwalk.instrumentation.errors import RootwalkError

if TYPE_CHECKING:
    from rootwalk.graph.model import Verdict

__all__ = ["tell_verdict"]

logger = logging.getLogger(__name__)


def tell_verdict(store: Path, job: str, json_path: Path | None) -> None:
    """Diagnose the store and print the verdict; trouble here is told and never changes the job's exit code.

    Args:
        store: The store, complete.
        job: Which job.
        json_path: Where the verdict is written too, None for nowhere.
    """
    from rootwalk.graph.diagnosis import diagnose
    from rootwalk.graph.render.text import render_next, render_text
    from rootwalk.graph.verdict import to_json

    try:
        verdict = _with_notes(diagnose(store, job=job), job)
        if json_path is not None:
            _write_json(json_path, to_json(verdict))
        print(render_text(verdict))
        print(f"store     {store}")
        print(render_next(verdict, str(store)), end="", flush=True)
        _explain_no_steps(store, job, verdict)
    except RootwalkError as error:
        print(f"no verdict: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
    except KeyboardInterrupt:
        print("no verdict: interrupted; the store is complete", file=sys.stderr)
        print(f"hint: rootwalk diagnose {store} tells what was seen", file=sys.stderr)
    except OSError as error:
        print(
            f"cannot print the verdict: {(error.strerror or str(error)).lower()}", file=sys.stderr
        )
        print(f"hint: rootwalk diagnose {store} tells it again", file=sys.stderr)
    except Exception as error:
        # The job has ended: whatever is wrong here, its exit code must still be passed on.
        logger.debug("no verdict", exc_info=True)
        print(f"no verdict: {error!r} is a bug in Rootwalk; the store is complete", file=sys.stderr)
        print(f"hint: rootwalk diagnose {store} shows where", file=sys.stderr)


def _explain_no_steps(store: Path, job: str, verdict: Verdict) -> None:
    """Say on stderr why a job with ranks may have no step, and what to do."""
    from rootwalk.otel_receiver.store import query_store

    if verdict.window.first_step is not None:
        return
    quoted = job.replace("'", "''")
    query = (
        "SELECT count(DISTINCT rank) FROM metrics WHERE rank IS NOT NULL"  # noqa: S608
        f" AND job = '{quoted}' AND NOT EXISTS (SELECT 1 FROM steps WHERE job = '{quoted}')"
    )
    _, _, ((ranks,),) = query_store(store, query)
    if ranks:
        print(
            f"no step was seen in {ranks} ranks: no torch.optim optimiser updated", file=sys.stderr
        )
        print("hint: mark the loop's steps with rootwalk.step() (docs/attach.md)", file=sys.stderr)


def _with_notes(verdict: Verdict, job: str) -> Verdict:
    """Return the verdict with a word on processes in which the instrumentation could not start."""
    from rootwalk.graph.model import DataQuality, QualityCode
    from rootwalk.instrumentation.start_notes import describe_notes, remove_notes

    text, count = describe_notes(job)
    if not count:
        return verdict
    logger.warning("%s", text)
    remove_notes(job)
    item = DataQuality(QualityCode.RANK_MISSING, text, count)
    return replace(verdict, data_quality=(*verdict.data_quality, item))


def _write_json(path: Path, text: str) -> None:
    """Write the verdict, whole or not at all."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        logger.warning(
            'cannot write the verdict to "%s": %s', path, (error.strerror or str(error)).lower()
        )
    else:
        logger.info("verdict written to %s", path)
