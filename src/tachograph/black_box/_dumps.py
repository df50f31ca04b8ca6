"""The dumps of a run, for `tachograph.read(run).dumps`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tachograph.black_box._format import (
    DumpDocument,
    DumpFile,
    Verdict,
    dump_names,
    dumps_folder,
    read_document,
    read_part,
)
from tachograph.journal import RunFolder

__all__ = ["Dump", "read_dumps"]


class Dump:
    """Evidence that was captured when something went wrong, or on request.

    Attributes:
        name: the name of its folder, such as `1-not_finite`.
        path: its folder.
        reason: why it was made: the rule of an alert, or `exception`, `hang`, `signal`, `request` and the like.
        step: the last step before it.
        time: its wall time, in seconds since 1970.
        rank: the rank that made it.
        alert_id: the id of the alert that caused it.
        verdict: the cause, if the evidence shows one.
        files: the files beside `dump.json`.
        problems: the parts that are missing, and why.

    Example:
        >>> dump = tachograph.read("greyjacket").dumps[-1]
        >>> dump.verdict.text
        >>> dump["steps"]
    """

    def __init__(self, path: Path, document: DumpDocument) -> None:
        self._document = document
        self.name = path.name
        self.path = path
        self.reason = document.reason
        self.step = document.step
        self.time = document.time
        self.rank = document.rank
        self.alert_id = document.alert_id
        self.verdict: Verdict | None = document.verdict
        self.files: list[DumpFile] = document.files
        self.problems = document.problems

    def __repr__(self) -> str:
        return f"Dump({self.name!r}, step={self.step}, parts={self.parts})"

    @property
    def parts(self) -> list[str]:
        """The names of its parts."""
        return list(self._document.parts)

    def __getitem__(self, part: str) -> Any:
        """Return a part; None if the dump does not have it."""
        return read_part(self.path, self._document, part)


def read_dumps(folder: RunFolder) -> list[Dump]:
    """Return the dumps of a run and its ranks, oldest first."""
    dumps = []
    for rank in (0, *folder.other_ranks()):
        place = dumps_folder(folder, rank)
        for name in dump_names(place):
            document = read_document(place / name)
            if document is not None:
                dumps.append(Dump(place / name, document))
    return sorted(dumps, key=lambda dump: dump.time)
