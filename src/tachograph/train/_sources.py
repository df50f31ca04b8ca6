"""Reads the rows of a dataset from files, folders and the hub, with the place of each row for messages."""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tachograph.train._dataset_config import DatasetConfig
from tachograph.train._problems import Problems

__all__ = ["Row", "read_rows"]

_KINDS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class Row(NamedTuple):
    """One row, with its location: ``data.jsonl, line 3``."""

    source: str
    unit: str
    number: int
    values: dict[str, Any]

    @property
    def location(self) -> str:
        """The file and row, for messages."""
        return f"{self.source}, {self.unit} {self.number}"


def read_rows(key: str, dataset: DatasetConfig, problems: Problems) -> Iterator[Row]:
    """Yield the rows of a dataset. Read errors are added to the problems.

    Args:
        key: the key of the dataset in the config, such as ``datasets[0]``.
        dataset: the dataset.
        problems: collects the errors.
    """
    rows = _read_rows(key, dataset, problems)
    if dataset.shards:
        rows = itertools.islice(rows, dataset.shards_idx, None, dataset.shards)
    return rows


def _read_rows(key: str, dataset: DatasetConfig, problems: Problems) -> Iterator[Row]:
    path = Path(dataset.path).expanduser()
    if path.is_file() and dataset.split not in (None, "train"):
        problems.add(f"{key}.split={dataset.split!r}: a file has no splits; remove the key")
    elif re.match(r"\w+://", dataset.path):
        problems.add(f"{key}.path={dataset.path!r}: addresses cannot be read; download the file and give its path")
    elif path.is_dir():
        yield from _read_folder(key, dataset, path, problems)
    elif path.exists():
        yield from _read_file(key, dataset, path, problems)
    elif _is_hub_id(dataset.path):
        yield from _read_hub(key, dataset, problems)
    else:
        problems.add(f"{key}.path={dataset.path!r}: no such file or folder{_nearest(path)}")


def _is_hub_id(path: str) -> bool:
    return bool(_HUB_ID.fullmatch(path)) and not path.startswith(".") and Path(path).suffix not in _KINDS


def _nearest(path: Path) -> str:
    """Return a hint with the most similar name in the folder, or the first missing folder."""
    import difflib

    folder = path.parent
    if not folder.is_dir():
        while not folder.exists() and folder != folder.parent:
            folder, missing = folder.parent, folder
        return f" (there is no folder {str(missing)!r})"
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return ""
    matches = difflib.get_close_matches(path.name, names, n=1)
    here = f" Relative paths start at {os.getcwd()!r}." if not path.is_absolute() else ""
    return f"; did you mean {str(folder / matches[0])!r}?" if matches else f".{here}"


def _read_folder(key: str, dataset: DatasetConfig, folder: Path, problems: Problems) -> Iterator[Row]:
    is_saved = (folder / "dataset_info.json").exists() and (folder / "state.json").exists()
    if is_saved or (folder / "dataset_dict.json").exists():
        yield from _read_saved(key, dataset, folder, problems)
        return
    if dataset.data_files:
        names = [dataset.data_files] if isinstance(dataset.data_files, str) else dataset.data_files
        files = [folder / name for name in names]
    else:
        files = sorted(path for path in folder.iterdir() if path.suffix in _KINDS)
        kinds = {_KINDS[path.suffix] for path in files}
        if len(kinds) > 1:
            problems.add(
                f"{key}.path={dataset.path!r}: the folder has files of several kinds ({', '.join(sorted(kinds))}): "
                "name the files to use in data_files"
            )
            return
    if not files:
        problems.add(
            f"{key}.path={dataset.path!r}: the folder has neither data files ({', '.join(sorted(_KINDS))}) nor a "
            "dataset saved by save_to_disk"
        )
    for file in files:
        if file.is_file():
            yield from _read_file(key, dataset, file, problems)
        else:
            problems.add(f"{key}.data_files: {str(file)!r} does not exist")


def _read_file(key: str, dataset: DatasetConfig, path: Path, problems: Problems) -> Iterator[Row]:
    kind = dataset.ds_type or _KINDS.get(path.suffix.lower())
    if kind is None:
        problems.add(
            f"{key}.path={str(path)!r}: unknown kind of file {path.suffix!r}; expected one of "
            f"{', '.join(sorted(_KINDS))}, or set ds_type to json, csv, parquet, arrow or text"
        )
        return
    reader = {"json": _read_json, "csv": _read_csv, "parquet": _read_table, "arrow": _read_table, "text": _read_text}
    try:
        yield from reader[kind](path, dataset, problems)
    except UnicodeDecodeError as error:
        problems.add(f"{path}: the file is not UTF-8 text ({error.reason} at byte {error.start})")
    except OSError as error:
        problems.add(f"{path}: cannot be read: {error.strerror or error}")


