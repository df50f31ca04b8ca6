"""`Completions`: buffer samples of a model's prompts and answers, and record them every N steps.

Example:
    >>> completions = tachograph.Completions(run, every=100)
    >>> for step in range(1_000):
    ...     completions.add(step, prompt=prompt, completion=answer, reward=reward)
    ...     completions.maybe_flush(step)
    >>> completions.flush()
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any

from tachograph._base.guard import guard
from tachograph.exceptions import ConfigError
from tachograph.recorder._run import RankRun, Run
from tachograph.recorder._start import current_run
from tachograph.recorder.collectors.completion_rows import completion_row

__all__ = ["Completions"]


class Completions:
    """A bounded buffer of samples, written as one `completions` record every N steps.

    A full buffer drops its oldest sample; the next record contains the number of dropped samples. A disabled run, a run
    with the setting `completions` off and ranks other than 0 keep nothing. Used as a context manager, it flushes the
    remaining samples on exit.
    """

    def __init__(
        self,
        run: Run | None = None,
        *,
        every: int | None = None,
        max_buffer: int | None = None,
        table: str = "completions",
    ) -> None:
        """Create an empty buffer.

        Args:
            run: the run to record into; the current run by default.
            every: steps between two records; the run's setting `completions_every` by default.
            max_buffer: maximum number of samples kept between two records; the run's setting `completions_buffer` by
                default.
            table: name of the table that the samples belong to.

        Raises:
            ConfigError: if a number is not an integer of at least 1, or the table name is empty.
            NoRunError: if no run is given and there is no current run.
        """
        for name, value in (("every", every), ("max_buffer", max_buffer)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}={value!r}: expected an integer of at least 1")
        if not isinstance(table, str) or not table:
            raise ConfigError(f'table={table!r}: expected a name, such as "completions"')
        self.table = table
        self.run = current_run() if run is None else run
        self.every = self.run.settings.completions_every if every is None else every
        self.max_buffer = self.run.settings.completions_buffer if max_buffer is None else max_buffer
        self._rows: deque[dict[str, Any]] = deque(maxlen=self.max_buffer)
        self._num_dropped = 0
        self._last_step: int | None = None
        self._flushed_step: int | None = None
        self._is_recording = self.run.enabled and self.run.settings.completions and not isinstance(self.run, RankRun)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Completions({self.table!r}, {len(self)} of {self.max_buffer} buffered, every {self.every} steps)"

    @property
    def is_recording(self) -> bool:
        """Whether samples are kept: not if the run or its setting `completions` is off, nor on ranks other than 0."""
        return self._is_recording

    def add(
        self,
        step: int,
        *,
        prompt: Any = None,
        completion: Any = None,
        chosen: Any = None,
        rejected: Any = None,
        **fields: Any,
    ) -> None:
        """Keep a sample until the next record. Values that are None are dropped.

        Args:
            step: the step that the sample belongs to.
            prompt: a string, or a list of chat messages; the same holds for the next three.
            completion: the model's answer, or the answer it is trained on.
            chosen: the preferred one of two answers.
            rejected: the other one.
            fields: other values of the sample, such as rewards, advantages and labels: numbers, strings or 0-d tensors.
        """
        if not self._is_recording:
            return
        with guard("buffering a completion"):
            number = _to_int(step)
            texts = {"prompt": prompt, "completion": completion, "chosen": chosen, "rejected": rejected}
            row = completion_row({"step": number, **texts, **fields})
            self._interval_start(number)
            self._num_dropped += len(self._rows) == self.max_buffer
            self._rows.append(row)
            self._last_step = number

    def maybe_flush(self, step: int) -> bool:
        """Record the buffer if at least `every` steps have passed since the last record; return whether it did."""
        if not self._rows or not self._is_recording:
            return False
        with guard("recording completions"):
            number = _to_int(step)
            if number - self._interval_start(number) >= self.every:
                return self.flush(number)
        return False

    def flush(self, step: int | None = None) -> bool:
        """Record the buffer now; return False if it was empty."""
        if not self._rows or not self._is_recording:
            return False
        with guard("recording completions"):
            number = self._last_step if step is None else _to_int(step)
            rows, num_dropped = list(self._rows), self._num_dropped
            self._rows.clear()
            self._num_dropped = 0
            self._flushed_step = number
            self.run.log_completions(rows, step=number, table=self.table, num_dropped=num_dropped)
            return True
        return False

    def __enter__(self) -> Completions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.flush()

    def _interval_start(self, step: int) -> int:
        """Return the step from which the current interval counts.

        A loop that starts late (a resumed run) or returns to an earlier step starts a new interval, aligned to a
        multiple of `every`, so that records stay at the same steps as without the interruption.
        """
        if self._flushed_step is None or step < self._flushed_step:
            self._flushed_step = max(0, (step - 1) // self.every * self.every)
        return self._flushed_step


def _to_int(step: Any) -> int:
    return step if type(step) is int else int(step)
