"""`Problems`: collects what is wrong with a training, so that one message names several problems."""

from __future__ import annotations

from tachograph.exceptions import ConfigError

__all__ = ["Problems", "RowError", "TooManyProblems"]

MAX_PROBLEMS = 10
MAX_ROWS = 100


class RowError(Exception):
    """One row of the data cannot be used; the message says why, without the place."""


class TooManyProblems(Exception):  # noqa: N818 - it ends a search, and never reaches the user
    """Enough problems were found to stop the search."""


class Problems:
    """The problems found so far. Adding raises `TooManyProblems` after ten of them, or after a hundred bad rows."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._found: list[str] = []
        self._rows: dict[str, int] = {}
        """The number of further rows with the same problem, by its message without the place."""
        self._place_of: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, problem: str) -> None:
        """Add a problem: what is wrong, where, and what to do."""
        if problem not in self._found:
            self._found.append(problem)
        if len(self._found) >= MAX_PROBLEMS:
            raise TooManyProblems

    def add_row(self, place: str, problem: str) -> None:
        """Add a problem of a row. The same problem of several rows is named once, with the first place."""
        if problem in self._rows:
            self._rows[problem] += 1
        else:
            self._rows[problem] = 0
            self._place_of[f"{place}: {problem}"] = problem
            self.add(f"{place}: {problem}")
        if sum(self._rows.values()) >= MAX_ROWS:
            raise TooManyProblems

    def raise_if_any(self) -> None:
        """Raise one error that names all problems.

        Raises:
            ConfigError: if there are problems.
        """
        if not self._found:
            return
        found = [problem + self._repeated(problem) for problem in self._found]
        if len(found) == 1:
            raise ConfigError(f"{self._origin}: {found[0]}")
        at_least = "at least " if len(found) >= MAX_PROBLEMS else ""
        lines = "".join(f"\n  - {problem}" for problem in found)
        raise ConfigError(f"{self._origin}: {at_least}{len(found)} problems{lines}")

    def _repeated(self, problem: str) -> str:
        count = self._rows.get(self._place_of.get(problem, ""), 0)
        at_least = "at least " if count >= MAX_ROWS - MAX_PROBLEMS else ""
        return f" (the same in {at_least}{count} more row{'s' * (count != 1)})" if count else ""
