"""Weights & Biases: metrics, config, summary, samples, alerts and state of a run.

Steps are sent as the metric `global_step`, which the charts use as their x-axis: W&B's own step may only increase, but
the steps of a resumed run may start again from an earlier checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections import deque
from typing import Any

import wandb

from tachograph._base.files import make_folder
from tachograph.bridges.exported_media import (
    ExportedItem,
    cell_picture,
    exported_histograms,
    exported_items,
    open_picture,
    plain_cell,
)
from tachograph.bridges.wandb.options import check_options
from tachograph.journal import RunFolder
from tachograph.records import CONFIG_CHANGED, SUMMARY
from tachograph.sinks import scalar_metrics

__all__ = ["WandbSink", "client_settings"]

_ALERT_LEVELS = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}
_MAX_TABLE_ROWS = 1_000


def client_settings(pid: int, **more: Any) -> wandb.Settings:
    """Return settings for a client that prints nothing.

    Args:
        pid: the training process, which W&B measures.
        more: further settings; the ones that this version of W&B does not have are left out.
    """
    program = sys.argv[0] if sys.argv else ""
    settings: dict[str, Any] = {"silent": True, "console": "off", "program": program, "x_stats_pid": pid, **more}
    fields = wandb.Settings.model_fields
    return wandb.Settings(**{name: value for name, value in settings.items() if name in fields})


class WandbSink:
    """Sends a run to W&B. W&B's own environment variables are the defaults.

    Args:
        project: the W&B project; `WANDB_PROJECT` or "tachograph" if not given.
        entity: the user or team that owns the project.
        mode: `online`, `offline` (keeps everything on this machine), `shared` or `disabled`.
        group: groups runs in the W&B interface.
        media: whether to send pictures, sounds, videos, tables, pages and histograms that were logged as media, too.
    """

    name = "wandb"

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        mode: str | None = None,
        group: str | None = None,
        media: bool = False,
    ) -> None:
        check_options(project, entity, mode, group, media)
        self._media = media
        self._folder: RunFolder | None = None
        self._project = project
        self._entity = entity
        self._mode: Any = mode
        self._group = group
        self._run: Any = None
        self._rows: dict[str, deque[dict[str, Any]]] = {}
        self._status = "crashed"  # unless an `end` record follows
        # The training code may use W&B itself. Its service ends with the training process, before this one.
        os.environ.pop("WANDB_SERVICE", None)

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Start or resume the W&B run with the same id."""
        with contextlib.suppress(Exception):  # a run that failed may also fail to finish
            self.close()
        self._folder = folder
        make_folder(folder.path / "wandb", below=folder.path)  # wandb would follow a link
        self._run = wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT", "tachograph"),
            entity=self._entity,
            mode=self._mode,
            group=self._group,
            id=start.get("run_id"),
            name=folder.name,
            config=start.get("config") or {},
            tags=start.get("tags") or [],
            notes=str(start["notes"]) if start.get("notes") else None,
            dir=str(folder.path),
            resume="allow",
            reinit="create_new",
            settings=client_settings(os.getppid()),
        )
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")

    def write(self, records: list[dict[str, Any]]) -> None:
        """Log the numbers, tables and histograms of each record; pass on config, results and alerts."""
        for record in records:
            if record["event"] in {"start", "end"}:
                self._status = str(record.get("status", "crashed"))
            values: dict[str, Any] = scalar_metrics(record)
            if record["event"] == "completions":
                values = self._table(record)
            elif record["event"] == "media" and self._media:
                values = self._values_of_media(record)
            elif record["event"] == "histograms" and self._media:
                values = {
                    name: wandb.Histogram(np_histogram=(counts, edges))
                    for name, counts, edges in exported_histograms(record)
                }
            elif record["event"] == "event":
                values = self._values_of_event(record)
            elif record["event"] == "alert" and record.get("status") == "opened":
                level = _ALERT_LEVELS.get(str(record.get("severity")), "WARN")
                self._run.alert(title=str(record.get("title")), text=str(record.get("message") or ""), level=level)
            if values:
                if isinstance(record.get("global_step"), int):
                    values["global_step"] = record["global_step"]
                self._run.log(values)

    def _values_of_event(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the values to log for an event; pass on changes of the config and results of the run."""
        name = record.get("name")
        if name == CONFIG_CHANGED and isinstance(record.get("config"), dict):
            self._run.config.update(record["config"], allow_val_change=True)
        elif name == SUMMARY and isinstance(record.get("summary"), dict):
            self._run.summary.update(record["summary"])
        elif name == "histogram" and record.get("counts"):
            with contextlib.suppress(ValueError, TypeError):  # not from us
                return {str(record.get("tag")): wandb.Histogram(np_histogram=(record["counts"], record["edges"]))}
        return {}

    def _values_of_media(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the items of a `media` record as objects of W&B; it has a name for one, and a list for several."""
        values = []
        for item in exported_items(record, self._folder):
            with contextlib.suppress(ValueError, TypeError, OSError, wandb.Error):  # a format that W&B does not take
                value = _as_wandb(item, self._folder)
                if value is not None:
                    values.append(value)
        name = str(record.get("name"))
        return {name: values[0] if len(values) == 1 else values} if values else {}

    def _table(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return samples as a table. W&B shows the last one, so it has the latest samples of earlier records, too."""
        name = str(record.get("table", "completions"))
        rows = self._rows.setdefault(name, deque(maxlen=_MAX_TABLE_ROWS))
        rows.extend(row for row in record.get("rows") or () if isinstance(row, dict))
        columns: list[Any] = list(dict.fromkeys(column for row in rows for column in row))
        table = wandb.Table(columns=columns, allow_mixed_types=True)
        for row in rows:
            table.add_data(*(plain_cell(row.get(column)) for column in columns))
        return {name: table} if columns else {}

    def close(self) -> None:
        """Finish the W&B run with the state that the run ended in."""
        if self._run is not None:
            run, self._run = self._run, None
            run.finish(exit_code=0 if self._status == "finished" else 1)


def _as_wandb(item: ExportedItem, folder: RunFolder | None) -> Any:
    """Return an item as an object of W&B; None for a kind that it does not have."""
    caption = item.caption or None
    if item.kind in {"image", "video"} and item.fields.get("ext") in {"png", "jpg", "webp"}:
        return wandb.Image(item.path, caption=caption)
    if item.kind in {"image", "video"}:
        return wandb.Video(item.path, caption=caption)
    if item.kind == "audio":
        return wandb.Audio(item.path, caption=caption)
    if item.kind == "points":
        return wandb.Object3D(_point_rows(item), caption=caption)
    if item.kind == "html":
        return wandb.Html(item.data.decode("utf-8", "replace"), inject=False)
    stored_table = item.table() if item.kind == "table" else None
    if stored_table is None:
        return None
    columns, rows = stored_table
    data = [[_as_cell(row.get(column), folder) for column in columns] for row in rows]
    try:
        return wandb.Table(columns=columns, data=data)
    except TypeError:  # values of several types in a column
        return wandb.Table(columns=columns, data=data, allow_mixed_types=True)


def _point_rows(item: ExportedItem) -> Any:
    """Return points as W&B takes them: with their colour or their category, and without any other value."""
    import numpy as np

    rows = np.load(io.BytesIO(item.data), allow_pickle=False)
    if rows.shape[1] in {6, 7}:
        return np.delete(rows, 3, axis=1) if rows.shape[1] == 7 else rows
    return rows if item.fields.get("labels") else rows[:, :3]


def _as_cell(value: Any, folder: RunFolder | None) -> Any:
    picture = cell_picture(value, folder)
    if picture is not None:
        with contextlib.suppress(Exception), open_picture(picture) as image:  # Pillow raises almost anything
            return wandb.Image(image)
    return plain_cell(value)
