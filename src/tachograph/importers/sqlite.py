"""Reads the SQLite databases of other tools, without changing them and while they are being written."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tachograph.exceptions import ConfigError
from tachograph.importers._source import Damage

__all__ = ["find_tables", "is_database", "open_database", "rows_up_to_damage"]

_HEADER = b"SQLite format 3\0"
_BUSY_TIMEOUT_S = 30.0


def is_database(path: Path) -> bool:
    """Return whether a file is a SQLite database."""
    if not path.is_file():
        return False
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(len(_HEADER)) == _HEADER
    return False


@contextlib.contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading; an error of it names the file.

    Raises:
        ConfigError: if it cannot be read.
    """
    address = path.resolve().as_uri()
    try:
        try:
            connection = sqlite3.connect(f"{address}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            # Next to a database with a write-ahead log, SQLite makes a file, which is impossible in a read-only folder.
            connection = sqlite3.connect(f"{address}?immutable=1", uri=True)
        with contextlib.closing(connection):
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            yield connection
    except sqlite3.Error as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error}") from error


def find_tables(path: Path) -> dict[str, set[str]]:
    """Return the columns of each table in a database; empty if it is none or cannot be read."""
    if not is_database(path):
        return {}
    with contextlib.suppress(ConfigError), open_database(path) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: {row[0] for row in database.execute("SELECT name FROM pragma_table_info(?)", (name,))}
            for name in names
        }
    return {}


def rows_up_to_damage(
    database: sqlite3.Connection, path: Path, damage: list[Damage], query: str, values: tuple[Any, ...]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query; an error in the middle of the file ends them."""
    number = 0
    try:
        for row in database.execute(query, values):
            number += 1
            yield row
    except sqlite3.DatabaseError as error:
        damage.append(Damage(str(path), f"after row {number} of a run", str(error)))
