"""`trainer_state.json`, the history that the Trainer of transformers keeps in each checkpoint.

The states of all checkpoints in an output folder, and the one in the folder itself, belong to one training. The latest
state normally has the whole history. The other ones are compared with it, and the values that only they have are added:
a history that began anew, or a file that was cut while it was written, lacks the earlier steps.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tachograph.exceptions import ConfigError
from tachograph.importers._json_rows import read_json_fields, read_json_rows
from tachograph.importers._source import MAX_DAMAGE, Damage, RowSource, RunSource
from tachograph.importers.files import file_type, open_text
from tachograph.records import CONFIG_CHANGED, SUMMARY

__all__ = ["TrainerStateImporter"]

_STATE_FILE = "trainer_state.json"
_ROW_FIELDS = {"step", "epoch"}
"""Fields that say when a row was logged."""
_RESULTS = ("best_metric", "best_model_checkpoint", "best_global_step", "total_flos", "num_input_tokens_seen")
_PROGRESS = {"epoch", "global_step", "max_steps", "is_local_process_zero", "is_world_process_zero"}
"""Fields that the records contain in another form."""
_CALLBACKS = "stateful_callbacks"
_MAX_EARLIER_VALUES = 1_000_000
_MAX_ROWS_OF_STEP = 1_000
_MAX_DEPTH = 20


class TrainerStateImporter:
    """Reads a `.json` file with a `log_history` or a list of rows; also a checkpoint, or the output folder."""

    def detects(self, path: Path) -> bool:
        """Return whether the path is a JSON file, a checkpoint or an output folder with checkpoints."""
        return file_type(path) == ".json" if path.is_file() else bool(_find_states(path))

    def detects_below(self, path: Path) -> bool:
        """Return whether there is a state anywhere in a folder."""
        return next(path.rglob(_STATE_FILE), None) is not None

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the number of planned steps, where the file contains it, and the rows of the history."""
        return _read_rows([path] if path.is_file() else _find_states(path), [], Counter())

    def runs(self, path: Path) -> list[RunSource]:
        """Return the run of a file, or the trainings in a folder; a checkpoint stands for its whole training."""
        path = path.resolve()
        if path.is_file() and path.name != _STATE_FILE:
            return [_open_training(path, path.stem, [path])]
        folders = sorted({_training_folder(file) for file in ([path] if path.is_file() else path.rglob(_STATE_FILE))})
        return [
            _open_training(folder, "-".join(_parts_below(folder, path)) or folder.name, states)
            for folder in folders
            if (states := _find_states(folder))
        ]


def _open_training(path: Path, name: str, states: list[Path]) -> RunSource:
    damage: list[Damage] = []
    left_out: Counter[str] = Counter()
    return RowSource(
        path,
        str(path),
        name,
        lambda: _read_rows(states, damage, left_out),
        damage,
        left_out=left_out,
        last=lambda: _read_facts(states, left_out),
        keeps_texts=True,
    )


# Files ---------------------------------------------------------------------------------------------------------------


def _training_folder(state: Path) -> Path:
    return state.parent.parent if state.parent.name.startswith("checkpoint-") else state.parent


def _parts_below(folder: Path, root: Path) -> tuple[str, ...]:
    return folder.relative_to(root).parts if folder.is_relative_to(root) else ()


def _find_states(folder: Path) -> list[Path]:
    """Return the states of a checkpoint, or of an output folder and its checkpoints, the latest one at the end."""
    files = [folder / _STATE_FILE, *sorted(folder.glob(f"checkpoint-*/{_STATE_FILE}"))]
    return sorted({file.resolve() for file in files if file.is_file()}, key=_order_of)


def _order_of(state: Path) -> tuple[int, int]:
    """Return the step of a state; the one of the output folder is written after the one of the last checkpoint."""
    digits = state.parent.name.rpartition("-")[2]
    if state.parent.name.startswith("checkpoint-") and digits.isdecimal():
        return int(digits), 0
    step = _read_fields([state]).get("global_step")
    return step if isinstance(step, int) else -1, 1


def _read_fields(states: list[Path]) -> dict[str, Any]:
    """Return the fields of the latest state; if it is damaged, the missing ones from the states before it."""
    fields: dict[str, Any] = {}
    for state in reversed(states):
        with contextlib.suppress(OSError), open_text(state) as file:  # which is reported when its rows are read
            fields = {**read_json_fields(file, state, skip={"log_history"}), **fields}
        if "max_steps" in fields:  # is written after the history
            break
    return fields


# Rows ----------------------------------------------------------------------------------------------------------------


