"""`rootwalk sql`: one query over the public views, also while a receiver writes, at a low priority then."""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rootwalk.graph.commands.urgency import yield_to_receiver

__all__ = ["EXAMPLES", "HELP", "add_arguments", "render_table", "run"]

HELP: Final = "ask the store a question in SQL"
EXAMPLES: Final = """examples:
  rootwalk sql job.duckdb "SELECT * FROM jobs"
  rootwalk sql job.duckdb "SELECT rank, avg(duration_ns) / 1e9 AS step_s FROM steps GROUP BY rank ORDER BY rank"
  rootwalk sql job.duckdb "SELECT * FROM stalls ORDER BY duration_ns DESC LIMIT 10" --json"""

_MIN_COLUMN_CHARS: Final = 8
_GAP: Final = "  "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "store", type=Path, metavar="STORE", help="DuckDB file that rootwalk has written"
    )
    parser.add_argument(
        "query",
        metavar="QUERY",
        help="SQL over the public views; it changes nothing and reaches no other file",
    )
    parser.add_argument(
        "--allow-files",
        action="store_true",
        help="let the query, and the store's own views, read and write files and load extensions of DuckDB;"
        " only for stores that you trust",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON list with an object a row")
    form.add_argument(
        "--csv", action="store_true", help="print comma-separated values with a header"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the answer; returns 0."""
    yield_to_receiver(arguments.store)

    from rootwalk.otel_receiver.store import query_store

    columns, types, rows = query_store(
        arguments.store, arguments.query, allow_files=arguments.allow_files
    )
    if arguments.json:
        print(render_json(columns, types, rows))
    elif arguments.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        # Names in a store may hold escape sequences; a file gets them as they are, a terminal does not.
        shown = _one_line if sys.stdout.isatty() else _plain
        writer.writerows([["" if v is None else shown(v) for v in row] for row in rows])
    else:
        is_terminal = sys.stdout.isatty()
        print(
            render_table(columns, rows, shutil.get_terminal_size().columns if is_terminal else None)
        )
    return 0


def render_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], width_chars: int | None
) -> str:
    """Return rows as aligned text: numbers to the right, unknown values empty.

    Args:
        columns: Names for the header.
        rows: Values as DuckDB returns them.
        width_chars: Width to fit by shortening the widest columns, else with a line for each value; None for
            no limit.
    """
    cells = [["" if v is None else _one_line(v) for v in row] for row in rows]
    is_number = [
        any(row[n] is not None for row in rows)
        and all(
            row[n] is None or (isinstance(row[n], int | float) and not isinstance(row[n], bool))
            for row in rows
        )
        for n in range(len(columns))
    ]
    widths = [max([len(name), *(len(row[n]) for row in cells)]) for n, name in enumerate(columns)]
    if width_chars is not None:
        widths = _fit(widths, width_chars)
        if sum(widths) + len(_GAP) * (len(widths) - 1) > width_chars:
            return _render_records(columns, cells, width_chars)
    lines = [
        _GAP.join(
            _shorten(cell, width).rjust(width) if number else _shorten(cell, width).ljust(width)
            for cell, width, number in zip(line, widths, is_number, strict=True)
        ).rstrip()
        for line in [list(columns), ["-" * width for width in widths], *cells]
    ]
    return "\n".join(lines)


def _render_records(
    columns: Sequence[str], cells: Sequence[Sequence[str]], width_chars: int
) -> str:
    name_chars = max(len(name) for name in columns)
    records = [
        "\n".join(
            _shorten(f"{name.ljust(name_chars)}{_GAP}{cell}".rstrip(), width_chars)
            for name, cell in zip(columns, line, strict=True)
        )
        for line in cells
    ]
    return "\n\n".join(records) if records else "no rows"


def render_json(columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as a JSON list of objects; a repeated column name gets a number."""
    names: list[str] = []
    for name in columns:
        taken = (f"{name}_{number}" for number in range(1, len(columns) + 1))
        names.append(name if name not in names else next(n for n in taken if n not in names))
    items = [
        {name: _json_cell(value, kind) for name, value, kind in zip(names, row, types, strict=True)}
        for row in rows
    ]
    return json.dumps(items, allow_nan=False)


def _json_cell(value: Any, kind: str) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if kind == "JSON" and isinstance(value, str):
        return json.loads(value)
    if isinstance(value, list | tuple):
        return [_json_cell(item, "") for item in value]
    if isinstance(value, dict):
        return {str(key): _json_cell(item, "") for key, item in value.items()}
    return _plain(value)


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _one_line(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else _plain(value)
    return "".join(c if c.isprintable() else " " for c in text)


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _fit(widths: Sequence[int], width_chars: int) -> list[int]:
    """Return widths that fit, taking from the widest column first."""
    fitted = list(widths)
    room = width_chars - len(_GAP) * (len(widths) - 1)
    while sum(fitted) > room and max(fitted) > _MIN_COLUMN_CHARS:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted
