"""The ids of spans."""

from __future__ import annotations

import itertools
import os
import uuid

from tachograph.spans._span import Span

__all__ = ["SpanIds"]


class SpanIds:
    """Gives each span of a run a number that is unique among all attempts of the run.

    Args:
        run_id: the id of the run, 16 hexadecimal digits.
        is_recorded: whether the run has files; a run in memory counts from 1, so that tests can predict the ids.
    """

    def __init__(self, run_id: str, *, is_recorded: bool) -> None:
        first = int.from_bytes(os.urandom(4), "big") << 32 if is_recorded else 0
        self._run_id = run_id
        self._numbers = itertools.count(first + 1)
        self._new_numbers: dict[int, int] = {}

    def text_of(self, span: Span) -> str:
        """Return the id of a span as it is written in records."""
        return f"{self._number(span):016x}"

    def uuid_of(self, span: Span) -> uuid.UUID:
        """Return the id of a span, prefixed with the id of its run."""
        run_part = int(self._run_id, 16) if len(self._run_id) == 16 else 0
        return uuid.UUID(int=run_part << 64 | self._number(span))

    def _number(self, span: Span) -> int:
        extras = span.extras
        if not isinstance(extras.id, int):
            # The writer may ask for it first, too. Not with a lock: a signal handler that ends the run waits for the
            # writer. The first one decides on the number, and removes it when the span has it.
            number = self._new_numbers.setdefault(id(extras), next(self._numbers))
            if not isinstance(extras.id, int):
                extras.id = number
            self._new_numbers.pop(id(extras), None)
        return extras.id
