"""The dumps of a run, for `tachograph.read(run).dumps`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tachograph.black_box._format import (
    DumpDocument,
    DumpFile,
    Verdict,
    dump_names,
    dumps_folder,
    rank_dumps_folders,
    read_document,
    read_part,
)
from tachograph.journal import RunFolder

__all__ = ["Dump", "read_dumps", "resume_skipping"]


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

    def skip_list(self) -> list[int]:
        """Return the sample numbers of the batch of the fault, for `tachograph.resume_skipping`; empty if unknown."""
        batch = self["batch"]
        indices = batch.get("indices") if isinstance(batch, dict) else None
        if not indices:
            steps = self["steps"]
            rows = steps.get("steps", []) if isinstance(steps, dict) else []
            row = next((row for row in rows if row.get("global_step") == self.step), rows[-1] if rows else {})
            indices = [index for item in row.get("batches", []) for index in item.get("indices", [])]
        return [int(index) for index in indices]

    def batch(self, dataset: Any) -> list[Any]:
        """Return the samples of the batch of the fault from a dataset, in their order."""
        return [dataset[index] for index in self.skip_list()]


class _SkippingSampler:
    """A batch sampler without some batches; in every other respect it behaves like the original."""

    def __init__(self, batch_sampler: Iterable[Any], indices: Iterable[int]) -> None:
        self._batch_sampler = batch_sampler
        self._indices = frozenset(int(index) for index in indices)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batch_sampler:
            if self._indices.isdisjoint(batch):
                yield batch

    def __len__(self) -> int:
        return len(self._batch_sampler)  # type: ignore[arg-type] # an upper bound; raises like the original

    def __getattr__(self, name: str) -> Any:
        if name == "_batch_sampler":  # `copy` looks for attributes before it is set
            raise AttributeError(name)
        return getattr(self._batch_sampler, name)


def resume_skipping(batch_sampler: Iterable[Any], indices: Iterable[int]) -> _SkippingSampler:
    """Return a batch sampler that leaves out every batch with one of some samples.

    A loss spike or a NaN that one batch causes is often overcome by resuming from a checkpoint and skipping that batch.

    Args:
        batch_sampler: the batch sampler of your loader.
        indices: the samples to skip, as `Dump.skip_list` returns them.

    Example:
        >>> sampler = BatchSampler(RandomSampler(dataset), 32, drop_last=True)
        >>> skip = tachograph.read("greyjacket").dumps[-1].skip_list()
        >>> loader = DataLoader(dataset, batch_sampler=tachograph.resume_skipping(sampler, skip))
    """
    return _SkippingSampler(batch_sampler, indices)


def read_dumps(folder: RunFolder) -> list[Dump]:
    """Return the dumps of a run and its ranks, oldest first."""
    dumps = []
    for dumps_path in (dumps_folder(folder), *rank_dumps_folders(folder)):
        for name in dump_names(dumps_path):
            document = read_document(dumps_path / name)
            if document is not None:
                dumps.append(Dump(dumps_path / name, document))
    return sorted(dumps, key=lambda dump: dump.time)
