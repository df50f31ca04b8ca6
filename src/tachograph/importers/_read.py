"""`describe`, `read_log` and `find_runs`: find the importer for a path, and turn its rows into records or runs."""

from __future__ import annotations

import contextlib
import csv
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph._base.registry import Registry
from tachograph.exceptions import ConfigError
from tachograph.importers._importer import Importer
from tachograph.importers._rows import rows_to_records
from tachograph.importers._source import Damage, RowSource, RunSource

__all__ = ["IMPORTERS", "describe", "find_runs", "has_runs", "read_log"]

# In the order in which they are tried. The output folder of a Trainer may hold files of W&B and TensorBoard as well,
# and its `trainer_state.json` has more to offer.
IMPORTERS = Registry(
    "importer",
    "tachograph.importers",
    {
        "trainer_state": "tachograph.importers.trainer_state:TrainerStateImporter",
        "wandb": "tachograph.bridges.wandb.importer:WandbImporter",
        "swanlab": "tachograph.bridges.swanlab.importer:SwanLabImporter",
        "tensorboard": "tachograph.bridges.tensorboard.importer:TensorBoardImporter",
        "mlflow": "tachograph.bridges.mlflow.importer:MlflowImporter",
        "trackio": "tachograph.bridges.trackio.importer:TrackioImporter",
        "aim": "tachograph.bridges.aim.importer:AimImporter",
        "csv": "tachograph.importers.csv:CsvImporter",
        "jsonl": "tachograph.importers.jsonl:JsonLinesImporter",
    },
)

_EXPECTED_PATHS = (
    "expected a run folder, a CSV or JSON-lines file (also .gz), TensorBoard event files or their folder, "
    "a .wandb or .swanlab file or its folder, a trainer_state.json, or a database or folder of MLflow, trackio or Aim"
)


def describe(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the importer for a path, such as `csv`; None if no importer reads it."""
    match, _ = _find_importer(Path(path))
    return match[0] if match else None


def read_log(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of another tool's log, in the log's order.

    Raises:
        ConfigError: if no importer reads the path, the log is damaged, or a package is missing.
    """
    log = Path(path)
    match, problems = _find_importer(log)
    if match is None:
        problem = "is not a known log" if log.exists() else "does not exist"
        raise ConfigError("; ".join([f"{os.fspath(path)!r} {problem}: {_EXPECTED_PATHS}", *problems]))
    name, importer = match
    return rows_to_records(_rows_before_truncation(_read_rows(name, importer, log)))


def has_runs(importer: Importer, path: Path) -> bool:
    """Return whether an importer reads a path, or finds logs anywhere below it.

    Only for an importer that was named: a folder that contains a log somewhere is not a log of this format.
    """
    if importer.detects(path):
        return True
    return path.is_dir() and hasattr(importer, "detects_below") and bool(importer.detects_below(path))


def find_runs(name: str, path: str | os.PathLike[str]) -> list[RunSource]:
    """Return the runs at a path, as the importer of that name sees them.

    Raises:
        ConfigError: if there is no such importer or path, or the path is a log of another format.
    """
    importer: Importer = IMPORTERS.load(name)()
    log = Path(path)
    if not log.exists():
        raise ConfigError(f"{os.fspath(path)!r} does not exist")
    if not has_runs(importer, log):
        other_format = describe(log)
        if other_format is not None:
            hint = f"tacho import {other_format.replace('_', '-')} {os.fspath(path)}"
            raise ConfigError(f"{os.fspath(path)!r} is not a {name} log but a {other_format} log: {hint}")
        if name not in {"csv", "jsonl"} or not log.is_file():  # these may have any extension
            raise ConfigError(f"{os.fspath(path)!r} is not a {name} log: {_EXPECTED_PATHS}")
    if hasattr(importer, "runs"):
        runs: list[RunSource] = importer.runs(log)
        return runs
    damage: list[Damage] = getattr(importer, "damage", [])
    file = log.resolve()
    stem = file.name.removesuffix(".gz").removesuffix(Path(file.name.removesuffix(".gz")).suffix)
    return [RowSource(log, str(file), stem, lambda: _read_rows(name, importer, log), damage)]


def _find_importer(path: Path) -> tuple[tuple[str, Importer] | None, list[str]]:
    """Return the name and the importer for a path, and why other importers could not be asked."""
    problems: list[str] = []
    if not path.exists():
        return None, problems
    for name in _names_by_priority():
        try:
            importer: Importer = IMPORTERS.load(name)()
            if importer.detects(path):
                return (name, importer), problems
        except Exception as error:  # noqa: BLE001 - a broken package must not hide the other importers
            problems.append(str(error) if isinstance(error, ConfigError) else f"importer {name!r}: {error!r}")
    return None, problems


def _names_by_priority() -> Iterator[str]:
    """Yield the built-in importers first: installing a package must not change how a CSV file is read."""
    yield from IMPORTERS.built_in
    yield from (name for name in IMPORTERS.names() if name not in IMPORTERS.built_in)  # slow: scans all packages


def _rows_before_truncation(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows, up to the end of a truncated .gz file."""
    with contextlib.suppress(EOFError):
        yield from rows


def _read_rows(name: str, importer: Importer, path: Path) -> Iterator[dict[str, Any]]:
    """Yield an importer's rows; turn its errors into one that names the file, except for a truncated .gz file."""
    try:
        yield from importer.read(path)
    except (ConfigError, EOFError):
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    except (csv.Error, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(f"{str(path)!r} is not a valid {name} log: {error}") from error
    except Exception as error:
        if name in IMPORTERS.built_in:
            raise
        raise ConfigError(f"importer {name!r} cannot read {str(path)!r}: {type(error).__name__}: {error}") from error
