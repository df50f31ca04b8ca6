"""`Problems`: collects the errors in a config and its data, so that one message names several."""

from __future__ import annotations

from tachograph.exceptions import ConfigError

__all__ = ["Problems", "RowError", "TooManyProblems"]

MAX_PROBLEMS = 10
MAX_ROWS = 100


class RowError(Exception):
    """One row of the data cannot be used; the message says why, without the location."""


class TooManyProblems(Exception):  # noqa: N818 - it ends a search, and never reaches the user
    """Enough problems were found to stop the search."""


class Problems:
    """The problems found so far. Adding raises `TooManyProblems` after ten of them, or after a hundred bad rows."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._problems: list[str] = []
        self._num_repeats: dict[str, int] = {}
        """The number of further rows with the same problem, by its message without the location."""
        self._row_problem_of: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._problems)

    def add(self, problem: str) -> None:
        """Add a problem: the error, its location, and the remedy."""
        if problem not in self._problems:
            self._problems.append(problem)
        if len(self._problems) >= MAX_PROBLEMS:
            raise TooManyProblems

    def add_row(self, location: str, problem: str) -> None:
        """Add a problem of a row. The same problem of several rows is named once, with the first location."""
        if problem in self._num_repeats:
            self._num_repeats[problem] += 1
        else:
            self._num_repeats[problem] = 0
            self._row_problem_of[f"{location}: {problem}"] = problem
            self.add(f"{location}: {problem}")
        if sum(self._num_repeats.values()) >= MAX_ROWS:
            raise TooManyProblems

    def raise_if_any(self) -> None:
        """Raise one error that names all problems.

        Raises:
            ConfigError: if there are problems.
        """
        if not self._problems:
            return
        texts = [problem + self._repeat_note(problem) for problem in self._problems]
        if len(texts) == 1:
            raise ConfigError(f"{self._origin}: {texts[0]}")
        at_least = "at least " if len(texts) >= MAX_PROBLEMS else ""
        lines = "".join(f"\n  - {problem}" for problem in texts)
        raise ConfigError(f"{self._origin}: {at_least}{len(texts)} problems{lines}")

    def _repeat_note(self, problem: str) -> str:
        count = self._num_repeats.get(self._row_problem_of.get(problem, ""), 0)
        at_least = "at least " if count >= MAX_ROWS - MAX_PROBLEMS else ""
        return f" (the same in {at_least}{count} more row{'s' * (count != 1)})" if count else ""
