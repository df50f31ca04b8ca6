"""Opens text logs, compressed or not, with limits that keep a damaged file from filling the memory."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tachograph.exceptions import ConfigError

__all__ = ["file_type", "open_text", "read_lines"]

_MAX_LINE_CHARS = 16 << 20


def file_type(path: Path) -> str:
    """Return the extension of a file in lower case, without `.gz`; an empty string if the path is not a file."""
    if not path.is_file():
        return ""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def open_text(path: Path) -> IO[str]:
    """Open a text file, which may be compressed with gzip."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="")
    return open(path, encoding="utf-8-sig", errors="replace", newline="")


def read_lines(file: IO[str], path: Path) -> Iterator[str]:
    """Yield the lines of a file.

    Raises:
        ConfigError: if a line is too long to be part of a log.
    """
    while line := file.readline(_MAX_LINE_CHARS):
        if len(line) == _MAX_LINE_CHARS:
            raise ConfigError(f"{str(path)!r} has a line of more than {_MAX_LINE_CHARS >> 20} MiB")
        yield line
