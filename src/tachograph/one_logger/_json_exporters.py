"""Exporters that write records in One Logger's format, to a file or to a logger."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
from abc import abstractmethod
from pathlib import Path
from typing import Any, BinaryIO

from tachograph._base.files import open_user_file, write_all
from tachograph._base.guard import faults
from tachograph.one_logger._error_events import ErrorEvent, TelemetryDataError
from tachograph.one_logger._exporter import BaseExporter, ExportError
from tachograph.spans import Event, Span

__all__ = ["BaseJsonExporter", "FileExporter", "LoggerExporter"]


class BaseJsonExporter(BaseExporter):
    """Builds records; a subclass writes them.

    A span that has already stopped when its start is exported becomes one record of the type ``complete``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._count = itertools.count(1)
        self._stopped_early: set[Any] = set()

    @abstractmethod
    def _write(self, json_dict: dict[str, Any]) -> None:
        """Write one record."""

    def export_start(self, span: Span) -> None:
        """Write the start of a span, unless it has already stopped: then `export_stop` writes one record."""
        self._check_state()
        if span.stop_event is not None:
            self._stopped_early.add(span.id)
            return
        self._write_record({"type": "start", **_head(span), "start_event": _event(span.start_event)})

    def export_stop(self, span: Span) -> None:
        """Write the stop of a span."""
        self._check_state()
        stop = span.stop_event
        if stop is None:
            raise ExportError(f"span {span.name_str!r} has not stopped")
        if span.id in self._stopped_early:
            edges = {"start_event": _event(span.start_event), "stop_event": _event(stop)}
            self._write_record({"type": "complete", **_head(span), **edges})
            self._stopped_early.discard(span.id)
        else:
            self._write_record({"type": "stop", **_head(span), "stop_event": _event(stop)})

    def export_event(self, event: Event, span: Span) -> None:
        """Write an event."""
        self._check_state()
        self._write_record({"type": "event", "span_id": str(span.id), "event": _event(event)})

    def export_error(self, event: ErrorEvent, span: Span) -> None:
        """Write an error of the training code."""
        self._check_state()
        self._write_record({"type": "application_error", "span_id": str(span.id), "event": _event(event)})

    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Write a fault of telemetry itself."""
        self._check_state()
        self._write_record({"type": "telemetry_data_error", "error": _event(error)})

    def _write_record(self, record: dict[str, Any]) -> None:
        self._write({**record, "count": next(self._count), "pid": os.getpid()})


def _head(span: Span) -> dict[str, Any]:
    head: dict[str, Any] = {"id": str(span.id), "name": span.name_str}
    if span.parent_span is not None:
        head["parent_id"] = str(span.parent_span.id)
    attributes = span.attributes.to_json()
    return {**head, "attributes": attributes} if attributes else head


def _event(event: Event) -> dict[str, Any]:
    return {"name": event.name_str, "attributes": event.attributes.to_json()}


class FileExporter(BaseJsonExporter):
    """Appends records to a file, one JSON object per line. A restarted job appends to the same file.

    Args:
        file_path: the file; its folder is created if necessary.
    """

    def __init__(self, file_path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = Path(file_path)
        self._file: BinaryIO | None = None

    def initialize(self) -> None:
        """Open the file.

        Raises:
            ExportError: if it cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_user_file(self.path)
        except faults(OSError) as error:
            reason = "no process reads from this named pipe" if error.errno == errno.ENXIO else error.strerror
            raise ExportError(f"file_path={str(self.path)!r} cannot be written: {reason}") from error
        super().initialize()

    def _write(self, json_dict: dict[str, Any]) -> None:
        if self._file is None:
            raise ExportError(f"{self.path} is not open")
        # One unbuffered write: a killed process leaves whole lines, and ranks that share a file do not interleave.
        write_all(self._file.fileno(), json.dumps(json_dict, separators=(",", ":"), default=str).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()


class LoggerExporter(BaseJsonExporter):
    """Writes each record as one line of a logger: ``[type="start" | name="application" | …]``.

    Args:
        logger: the logger; lines have the level INFO.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def _write(self, json_dict: dict[str, Any]) -> None:
        self._logger.info(self._format_log(json_dict))

    @staticmethod
    def _format_log(json_dict: dict[str, Any]) -> str:
        flat = dict(sorted(_flatten(json_dict), reverse=True))
        return "[" + " | ".join(f"{key}={value}" for key, value in flat.items()) + "]"

    @staticmethod
    def deserialize_log(text: str) -> dict[str, Any]:
        """Return the record that a line contains.

        Raises:
            ExportError: if it is not a line of this exporter.
        """
        decoder = json.JSONDecoder()
        record: dict[str, Any] = {}
        start = text.find("[") + 1
        try:
            while text[start : start + 1] != "]":
                equals = text.index("=", start)
                value, end = decoder.raw_decode(text, equals + 1)  # JSON values are self-delimiting
                _unflatten(record, text[start:equals], value)
                start = end + 3 if text.startswith(" | ", end) else end
        except (ValueError, IndexError) as error:
            raise ExportError(
                f"Log string must be enclosed in square brackets: {text[:80]!r}, and consist of name=value parts"
            ) from error
        return record


def _flatten(value: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, item in value.items():
        name = prefix + key.replace("\\", "\\\\").replace(".", "\\.").replace("=", "\\e")
        pairs += _flatten(item, f"{name}.") if isinstance(item, dict) else [(name, json.dumps(item, default=str))]
    return pairs


def _unflatten(record: dict[str, Any], key: str, value: Any) -> None:
    parts = [""]
    characters = iter(key)
    for character in characters:
        if character == "\\":
            follower = next(characters)
            parts[-1] += "=" if follower == "e" else follower
        elif character == ".":
            parts.append("")
        else:
            parts[-1] += character
    for part in parts[:-1]:
        record = record.setdefault(part, {})
    record[parts[-1]] = value
