"""TensorBoard: scalars, text, histograms and hyperparameters, in the run's `tensorboard/` folder or below `log_dir`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram import metadata as histogram_metadata
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2, summary_v2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util import tensor_util

from tachograph._base.files import make_folder
from tachograph.bridges.exported_media import as_png, exported_histograms, exported_items
from tachograph.bridges.tensorboard.options import check_options
from tachograph.journal import RunFolder
from tachograph.records import CONFIG_CHANGED, SUMMARY, flatten
from tachograph.sinks import scalar_metrics

__all__ = ["TensorBoardSink"]

_SIZE = ("width", "height")
_STATUS = {"finished": api_pb2.STATUS_SUCCESS, "failed": api_pb2.STATUS_FAILURE}


class TensorBoardSink:
    """Writes event files that `tensorboard --logdir logs` shows.

    Args:
        log_dir: folder that gets one folder per run; the run folder's `tensorboard/` if not given.
        media: whether to write pictures, sounds, texts and histograms that were logged as media, too.
    """

    name = "tensorboard"

    def __init__(self, log_dir: str | os.PathLike[str] | None = None, media: bool = False) -> None:
        check_options(log_dir, media)
        self._media = media
        self._folder: RunFolder | None = None
        # Resolved now, because training code may change the working directory.
        self._log_dir = None if log_dir is None else os.path.abspath(log_dir)
        self._writer: Any = None
        self._step = 0
        self._config: dict[str, Any] = {}
        self._run_id = ""

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Create a new event file; TensorBoard merges the files of one folder."""
        with contextlib.suppress(Exception):  # a writer that failed may also fail to close
            self.close()
        self._folder = folder
        self._run_id = str(start.get("run_id", folder.name))
        self._config = start["config"] if isinstance(start.get("config"), dict) else {}
        path = folder.path / "tensorboard"
        if self._log_dir is None:
            make_folder(path, below=folder.path)  # the writer would follow a link
        else:
            path = Path(self._log_dir, folder.name)
        self._writer = EventFileWriter(str(path))

    def write(self, records: list[dict[str, Any]]) -> None:
        """Write the records; one without a step is shown at the latest one."""
        for record in records:
            step = record.get("global_step")
            if isinstance(step, int):
                self._step = step
            for summary in self._summaries(record):
                event = Event(wall_time=record.get("time"), step=self._step, summary=summary)
                self._writer.add_event(event)
        self._writer.flush()

    def _summaries(self, record: dict[str, Any]) -> Iterator[Summary]:
        """Yield the summaries that TensorBoard shows for a record."""
        if metrics := scalar_metrics(record):
            yield _scalars_pb(metrics)
        if record["event"] == "start":
            config = record.get("config")
            self._config = config if isinstance(config, dict) else self._config
            yield from self._hparams(record)
        elif record["event"] == "end":
            info = plugin_data_pb2.SessionEndInfo(
                status=_STATUS.get(str(record.get("status")), api_pb2.STATUS_UNKNOWN), end_time_secs=record["time"]
            )
            yield _hparams_pb(hparams_metadata.SESSION_END_INFO_TAG, session_end_info=info)
        elif record["event"] == "event":
            yield from self._summaries_of_event(record)
        elif record["event"] == "media" and self._media:
            yield from self._summaries_of_media(record)
        elif record["event"] == "histograms" and self._media:
            for name, counts, edges in exported_histograms(record):
                yield from _histogram_pb(name, counts, edges)

    def _summaries_of_event(self, record: dict[str, Any]) -> Iterator[Summary]:
        name, tag = record.get("name"), str(record.get("tag"))
        if name == "text" and isinstance(record.get("text"), str):
            yield text_pb(tag, record["text"])
        elif name == "histogram":
            yield from _histogram_pb(tag, record.get("counts"), record.get("edges"))
        elif name == SUMMARY and isinstance(record.get("summary"), dict):
            results = {f"summary/{name}": value for name, value in _scalars(record["summary"]).items()}
            yield _scalars_pb({name: value for name, value in results.items() if type(value) in (int, float)})
        elif name == CONFIG_CHANGED and isinstance(record.get("config"), dict):
            self._config = {**self._config, **record["config"]}
            yield from self._hparams(record)

    def _summaries_of_media(self, record: dict[str, Any]) -> Iterator[Summary]:
        """Yield a summary for each item; the ones of a list have tags with their index."""
        items = list(exported_items(record, self._folder))
        for item in items:
            tag = f"{record.get('name')}/{item.position}" if len(items) > 1 else str(record.get("name"))
            if item.kind == "image" and (data := as_png(item.data)) is not None:
                width, height = (number if type(number) is int else 0 for number in map(item.fields.get, _SIZE))
                image = Summary.Image(width=width, height=height, encoded_image_string=data)
                yield Summary(value=[Summary.Value(tag=tag, image=image)])
            elif item.kind == "audio" and item.fields.get("ext") == "wav":
                rate = item.fields.get("rate")
                audio = Summary.Audio(
                    sample_rate=rate if isinstance(rate, (int, float)) else 0,
                    encoded_audio_string=item.data,
                    content_type="audio/wav",
                )
                yield Summary(value=[Summary.Value(tag=tag, audio=audio)])
            elif item.kind in {"text", "markdown"}:
                yield text_pb(tag, str(item.fields.get("text") or item.data.decode("utf-8", "replace")))

    def _hparams(self, record: dict[str, Any]) -> Iterator[Summary]:
        values = _scalars(self._config)
        if values:
            yield summary_v2.hparams_pb(values, trial_id=self._run_id, start_time_secs=record["time"])

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()


def _scalars(values: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers, texts and switches in nested dicts."""
    return {name: value for name, value in flatten(values).items() if isinstance(value, (bool, int, float, str))}


def _scalars_pb(values: dict[str, Any]) -> Summary:
    """Return numbers as one summary, without a tensor for each, as torch's writer does it: a tenth of the work."""
    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])


def _histogram_pb(tag: str, counts: Any, edges: Any) -> Iterator[Summary]:
    """Yield a histogram, as rows of left edge, right edge and count, if there are any counts."""
    if not (isinstance(counts, list) and isinstance(edges, list) and len(edges) == len(counts) + 1 and counts):
        return
    rows = np.stack([edges[:-1], edges[1:], counts], axis=1).astype(np.float64)
    summary = Summary()
    summary.value.add(
        tag=tag,
        metadata=histogram_metadata.create_summary_metadata(display_name=None, description=None),
        tensor=tensor_util.make_tensor_proto(rows),
    )
    yield summary


def _hparams_pb(tag: str, **content: Any) -> Summary:
    summary = Summary()
    data = plugin_data_pb2.HParamsPluginData(**content)
    summary.value.add(
        tag=tag,
        metadata=hparams_metadata.create_summary_metadata(data),
        tensor=hparams_metadata.NULL_TENSOR,
    )
    return summary
