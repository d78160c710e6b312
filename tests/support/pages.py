"""What a page says, and what is in it: HTML read with the standard library."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from rootwalk.graph.diagnosis import diagnose
from rootwalk.graph.report.page import render_page
from rootwalk.graph.report.reading import ReportData, read_report
from rootwalk.otel_receiver.store import reading
from support.jobs import Job, write_job

# Attributes by which a page fetches something, or goes somewhere.
REFERENCES = ("src", "href", "action", "data", "poster", "srcset", "xlink:href", "background")
EMPTY_ELEMENTS = frozenset({"meta", "br", "link", "img", "input", "hr"})


class Page(HTMLParser):
    """The elements of a page in order, their attributes, and its text without style and scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.parts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open[-1:]):
            self.parts.append(data)

    @property
    def text(self) -> str:
        """All text on one line."""
        return flat(" ".join(self.parts))

    @property
    def references(self) -> list[str]:
        """What the page refers to outside itself."""
        found = [
            f"{tag} {name}={value}"
            for tag, attributes in self.elements
            for name, value in attributes.items()
            if name in REFERENCES or name.startswith("on")
        ]
        return [item for item in found if "=#" not in item]

    def count(self, tag: str) -> int:
        """Return how many elements of a kind there are."""
        return sum(name == tag for name, _ in self.elements)


def flat(text: str) -> str:
    """Return text with all white space as single spaces."""
    return re.sub(r"\s+", " ", text).strip()


def read_page(store: Path, **options: Any) -> tuple[ReportData, str]:
    """Return what a page about a store shows, and the page."""
    verdict = diagnose(store, **options)
    with reading(store) as connection:
        report = read_report(connection, verdict, store.name)
    return report, render_page(report)


def page_of(folder: Path, job: Job) -> tuple[ReportData, str]:
    """Write a job and return what its page shows, and the page."""
    return read_page(write_job(folder / "store.duckdb", job))
