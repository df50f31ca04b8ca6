"""A sink for the textfile collector of the Prometheus node exporter: the latest value of each metric."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tachograph.exceptions import ConfigError
from tachograph.journal import RunFolder
from tachograph.sinks import scalar_metrics


class TextfileSink:
    """Writes the latest metrics to one file.

    Args:
        path: the file, which the node exporter expects to end in `.prom`.
    """

    name = "textfile"

    def __init__(self, path: str) -> None:
        if not isinstance(path, str) or not path.endswith(".prom"):
            raise ConfigError(f"path must end in .prom, got {path!r}")
        self._path = Path(path).resolve()
        self._run = ""
        self._latest: dict[str, float] = {}

    def open(self, folder: RunFolder, start: dict[str, Any]) -> None:
        """Remember the run's name."""
        self._run = folder.name

    def write(self, records: list[dict[str, Any]]) -> None:
        """Replace the file. If that raises, the driver calls again with the same records."""
        for record in records:
            for name, value in scalar_metrics(record).items():
                self._latest[re.sub(r"\W", "_", name)] = value
        lines = [f'tachograph_{name}{{run="{self._run}"}} {value}\n' for name, value in self._latest.items()]
        new = self._path.with_suffix(".new")
        new.write_text("".join(lines), encoding="utf-8")
        new.replace(self._path)

    def close(self) -> None:
        """Keep the file: it shows how the run ended."""
