"""The names of a run folder, in one place."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from tachograph.exceptions import RunNotFoundError, did_you_mean

__all__ = ["RunFolder", "atomic_write", "find_run", "list_runs", "read_small"]


class RunFolder:
    """Where each file of a run lies."""

    __slots__ = ("path",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def name(self) -> str:
        """The run's name, which is the folder's."""
        return self.path.name or self.path.resolve().name

    @property
    def journal(self) -> Path:
        """`metrics.jsonl`: every record, the only source of truth."""
        return self.path / "metrics.jsonl"

    @property
    def csv(self) -> Path:
        """`metrics.csv`: the wide mirror."""
        return self.path / "metrics.csv"

    @property
    def control(self) -> Path:
        """`control.json`: what readers ask of the trainer."""
        return self.path / "control.json"

    @property
    def traces(self) -> Path:
        """`traces`: what torch's profiler saw of some steps, where somebody asked for it."""
        return self.path / "traces"

    @property
    def private(self) -> Path:
        """`.tacho`: cursors, lock and heartbeat; may be deleted at any time."""
        return self.path / ".tacho"

    @property
    def heartbeat(self) -> Path:
        """`.tacho/heartbeat.json`: when the writer was last alive."""
        return self.private / "heartbeat.json"

    @property
    def lock(self) -> Path:
        """`.tacho/lock`: held by the process that writes."""
        return self.private / "lock"

    @property
    def cache(self) -> Path:
        """`.tacho/cache`: columns that readers made of the journal."""
        return self.private / "cache"

    @property
    def csv_cursor(self) -> Path:
        """`.tacho/csv.json`: how far the CSV mirrors the journal."""
        return self.private / "csv.json"

    @property
    def ranks(self) -> Path:
        """`ranks`: a light journal of each rank but the first."""
        return self.path / "ranks"

    def rank_journal(self, rank: int) -> Path:
        """`ranks/00001.jsonl`: what a rank recorded."""
        return self.ranks / f"{rank:05d}.jsonl"

    def rank_heartbeat(self, rank: int) -> Path:
        """`.tacho/ranks/00001.json`: when a rank's writer was last alive."""
        return self.private / "ranks" / f"{rank:05d}.json"

    def exists(self) -> bool:
        """Tell whether there is a journal."""
        return self.journal.is_file()


def atomic_write(path: Path, data: bytes) -> None:
    """Replace a file at once: a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_small(path: Path, most_bytes: int) -> bytes:
    """Return the content of a small file.

    Never blocks and follows no link: a pipe must not stall the reader, a link must not make it read another file.

    Raises:
        OSError: if it cannot be read, is not a regular file, or is larger.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        if found.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"is larger than {most_bytes} bytes")
        return os.read(descriptor, most_bytes + 1)
    finally:
        os.close(descriptor)


def list_runs(log_dir: str | os.PathLike[str]) -> Iterator[RunFolder]:
    """Yield the folders inside `log_dir` that hold a journal, by name."""
    try:
        entries = sorted(os.scandir(log_dir), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        folder = RunFolder(entry.path)
        with contextlib.suppress(OSError):
            if not entry.name.startswith(".") and entry.is_dir() and folder.exists():
                yield folder


def find_run(run: str | os.PathLike[str], log_dir: str | os.PathLike[str] | None = None) -> RunFolder:
    """Find a run by its folder, its `metrics.jsonl` or, inside `log_dir`, its name.

    Raises:
        RunNotFoundError: naming the runs that are there.
    """
    given = os.fspath(run)
    candidates = [Path(given)] if log_dir is None or os.sep in given else [Path(log_dir) / given, Path(given)]
    for path in candidates:
        folder = RunFolder(path.parent if path.name == "metrics.jsonl" else path)
        with contextlib.suppress(OSError, ValueError):
            if folder.exists():
                return folder
    if log_dir is None:
        raise RunNotFoundError(f"no run at {given!r}: there is no metrics.jsonl in that folder")
    known = [folder.name for folder in list_runs(log_dir)]
    if not known:
        raise RunNotFoundError(f"no run {given!r}: there are no runs in {os.fspath(log_dir)!r}; pass --log-dir")
    hint = did_you_mean(given, known) or f"; there is {', '.join(map(repr, known[:5]))}{' …' if len(known) > 5 else ''}"
    raise RunNotFoundError(f"no run {given!r} in {os.fspath(log_dir)!r}{hint}")
