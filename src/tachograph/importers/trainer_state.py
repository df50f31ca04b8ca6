"""`trainer_state.json`, the history that the Trainer of transformers keeps in each checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.importers._files import file_type, open_text
from tachograph.importers._json_rows import read_json_field, read_json_rows

__all__ = ["TrainerStateImporter"]


class TrainerStateImporter:
    """Reads a `.json` file with a `log_history` or a list of rows; also a checkpoint, or the latest of a folder."""

    def detects(self, path: Path) -> bool:
        """Return whether the path is a JSON file, or a folder that holds a `trainer_state.json`."""
        return file_type(path) == ".json" if path.is_file() else _latest_state(path) is not None

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the number of planned steps, where the file contains it, and the rows of the history."""
        path = _latest_state(path) or path
        with open_text(path) as file:
            max_steps = read_json_field(file, path, "max_steps")
        if isinstance(max_steps, int) and max_steps > 0:
            yield {"event": "start", "max_steps": max_steps}
        with open_text(path) as file:
            yield from (row for row in read_json_rows(file, path, "log_history") if isinstance(row, dict))


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
