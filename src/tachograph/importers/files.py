"""Opens text logs, compressed or not, with limits that keep a damaged file from filling the memory."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tachograph.exceptions import ConfigError

__all__ = ["file_type", "find_below", "find_nearby", "open_text", "read_lines"]

_MAX_LINE_CHARS = 8 << 20
_MAX_EXPANSION = 200
"""How many times its size a compressed log may have. Logs have 5 to 50 times their size, empty lines 1,000 times."""
_MIN_EXPANDED_BYTES = 1 << 20


def file_type(path: Path) -> str:
    """Return the extension of a file in lower case, without `.gz`; an empty string if the path is not a file."""
    if not path.is_file():
        return ""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def find_nearby(path: Path, suffix: str) -> list[Path]:
    """Return the files with a suffix at a path: the file itself, or the ones in a folder, also two folders below it.

    Each is in the result once, although tools add links to the latest run.
    """
    if path.is_file():
        return [path] if path.suffix == suffix else []
    files = (file for pattern in ("*", "*/*", "*/*/*") for file in path.glob(pattern + suffix))
    return sorted({file.resolve() for file in files if file.is_file()})


def find_below(path: Path, suffix: str) -> list[Path]:
    """Return the files that `find_nearby` finds, and the ones anywhere below a folder. Links are not followed."""
    files = (file.resolve() for file in path.rglob(f"*{suffix}") if file.is_file())
    return sorted({*find_nearby(path, suffix), *files})


def open_text(path: Path) -> IO[str]:
    """Open a text file, which may be compressed with gzip.

    Reading raises `ConfigError` if the file expands to far more than a log does.
    """
    if path.suffix == ".gz":
        return io.TextIOWrapper(_LimitedGzipFile(path), encoding="utf-8", errors="replace", newline="")
    return open(path, encoding="utf-8-sig", errors="replace", newline="")


class _LimitedGzipFile(gzip.GzipFile):
    """Stops a small file that expands without end: it would keep the reader busy for hours."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._raw_file = open(path, "rb")  # noqa: SIM115 - closed with this file
        super().__init__(fileobj=self._raw_file)

    def close(self) -> None:
        super().close()
        self._raw_file.close()

    def read(self, size: int | None = -1) -> bytes:
        return self._check_expansion(super().read(size))

    def read1(self, size: int = -1) -> bytes:
        return self._check_expansion(super().read1(size))

    def _check_expansion(self, data: bytes) -> bytes:
        if self.tell() > _MIN_EXPANDED_BYTES and self.tell() > _MAX_EXPANSION * self._raw_file.tell():
            raise ConfigError(
                f"{str(self._path)!r} expands to more than {_MAX_EXPANSION} times its size, which no log does; "
                "decompress it yourself if you trust it"
            )
        return data


def read_lines(file: IO[str], path: Path) -> Iterator[str]:
    """Yield the lines of a file.

    Raises:
        ConfigError: if a line is too long to be part of a log.
    """
    while line := file.readline(_MAX_LINE_CHARS):
        if len(line) == _MAX_LINE_CHARS:
            raise ConfigError(f"{str(path)!r} has a line of more than {_MAX_LINE_CHARS >> 20} MiB")
        yield line