def _read_json(path: Path, dataset: DatasetConfig, problems: Problems) -> Iterator[Row]:
    with open(path, encoding="utf-8-sig") as file:
        start = ""
        while not start.strip():
            start = file.read(1)
            if not start:
                return
        file.seek(0)
        if start == "[" and path.suffix.lower() not in (".jsonl", ".ndjson"):
            yield from _read_array(path, file, problems)
            return
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line.rstrip("\r\n"))
            except (json.JSONDecodeError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                column = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
                problems.add(
                    f"{path}, line {number}{column}: invalid JSON: {reason}; each line must be one JSON object"
                )
                continue
            if isinstance(values, dict):
                yield Row(str(path), "line", number, values)
            else:
                problems.add(f"{path}, line {number}: expected a JSON object, got {_name(values)}")


def _read_array(path: Path, file: Any, problems: Problems) -> Iterator[Row]:
    try:
        values = json.load(file)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f", line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        problems.add(f"{path}{where}: invalid JSON: {getattr(error, 'msg', 'nested too deeply')}")
        return
    for number, entry in enumerate(values, 1):
        if isinstance(entry, dict):
            yield Row(str(path), "row", number, entry)
        else:
            problems.add(f"{path}, row {number}: expected a JSON object, got {_name(entry)}")


def _read_csv(path: Path, dataset: DatasetConfig, problems: Problems) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", restkey="")
        try:
            for values in rows:
                missing = [name for name, value in values.items() if value is None]
                if missing or "" in values:
                    problem = f"column {missing[0]!r} is missing" if missing else "there are more cells than columns"
                    problems.add(f"{path}, line {rows.line_num}: {problem}; quote cells that contain commas or lines")
                    continue
                yield Row(str(path), "line", rows.line_num, dict(values))
        except csv.Error as error:
            problems.add(f"{path}, line {rows.line_num}: invalid CSV: {error}")


def _read_text(path: Path, dataset: DatasetConfig, problems: Problems) -> Iterator[Row]:
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield Row(str(path), "line", number, {dataset.field: line.rstrip("\n")})


def _read_table(path: Path, dataset: DatasetConfig, problems: Problems) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        if (dataset.ds_type or _KINDS.get(path.suffix.lower())) == "parquet":
            batches = pyarrow.parquet.ParquetFile(path).iter_batches()
        else:
            batches = pyarrow.ipc.open_stream(pyarrow.memory_map(str(path)))
        number = 0
        for batch in batches:
            for values in batch.to_pylist():
                number += 1
                yield Row(str(path), "row", number, values)
    except pyarrow.ArrowException as error:
        problems.add(f"{path}: not a valid {path.suffix.removeprefix('.') or 'Arrow'} file: {error}")


def _read_saved(key: str, dataset: DatasetConfig, folder: Path, problems: Problems) -> Iterator[Row]:
    import datasets

    try:
        loaded_data = datasets.load_from_disk(str(folder))
    except Exception as error:  # noqa: BLE001 - a damaged folder raises errors of Arrow, JSON or the file system
        problems.add(f"{key}.path={dataset.path!r}: the saved dataset cannot be read: {type(error).__name__}: {error}")
        return
    yield from _split_rows(key, dataset, loaded_data, str(folder), problems)


def _read_hub(key: str, dataset: DatasetConfig, problems: Problems) -> Iterator[Row]:
    import datasets

    try:
        loaded_data = datasets.load_dataset(
            dataset.path,
            dataset.name,
            data_files=dataset.data_files,
            revision=dataset.revision,
            split=dataset.split,  # also a part of one, such as train[:10%]
        )
    except Exception as error:  # noqa: BLE001 - errors of the hub, of HTTP and of each format
        reason = str(error).strip().partition("\n")[0][:200]
        problems.add(
            f"{key}.path={dataset.path!r}: there is no such folder, and the dataset cannot be loaded from the Hugging "
            f"Face Hub: {type(error).__name__}: {reason}. Without a connection, give the path of a file."
        )
        return
    unsplit = dataset.model_copy(update={"split": None}) if dataset.split else dataset
    yield from _split_rows(key, unsplit, loaded_data, dataset.path, problems)


def _split_rows(key: str, dataset: DatasetConfig, data: Any, source: str, problems: Problems) -> Iterator[Row]:
    if hasattr(data, "keys"):
        splits = list(data.keys())
        split = dataset.split or ("train" if "train" in splits else splits[0] if len(splits) == 1 else None)
        if split not in splits:
            problems.add(
                f"{key}.split={dataset.split!r}: {source} has the splits {', '.join(map(str, splits))}; choose one"
            )
            return
        data = data[split]
        source = f"{source} ({split})"
    elif dataset.split not in (None, "train"):
        problems.add(f"{key}.split={dataset.split!r}: {source} has no splits; remove the key")
        return
    for number, values in enumerate(data, 1):
        yield Row(source, "row", number, values)


def _name(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else type(value).__name__)
