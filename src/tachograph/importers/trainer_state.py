"""`trainer_state.json`, the history that the Trainer of transformers keeps in each checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.exceptions import ConfigError
from tachograph.importers._files import file_type, open_text

__all__ = ["TrainerStateImporter"]

_MAX_CHARS = 1 << 30


class TrainerStateImporter:
    """Reads a `.json` file with a `log_history` or a list of rows; also a checkpoint, or the latest of a folder."""

    def detects(self, path: Path) -> bool:
        """Return whether the path is a JSON file, or a folder that holds a `trainer_state.json`."""
        return file_type(path) == ".json" if path.is_file() else _latest_state(path) is not None

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the rows of the history."""
        path = _latest_state(path) or path
        with open_text(path) as file:
            text = file.read(_MAX_CHARS + 1)
        if len(text) > _MAX_CHARS:
            raise ConfigError(f"{str(path)!r} is larger than 1 GiB")
        try:
            content = json.loads(text)  # accepts NaN and Infinity, which the Trainer writes; msgspec does not
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{str(path)!r} is not valid JSON: {error}") from error
        rows = content.get("log_history") if isinstance(content, dict) else content
        if not isinstance(rows, list):
            raise ConfigError(f"{str(path)!r} has no `log_history`, as a trainer_state.json has, and is not a list")
        yield from (row for row in rows if isinstance(row, dict))


def _latest_state(folder: Path) -> Path | None:
    """Return the state of a checkpoint folder, or of the latest checkpoint inside an output folder."""
    if not folder.is_dir():
        return None
    if (folder / "trainer_state.json").is_file():
        return folder / "trainer_state.json"
    return max(folder.glob("checkpoint-*/trainer_state.json"), key=_checkpoint_step, default=None)


def _checkpoint_step(path: Path) -> int:
    digits = path.parent.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1
