"""The JSON models of diffs of several runs; see `_models` for the rules."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tachograph.catalog import KeyRanking, RunsDiff

__all__ = [
    "MAX_DIFF_RUNS",
    "DiffPage",
    "DiffQuery",
    "ImportancePage",
    "ImportanceQuery",
    "RunChoice",
]

MAX_DIFF_RUNS = 1_000
"""The number of runs that a filter selects for a diff, the newest ones."""

_Field = Annotated[str, Meta(min_length=1, max_length=512)]


class RunChoice(msgspec.Struct):
    """Select runs by their ids, or by an expression that they match."""

    run: Annotated[list[_Field], Meta(max_length=450)] = []
    """A run; can be repeated."""
    filter: Annotated[str, Meta(max_length=4_000)] = ""
    """Instead of runs: an expression that selects them, the newest 1,000."""


class DiffQuery(RunChoice):
    """Select runs, and the parts of their diff."""

    column: Annotated[list[_Field], Meta(max_length=40)] = []
    """A result to return beside the config, such as `val_loss.min`; can be repeated. Default: the best losses."""
    all: bool = False
    """Whether to return all config keys, not only the ones that differ and describe the training."""
    code: bool = True
    """Whether to return differences of git, packages, environment and source files, too."""


class ImportanceQuery(RunChoice):
    """Which runs to rank config keys for, and by which result."""

    metric: Annotated[str, Meta(max_length=512)] = ""
    """A result, such as `val_loss.min`. Default: the best validation loss, or else the best training loss."""


class DiffPage(RunsDiff, kw_only=True):
    """How runs differ, beside their results."""

    num_matching: int
    """The number of runs that match the filter; more than are returned if they are too many."""
    missing: list[str]
    """Named runs that do not exist."""
    indexed_share: float = msgspec.field(name="indexed")
    """The share of runs whose summary is known; ask again if it is below 1."""


class ImportancePage(msgspec.Struct):
    """Which config keys go with a result."""

    ranking: KeyRanking
    direction: int
    """-1 if lower results are better, 1 if higher ones are, 0 if unknown."""
    num_matching: int
    missing: list[str]
    """Named runs that do not exist."""
    indexed_share: float = msgspec.field(name="indexed")
