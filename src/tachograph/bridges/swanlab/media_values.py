"""Media, tables and histograms as objects of SwanLab."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Collection, Mapping
from typing import Any

import swanlab

from tachograph.bridges.exported_media import ExportedItem, exported_items, open_picture, plain_cell
from tachograph.journal import RunFolder

__all__ = ["histogram_chart", "media_values", "table_of"]

_MAX_ITEMS = 100
"""SwanLab accepts 108 items per name and step."""
_DEFAULT_FRAME_MS = 63


def media_values(record: dict[str, Any], folder: RunFolder | None) -> Any:
    """Return the items of a `media` record as `swanlab.log` takes them; None if SwanLab has nothing for them."""
    values = []
    for item in itertools.islice(exported_items(record, folder), _MAX_ITEMS):
        with contextlib.suppress(Exception):  # a damaged file, or a format that this version does not take
            value = _as_swanlab(item)
            if value is not None:
                values.append(value)
    return values[0] if len(values) == 1 else values or None


def _as_swanlab(item: ExportedItem) -> Any:
    caption = item.caption or None
    if item.kind in {"text", "markdown"}:
        return swanlab.Text(item.data.decode("utf-8", "replace") or str(item.fields.get("text", "")), caption=caption)
    if item.kind == "table":
        table = item.table()
        return None if table is None else table_of(*table)
    if item.kind not in {"image", "video"}:
        return None
    with open_picture(item.data) as image:
        if getattr(image, "is_animated", False):
            return swanlab.Video(_as_gif(image), caption=caption)
        return swanlab.Image(image.convert("RGBA" if image.has_transparency_data else "RGB"), caption=caption)


def _as_gif(animation: Any) -> bytes:
    buffer = io.BytesIO()
    duration_ms = animation.info.get("duration") or _DEFAULT_FRAME_MS
    animation.save(buffer, "gif", save_all=True, duration=duration_ms, loop=0)
    return buffer.getvalue()


def table_of(columns: list[Any], rows: Collection[Mapping[str, Any]]) -> Any:
    """Return a table; None without columns."""
    names = [str(column) for column in columns]
    return swanlab.echarts.Table().add(names, [[plain_cell(row.get(name)) for name in names] for row in rows]) or None


def histogram_chart(counts: Any, edges: Any) -> Any:
    """Return a bar chart of a histogram; None if it is not valid."""
    if not (isinstance(counts, list) and isinstance(edges, list) and counts and len(edges) == len(counts) + 1):
        return None
    if not all(type(number) in (int, float) for number in (*counts, *edges)):
        return None
    chart = swanlab.echarts.Bar()
    chart.add_xaxis([f"{low:.4g} … {high:.4g}" for low, high in itertools.pairwise(edges)])
    chart.add_yaxis("count", counts)
    return chart
