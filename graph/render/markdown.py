"""Say a verdict for a chat or a ticket: the words and numbers of the text, in Markdown. Computes nothing."""

from __future__ import annotations

import re
from typing import Final

from rootwalk.graph.model import Verdict
from rootwalk.graph.passages import JOINT, flowing, visible
from rootwalk.graph.render.remarks import remarks
from rootwalk.graph.render.text import opening, passages

__all__ = ["render_markdown"]

# Characters that Markdown gives a meaning inside a line; an underscore inside a word has none.
_MARKUP: Final = re.compile(r"[\\`*\[\]<>|~#&]|(?<![^\W_])_|_(?![^\W_])")


def render_markdown(verdict: Verdict) -> str:
    """Return the verdict as Markdown: a bold first line, then a list; names cannot add markup of their own."""
    blocks = [f"**{_escaped(text)}**" for text in opening(verdict)]
    for passage in passages(verdict):
        block = [f"**{_escaped(passage.headline)}**"]
        if passage.rows:
            block += ["", *_items(passage.rows)]
        blocks.append("\n".join(block))
    rows = list(remarks(verdict))
    if verdict.window.first_step is not None:
        rows.append(("steps", f"{verdict.window.first_step} to {verdict.window.last_step}"))
    items = _items(tuple(rows))
    items += [f"- **trace** `{trace}`" for trace in verdict.window.exemplar_trace_ids[:1]]
    if items:
        blocks.append("\n".join([f"*Job {_escaped(verdict.job.id)}*", "", *items]))
    return "\n\n".join(blocks).replace(JOINT, " ") + "\n"


def _items(rows: tuple[tuple[str, str], ...]) -> list[str]:
    return [f"- **{label}** {_escaped(text)}" for label, text in rows]


def _escaped(text: str) -> str:
    """Return text on one line that Markdown shows as it is."""
    return _MARKUP.sub(lambda found: "\\" + found[0], " ".join(visible(flowing(text)).split()))
