"""Which kind of log a path is, and how it is read."""

from __future__ import annotations

import csv
import gzip
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from tachograph.exceptions import ConfigError
from tachograph.importers._rows import records_of

__all__ = ["describe", "read_log"]

Rows = Iterator[dict[str, Any]]

_MOST_JSON_CHARS = 1 << 30
_MOST_LINE_CHARS = 16 << 20
_EXPECTED = (
    "a run folder, a CSV or JSON-lines file (also .gz), TensorBoard event files or their folder, "
    "or a trainer_state.json is expected"
)


def describe(path: str | os.PathLike[str]) -> str | None:
    """Return what kind of log is at a path: `csv`, `jsonl`, `trainer_state` or `tensorboard`; None if it is none."""
    found = _kind(Path(path))
    return found[0] if found else None


def read_log(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of a log of another tool, in its own order.

    Raises:
        ConfigError: if there is nothing at the path that can be read, or a package is missing for it.
    """
    place = Path(path)
    found = _kind(place)
    if found is None:
        what = "is not a log that is known" if place.exists() else "does not exist"
        raise ConfigError(f"{os.fspath(path)!r} {what}: {_EXPECTED}")
    _, where, read = found
    return records_of(_checked(read(where), where))


def _checked(rows: Rows, where: Path) -> Rows:
    """Turn what can go wrong while a file is read into an error that names the file."""
    try:
        yield from rows
    except EOFError:
        return  # a file that was cut short; what could be read of it was
    except OSError as error:
        raise ConfigError(f"cannot read {str(where)!r}: {getattr(error, 'strerror', None) or error}") from error
    except (csv.Error, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ConfigError(f"{str(where)!r} is not what its name says: {error}") from error


def _kind(place: Path) -> tuple[str, Path, Callable[[Path], Rows]] | None:
    if place.is_dir():
        if (place / "trainer_state.json").is_file():
            return "trainer_state", place / "trainer_state.json", _trainer_state
        states = sorted(place.glob("checkpoint-*/trainer_state.json"), key=_checkpoint_step)
        if states:
            return "trainer_state", states[-1], _trainer_state
        if next(place.rglob("*.tfevents.*"), None) is not None:
            return "tensorboard", place, _tensorboard
        return None
    name = place.name.lower().removesuffix(".gz")
    if not place.is_file():
        return None
    if ".tfevents." in name:
        return "tensorboard", place, _tensorboard
    if name.endswith((".csv", ".tsv")):
        return "csv", place, _csv
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl", place, _jsonl
    if name.endswith(".json"):
        return "trainer_state", place, _trainer_state
    return None


def _checkpoint_step(path: Path) -> int:
    digits = path.parent.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="")
    return open(path, encoding="utf-8-sig", errors="replace", newline="")


def _csv(path: Path) -> Rows:
    with _open(path) as file:
        lines = _lines(file, path)
        head = next(lines, "")
        delimiter = max(",;\t", key=head.count)
        rows = csv.reader(itertools.chain([head], lines), delimiter=delimiter)
        names = [name.strip() for name in next(rows, [])]
        for row in rows:
            yield dict(zip(names, row, strict=False))


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    """Yield the lines of a file, none of which may fill the memory."""
    while line := file.readline(_MOST_LINE_CHARS):
        if len(line) == _MOST_LINE_CHARS:
            raise ConfigError(f"{str(path)!r} has a line of more than {_MOST_LINE_CHARS >> 20} MiB")
        yield line


def _jsonl(path: Path) -> Rows:
    """Read line by line; a line that is no object is left out, as a torn last one is."""
    with _open(path) as file:
        for line in _lines(file, path):
            row = _decoded(line)
            if isinstance(row, dict):
                yield row


def _decoded(line: str) -> Any:
    import json

    try:
        return json.loads(line)  # unlike msgspec it takes NaN and Infinity, which many tools write
    except (ValueError, RecursionError):
        return None


def _trainer_state(path: Path) -> Rows:
    """Read the history that the Trainer of transformers keeps, or a list of rows."""
    import json

    with _open(path) as file:
        text = file.read(_MOST_JSON_CHARS + 1)
        if len(text) > _MOST_JSON_CHARS:
            raise ConfigError(f"{str(path)!r} is larger than 1 GiB")
        try:
            content = json.loads(text)  # the Trainer writes NaN and Infinity bare, which only this reader takes
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{str(path)!r} is not valid JSON: {error}") from error
    rows = content.get("log_history") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise ConfigError(f"{str(path)!r} holds neither a `log_history`, as a trainer_state.json does, nor a list")
    yield from (row for row in rows if isinstance(row, dict))


def _tensorboard(path: Path) -> Rows:
    from tachograph.importers._tensorboard import scalars

    yield from scalars(path)
