"""The rows of a table as they are recorded: media of ours as cells, and a text for what no cell can hold."""

from __future__ import annotations

from typing import Any, NamedTuple

from tachograph._base.guard import reraise_from_signal_handler
from tachograph.bridges.wandb.facade.data_types import Histogram, Media, Table
from tachograph.bridges.wandb.facade.media_values import bare_media
from tachograph.bridges.wandb.logged_media import is_of_wandb, media_cell

__all__ = ["RowsToRecord", "table_rows"]

_PLAIN = frozenset({str, int, float, bool, type(None)})
_CELL_KINDS = frozenset({"image", "html", "video", "audio", "plotly", "text", "markdown", "file"})


class RowsToRecord(NamedTuple):
    """Rows to record.

    Attributes:
        rows: the rows.
        has_media: whether a cell is media.
        problems: why cells of a column are texts instead of the values of the script.
    """

    rows: list[dict[str, Any]]
    has_media: bool
    problems: dict[str, str]


def table_rows(table: Table, begin: int) -> RowsToRecord:
    """Return the rows of a table from one on."""
    columns = [str(column) for column in table.columns]
    result: list[dict[str, Any]] = []
    problems: dict[str, str] = {}
    has_media = False
    for row in table.data[begin:]:
        cells: dict[str, Any] = {}
        for column, value in zip(columns, row, strict=False):
            cell = value
            if type(value) not in _PLAIN:
                cell, problem = _convert(value)
                has_media |= not problem and bare_media(cell) is not None
                if problem:
                    problems.setdefault(column, problem)
            cells[column] = cell
        result.append(cells)
    return RowsToRecord(result, has_media, problems)


def _convert(value: Any) -> tuple[Any, str]:
    """Return a cell, and why it is only a text."""
    try:
        cell = media_cell(value)
    except Exception as error:  # noqa: BLE001 - whatever is in the object
        reraise_from_signal_handler(error)
        return f"[{type(value).__name__}]", f"{type(value).__name__} cannot be recorded: {error}"
    if isinstance(cell, Media):
        return f"[{type(cell).__name__}]", f"{type(cell).__name__}: {cell.problem}"
    if isinstance(cell, (Table, Histogram)) or (not isinstance(cell, (list, tuple)) and is_of_wandb(cell)):
        return f"[{type(cell).__name__}]", f"a {type(cell).__name__} cannot be a cell; log it under a name of its own"
    if isinstance(cell, (list, tuple)):
        names = [type(item).__name__ for item in cell if _is_rich(item)]
        return (
            (f"[{', '.join(names)}]", "a list of media cannot be a cell; use a column for each")
            if names
            else (cell, "")
        )
    media = bare_media(cell)
    if media is not None and media.kind not in _CELL_KINDS:
        name = type(value).__name__
        return f"[{name}]", f"{name} cannot be a cell; log it under a name of its own"
    return cell, ""


def _is_rich(value: Any) -> bool:
    return isinstance(value, (Media, Table, Histogram)) or is_of_wandb(value) or bare_media(value) is not None
