"""Every public view and table of a store as one Parquet file each, in a folder.

A view with a step has the chosen steps; one with a rank, the chosen ranks; one with a job, the chosen job. Rows that
belong to no step or to no rank are left out where steps or ranks are chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rootwalk.instrumentation.errors import InsufficientDataError

if TYPE_CHECKING:
    from rootwalk.graph.exporters.formats import Choice

__all__ = ["WRITES_FOLDER", "public_names", "write"]

WRITES_FOLDER: Final = True
# Public though they are tables: the diagnosis writes them.
PUBLIC_TABLES: Final = ("nodes", "edges", "evidence")
QUOTE: Final = "'"


def public_names(connection: Any) -> list[str]:
    """Return the names of what is public in a store, by name."""
    rows = connection.execute(
        "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"
        " AND database_name = current_database()"
    ).fetchall()
    return sorted([*PUBLIC_TABLES, *(str(name) for (name,) in rows)])


def write(connection: Any, choice: Choice, path: Path) -> str:
    """Write a file for each view into a new folder, and return how many rows of how many views they have.

    Raises:
        InsufficientDataError: If nothing of what is chosen is there.
        OSError: As the disk says.
    """
    path.mkdir()
    names, total = public_names(connection), 0
    for name in names:
        query, values = _query(connection, name, choice)
        file = str(path / f"{name}.parquet").replace(QUOTE, QUOTE * 2)
        found = connection.execute(
            f"COPY ({query}) TO '{file}' (FORMAT parquet, COMPRESSION zstd)", values
        ).fetchone()
        if name != "rootwalk_schema":
            total += int(found[0])
    if not total:
        raise InsufficientDataError(
            "cannot export: saw no row of this job, these ranks and steps; needs one",
            hint="`rootwalk sql STORE 'FROM jobs'` lists what is there",
        )
    return f"{total:,} rows of {len(names)} views"


def _query(connection: Any, name: str, choice: Choice) -> tuple[str, list[Any]]:
    described = connection.execute(f"DESCRIBE {name}").fetchall()
    columns = {str(row[0]) for row in described}
    where, values = ["true"], list[Any]()
    if choice.job is not None and "job" in columns:
        where.append("job = ?")
        values.append(choice.job)
    if choice.ranks is not None and "rank" in columns:
        where.append("rank IN (SELECT unnest(?))")
        values.append(list(choice.ranks))
    if choice.steps is not None and "step" in columns:
        where.append("step BETWEEN ? AND ?")
        values += choice.steps
    return f"SELECT * FROM {name} WHERE {' AND '.join(where)}", values  # noqa: S608  (our own names)
