"""Paths of the files in a run folder, and finding runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tachograph._base.guard import faults, suppress
from tachograph.exceptions import RunNotFoundError, did_you_mean
from tachograph.journal._files import compressed_path

__all__ = ["RunFolder", "find_run", "list_runs"]

_RANK_JOURNAL = re.compile(r"(\d{5,9})\.jsonl(\.gz)?")


class RunFolder:
    """The paths of the files of a run."""

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
        """`metrics.jsonl`: all records, the single source of truth. Open it with `open_journal`."""
        return self.path / "metrics.jsonl"

    @property
    def compressed_journal(self) -> Path:
        """`metrics.jsonl.gz`: takes the place of the journal when it is compressed."""
        return compressed_path(self.journal)

    @property
    def csv(self) -> Path:
        """`metrics.csv`: the wide CSV mirror."""
        return self.path / "metrics.csv"

    @property
    def control(self) -> Path:
        """`control.json`: requests of readers to the trainer."""
        return self.path / "control.json"

    @property
    def traces(self) -> Path:
        """`traces`: traces of torch's profiler, recorded on request."""
        return self.path / "traces"

    @property
    def code(self) -> Path:
        """`code`: captured code, by the hash of its content."""
        return self.path / "code"

    @property
    def media(self) -> Path:
        """`media`: images, clips, sounds, tables and files that were logged, by the hash of their content."""
        return self.path / "media"

    @property
    def output(self) -> Path:
        """`output`: the console output of the program, in segments; see `_output`."""
        return self.path / "output"

    @property
    def private(self) -> Path:
        """`.tacho`: cursors, lock, heartbeat and destination; may be deleted at any time."""
        return self.path / ".tacho"

    @property
    def heartbeat(self) -> Path:
        """`.tacho/heartbeat.json`: the last heartbeat of the writer."""
        return self.private / "heartbeat.json"

    @property
    def lock(self) -> Path:
        """`.tacho/lock`: locked by the process that records the run."""
        return self.private / "lock"

    @property
    def cache(self) -> Path:
        """`.tacho/cache`: columns that readers built from the journal."""
        return self.private / "cache"

    @property
    def destination(self) -> Path:
        """`.tacho/destination.json`: the server that the run is to be sent to."""
        return self.private / "destination.json"

    @property
    def csv_cursor(self) -> Path:
        """`.tacho/csv.json`: the cursor of the CSV mirror."""
        return self.private / "csv.json"

    @property
    def ranks(self) -> Path:
        """`ranks`: small journals of all ranks except rank 0; see `_rank_journals`."""
        return self.path / "ranks"

    def rank_journal(self, rank: int) -> Path:
        """`ranks/00001.jsonl`: the journal of a rank."""
        return self.ranks / f"{rank:05d}.jsonl"

    def other_ranks(self) -> list[int]:
        """Return the ranks that have journals of their own, plain or compressed, in order."""
        try:
            matches = [_RANK_JOURNAL.fullmatch(name) for name in os.listdir(self.ranks)]
        except faults(OSError):
            return []
        return sorted({int(match[1]) for match in matches if match})

    def host_journal(self, rank: int) -> Path:
        """`ranks/host-00012.jsonl`: the journal of the ranks of a host, in a large job; this rank writes it."""
        return self.ranks / f"host-{rank:05d}.jsonl"

    def host_heartbeat(self, rank: int) -> Path:
        """`.tacho/ranks/host-00012.json`: the last heartbeats of the ranks of a host."""
        return self.private / "ranks" / f"host-{rank:05d}.json"

    def rank_stacks(self, rank: int) -> Path:
        """`ranks/00001.stacks.txt`: the Python stacks of a rank that hung."""
        return self.ranks / f"{rank:05d}.stacks.txt"

    def native_stacks(self, rank: int) -> Path:
        """`.tacho/ranks/00001.stacks.txt`: stacks written while the interpreter lock was held, if not empty."""
        return self.private / "ranks" / f"{rank:05d}.stacks.txt"

    def rank_heartbeat(self, rank: int) -> Path:
        """`.tacho/ranks/00001.json`: the last heartbeat of a rank."""
        return self.private / "ranks" / f"{rank:05d}.json"

    @property
    def rank_map(self) -> Path:
        """`.tacho/ranks/map.json`: all ranks over the whole run, as rank 0 has compared them."""
        return self.private / "ranks" / "map.json"

    def exists(self) -> bool:
        """Return whether the folder has a journal, plain or compressed."""
        return self.journal.is_file() or self.compressed_journal.is_file()


def list_runs(log_dir: str | os.PathLike[str]) -> Iterator[RunFolder]:
    """Yield the folders inside `log_dir` that have a journal, sorted by name."""
    try:
        entries = sorted(os.scandir(log_dir), key=lambda entry: entry.name)
    except faults(OSError):
        return
    for entry in entries:
        folder = RunFolder(entry.path)
        with suppress(OSError):
            if not entry.name.startswith(".") and entry.is_dir() and folder.exists():
                yield folder


def find_run(run: str | os.PathLike[str], log_dir: str | os.PathLike[str] | None = None) -> RunFolder:
    """Find a run by its folder, its `metrics.jsonl` or, inside `log_dir`, its name.

    Raises:
        RunNotFoundError: if there is no such run; the message names existing runs.
    """
    name_or_path = os.fspath(run)
    candidates = [Path(name_or_path)] if log_dir is None else [Path(log_dir) / name_or_path, Path(name_or_path)]
    if os.sep in name_or_path:  # a path as a shell completes it, or a run in a folder below the log folder
        candidates.reverse()
    for path in candidates:
        folder = RunFolder(path.parent if path.name in {"metrics.jsonl", "metrics.jsonl.gz"} else path)
        with suppress(OSError, ValueError):
            if folder.exists():
                return folder
    if log_dir is None:
        raise RunNotFoundError(f"no run at {name_or_path!r}: there is no metrics.jsonl in that folder")
    names = [folder.name for folder in list_runs(log_dir)]
    if not names:
        raise RunNotFoundError(f"no run {name_or_path!r}: there are no runs in {os.fspath(log_dir)!r}; pass --log-dir")
    examples = ", ".join(map(repr, names[:5])) + (" …" if len(names) > 5 else "")
    label, _, name = name_or_path.partition(":")
    if name in names:  # an id, as lists of several log folders show it
        hint = f"; did you mean {name!r}? The label {label!r} is known only with the --log-dir options of the list"
    else:
        hint = did_you_mean(name_or_path, names) or f"; existing runs: {examples}"
    raise RunNotFoundError(f"no run {name_or_path!r} in {os.fspath(log_dir)!r}{hint}")
