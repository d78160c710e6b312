"""Keep a verdict: its graph goes into the store, comes back, and the verdict is drawn from what came back.

How the job ended, and whether `healthy` is earned, is added here for every path that keeps its verdict so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rootwalk.graph import graph_store
from rootwalk.graph.closing import read_closing
from rootwalk.graph.dependencies import DependencyGraph
from rootwalk.graph.finding_store import save_findings
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.model import Evidence, Verdict
from rootwalk.graph.verdict import to_json
from rootwalk.instrumentation.errors import StoreError

__all__ = ["keep_verdict"]

logger = logging.getLogger(__name__)


def keep_verdict(
    store_path: Path,
    key: JobKey,
    graph: DependencyGraph,
    evidence: tuple[Evidence, ...],
    decide: Callable[[DependencyGraph, Sequence[Evidence]], Verdict],
) -> Verdict:
    """Return the verdict, and leave graph, evidence and findings in the store if it can be written.

    Args:
        store_path: The store.
        key: The job.
        graph: What the verdict rests on.
        evidence: The numbers behind its edges.
        decide: Draws the verdict from a graph and its evidence.
    """
    from rootwalk.otel_receiver import store

    try:
        with store.writing(store_path, vacuums=False) as connection:
            closing = read_closing(connection, key)
            evidence = closing.add_to(graph, evidence)
            graph_store.save_graph(connection, key, graph, evidence)
            stored = graph_store.load_graph(connection, key)
            verdict = closing.conclude(decide(*stored), *stored)
            save_findings(connection, key, verdict.findings, to_json(verdict), time.time_ns())
    except StoreError as error:
        logger.warning("the dependency graph is not stored: %s", error)
        with store.reading(store_path) as connection:
            closing = read_closing(connection, key)
        evidence = closing.add_to(graph, evidence)
        verdict = closing.conclude(decide(graph, evidence), graph, evidence)
    return verdict
