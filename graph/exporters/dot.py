r"""The verdict's dependency graph in Graphviz's DOT: the chain from symptom to cause stands out.

Bounded: of a graph with more nodes than people can look at, the chains and what is joined to them by the most seconds.
Names of other people are quoted: a quote, a backslash or a line end in one stays in its label.

Source: Graphviz, "The DOT Language": in a quoted string `\"` is a quote, and in labels `\\` is a backslash and `\n` a
line end.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rootwalk.graph import graph_store
from rootwalk.graph.dependencies import DependencyGraph, Edge
from rootwalk.graph.job_choice import JobKey
from rootwalk.graph.model import Verdict
from rootwalk.graph.passages import JOINT, visible
from rootwalk.graph.render.digits import seconds
from rootwalk.graph.render.text import passages
from rootwalk.instrumentation.errors import InsufficientDataError

if TYPE_CHECKING:
    from rootwalk.graph.exporters.formats import Choice

__all__ = ["MAX_NODES", "NEEDS_DIAGNOSIS", "quoted", "render_dot", "write"]

NEEDS_DIAGNOSIS: Final = True
# More boxes than this nobody can read.
MAX_NODES: Final = 200
MAX_LABEL: Final = 80
_CHAIN: Final = 'color="#b00020", penwidth=2'


def write(connection: Any, choice: Choice, path: Path) -> str:
    """Write the graph into a file, and return what is in it.

    Raises:
        InsufficientDataError: If there is no graph, for nothing was found.
        OSError: As the disk says.
    """
    assert choice.diagnosis is not None  # noqa: S101  (NEEDS_DIAGNOSIS)
    verdict = choice.diagnosis.verdict
    graph = DependencyGraph()
    if verdict.job.attempt is not None:
        key = JobKey(verdict.job.id, verdict.job.attempt, verdict.job.world_size)
        graph, _ = graph_store.load_graph(connection, key)
    if not any(True for _ in graph.nodes()):
        raise InsufficientDataError(
            "cannot export: saw no dependency graph, for nothing was found; needs a finding",
            hint="`rootwalk diagnose STORE` says what is known; --steps A:B looks at other steps",
        )
    text, nodes, left_out = render_dot(verdict, graph)
    path.write_text(text, encoding="utf-8")
    more = f", left out {left_out:,} more" if left_out else ""
    return f"{nodes:,} nodes{more}"


def render_dot(verdict: Verdict, graph: DependencyGraph) -> tuple[str, int, int]:
    """Return the graph as DOT, how many nodes it has, and how many are left out."""
    edges = list(graph.edges())
    chain = _chain_edges(verdict, edges)
    kept = _kept(verdict, graph, edges, chain)
    culprits = {finding.subject.node for finding in verdict.findings}
    on_chain = {node for edge in chain for node in edge[:2]} | culprits
    title = visible(passages(verdict)[0].headline).replace(JOINT, " ")
    lines = [
        "digraph rootwalk {",
        f'  graph [label={quoted(title)}, labelloc="t", rankdir="TB", fontname="sans-serif"];',
        '  node [shape="box", fontname="sans-serif"];',
        '  edge [fontname="sans-serif"];',
    ]
    count = left_out = 0
    for node, payload in graph.nodes():
        if node not in kept:
            left_out += 1
            continue
        count += 1
        kind = str(payload.kind).replace("_", " ")
        label = f"{kind}\n{_short(payload.label)}"
        pid = payload.attributes.get("pid")
        label += "" if pid is None else f", pid {pid}"
        style = f", {_CHAIN}" if node in on_chain else ""
        style += ', style="filled", fillcolor="#fde7ea"' if node in culprits else ""
        lines.append(f"  {quoted(node)} [label={quoted(label)}{style}];")
    for edge in edges:
        if edge.source not in kept or edge.target not in kept:
            continue
        label = str(edge.payload.kind).replace("_", " ")
        if edge.payload.seconds is not None:
            label += f"\n{seconds(edge.payload.seconds)} a step".replace(JOINT, " ")
        style = f", {_CHAIN}" if (edge.source, edge.target, edge.payload.kind) in chain else ""
        lines.append(
            f"  {quoted(edge.source)} -> {quoted(edge.target)} [label={quoted(label)}{style}];"
        )
    return "\n".join([*lines, "}", ""]), count, left_out


def quoted(text: str) -> str:
    r"""Return text as a quoted string of DOT, in which nothing acts.

    >>> print(quoted('a "b"\n\\N'))
    "a \"b\"\n\\N"
    """
    shown = visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{shown}"'.encode(errors="replace").decode()


def _short(label: str) -> str:
    line = " ".join(label.splitlines())
    return line if len(line) <= MAX_LABEL else line[: MAX_LABEL - 1] + "…"


def _chain_edges(verdict: Verdict, edges: list[Edge]) -> set[tuple[str, str, str]]:
    """Return source, target and kind of the edges that the findings' chains are made of."""
    found: set[tuple[str, str, str]] = set()
    for finding in verdict.findings:
        nodes = {link.node for link in finding.chain} | {finding.subject.node}
        for link in finding.chain:
            mine = [e for e in edges if e.source == link.node and e.payload.kind == link.edge]
            # Of several edges the one with the link's seconds, to a node of the chain, is meant.
            mine.sort(key=lambda e: (e.payload.seconds != link.seconds, e.target not in nodes))
            found |= {(e.source, e.target, e.payload.kind) for e in mine[:1]}
    return found


def _kept(
    verdict: Verdict,
    graph: DependencyGraph,
    edges: list[Edge],
    chain: set[tuple[str, str, str]],
) -> set[str]:
    """Return the nodes that are drawn: the chains', then those that the most seconds join to drawn ones."""
    known = {node for node, _ in graph.nodes()}
    kept = {node for edge in chain for node in edge[:2]}
    kept |= {finding.subject.node for finding in verdict.findings} & known
    if len(known) <= MAX_NODES:
        return known
    heavy = sorted(edges, key=lambda e: (-(e.payload.seconds or 0.0), e.source, e.target))
    grows = True
    while grows and len(kept) < MAX_NODES:
        grows = False
        for edge in heavy:
            ends = {edge.source, edge.target}
            is_beside = bool(ends & kept) and not ends <= kept
            if len(kept) < MAX_NODES and (is_beside or not kept):
                kept |= ends
                grows = True
    return kept
