"""`trainer_state.json`, the history that the Trainer of transformers keeps in each checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.importers._json_rows import read_json_fields, read_json_rows
from tachograph.importers._source import RowSource, RunSource
from tachograph.importers.files import file_type, open_text
from tachograph.records import SUMMARY

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
            max_steps = read_json_fields(file, path, {"max_steps"}).get("max_steps")
        if isinstance(max_steps, int) and max_steps > 0:
            yield {"event": "start", "max_steps": max_steps}
        with open_text(path) as file:
            yield from (row for row in read_json_rows(file, path, "log_history") if isinstance(row, dict))

    def runs(self, path: Path) -> list[RunSource]:
        """Return the run of a file or folder; all checkpoints of an output folder belong to one run."""
        state = (_latest_state(path) or path).resolve()
        folder = state.parent
        if folder.name.startswith("checkpoint-"):
            folder = folder.parent
        is_state = state.name == "trainer_state.json"
        return [
            RowSource(
                path,
                str(folder if is_state else state),
                folder.name if is_state else state.stem,
                lambda: self.read(state),
                [],
                last=lambda: _read_end(state),
            )
        ]


def _read_end(state: Path) -> list[dict[str, Any]]:
    """Return the best result, and the end if the last step was reached; a file without it may be continued."""
    with open_text(state) as file:
        fields = read_json_fields(
            file, state, {"max_steps", "global_step", "best_metric", "best_model_checkpoint", "epoch"}
        )
    best = {name: fields[name] for name in ("best_metric", "best_model_checkpoint") if fields.get(name) is not None}
    records: list[dict[str, Any]] = [{"event": "event", "name": SUMMARY, SUMMARY: best}] if best else []
    max_steps, step = fields.get("max_steps"), fields.get("global_step")
    if isinstance(max_steps, int) and isinstance(step, int) and step >= max_steps > 0:
        records.append({"event": "end", "status": "finished"})
    return records


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