def _read_rows(states: list[Path], damage: list[Damage], left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield the planned steps and the history of the latest state, with the values that only earlier ones have."""
    max_steps = _read_fields(states).get("max_steps")
    if isinstance(max_steps, int) and max_steps > 0:
        yield {"event": "start", "max_steps": max_steps}
    if len(states) == 1:
        yield from _read_history(states[0])
        return
    rows_by_step = _find_rows_of_earlier_states(states, damage, left_out)
    pending_steps = sorted(rows_by_step, reverse=True)
    for step, rows in _read_intact_steps(states[-1], damage):
        while pending_steps and pending_steps[-1] < step:
            yield from rows_by_step[pending_steps.pop()]
        yield from rows
        if pending_steps[-1:] == [step]:
            yield from rows_by_step[pending_steps.pop()]
    while pending_steps:
        yield from rows_by_step[pending_steps.pop()]


def _find_rows_of_earlier_states(
    states: list[Path], damage: list[Damage], left_out: Counter[str]
) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of each step with the values that the latest state lacks; later states win."""
    *earlier_states, latest = states
    rows_by_step: dict[int, list[dict[str, Any]]] = {}
    num_values = 0
    for state in reversed(earlier_states):
        latest_steps = _read_intact_steps(latest, [])
        latest_step, latest_rows = next(latest_steps, (None, []))
        for step, rows in _read_intact_steps(state, damage):
            while latest_step is not None and latest_step < step:
                latest_step, latest_rows = next(latest_steps, (None, []))
            names: set[str] = set().union(*rows_by_step.get(step, ()), *(latest_rows if latest_step == step else ()))
            for row in rows:
                new_names = row.keys() - names - _ROW_FIELDS
                if new_names and num_values >= _MAX_EARLIER_VALUES:
                    left_out["value of an earlier checkpoint"] += len(new_names)
                elif new_names:
                    num_values += len(new_names)
                    values = {name: value for name, value in row.items() if name in new_names or name in _ROW_FIELDS}
                    rows_by_step.setdefault(step, []).append(values)
    return rows_by_step


def _read_intact_steps(state: Path, damage: list[Damage]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the steps of a state up to its damage, if it has any."""
    num_rows = 0
    try:
        for step, rows in _read_steps(state):
            num_rows += len(rows)
            yield step, rows
    except (ConfigError, OSError) as error:  # a checkpoint may be deleted at any time
        if len(damage) < MAX_DAMAGE:
            damage.append(Damage(str(state), f"after row {num_rows}", str(error)))


def _read_steps(state: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the rows of each step; rows that go back in time or have no step belong to the step before them."""
    step = -1
    rows: list[dict[str, Any]] = []
    for row in _read_history(state):
        row_step = row.get("step")
        next_step = max(row_step, step) if isinstance(row_step, int) else step
        if rows and (next_step > step or len(rows) >= _MAX_ROWS_OF_STEP):
            yield step, rows
            rows = []
        step = next_step
        rows.append(row)
    if rows:
        yield step, rows


def _read_history(state: Path) -> Iterator[dict[str, Any]]:
    with open_text(state) as file:
        for row in read_json_rows(file, state, "log_history"):
            if isinstance(row, dict):
                yield _flatten(row)


def _flatten(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Return a row with the names of nested values joined by dots."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            values |= _flatten(value, f"{prefix}{name}.", depth + 1)
        else:
            values[f"{prefix}{name}"] = value
    return values


# Other fields --------------------------------------------------------------------------------------------------------


def _read_facts(states: list[Path], left_out: Counter[str]) -> list[dict[str, Any]]:
    """Return config, results, and the end if the last step was reached; a file without it may be continued."""
    fields = {name: value for name, value in _read_fields(states).items() if value is not None}
    callbacks = fields.pop(_CALLBACKS, None)
    if isinstance(callbacks, dict) and callbacks:
        left_out["state of a callback"] += len(callbacks)
    results = {name: fields.pop(name) for name in _RESULTS if name in fields}
    config = {name: value for name, value in fields.items() if name not in _PROGRESS}
    records: list[dict[str, Any]] = []
    if config:
        records.append({"event": "event", "name": CONFIG_CHANGED, "config": config})
    if results:
        records.append({"event": "event", "name": SUMMARY, SUMMARY: results})
    max_steps, step = fields.get("max_steps"), fields.get("global_step")
    if isinstance(max_steps, int) and isinstance(step, int) and step >= max_steps > 0:
        records.append({"event": "end", "status": "finished"})
    return records
