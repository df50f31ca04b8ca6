"""`describe` and `read_log`: find the importer for a path, and turn its rows into records."""

from __future__ import annotations

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

__all__ = ["IMPORTERS", "describe", "read_log"]

# In the order in which they are tried. The output folder of a Trainer may hold TensorBoard files as well, and its
# `trainer_state.json` has more to offer.
IMPORTERS = Registry(
    "importer",
    "tachograph.importers",
    {
        "trainer_state": "tachograph.importers.trainer_state:TrainerStateImporter",
        "tensorboard": "tachograph.importers.tensorboard:TensorBoardImporter",
        "csv": "tachograph.importers.csv:CsvImporter",
        "jsonl": "tachograph.importers.jsonl:JsonLinesImporter",
    },
)

_EXPECTED = (
    "expected a run folder, a CSV or JSON-lines file (also .gz), TensorBoard event files or their folder, "
    "or a trainer_state.json"
)


def describe(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the importer for a path, such as `csv`; None if no importer reads it."""
    found, _ = _find_importer(Path(path))
    return found[0] if found else None


def read_log(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of another tool's log, in the log's order.

    Raises:
        ConfigError: if no importer reads the path, the log is damaged, or a package is missing.
    """
    place = Path(path)
    found, problems = _find_importer(place)
    if found is None:
        what = "is not a known log" if place.exists() else "does not exist"
        raise ConfigError("; ".join([f"{os.fspath(path)!r} {what}: {_EXPECTED}", *problems]))
    name, importer = found
    return rows_to_records(_read_rows(name, importer, place))


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


def _read_rows(name: str, importer: Importer, path: Path) -> Iterator[dict[str, Any]]:
    """Yield an importer's rows; turn its errors into one that names the file."""
    try:
        yield from importer.read(path)
    except ConfigError:
        raise
    except EOFError:
        return  # a truncated .gz file: everything before the cut was read
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    except (csv.Error, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(f"{str(path)!r} is not a valid {name} log: {error}") from error
    except Exception as error:
        if name in IMPORTERS.built_in:
            raise
        raise ConfigError(f"importer {name!r} cannot read {str(path)!r}: {type(error).__name__}: {error}") from error
