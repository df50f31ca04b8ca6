"""`Completions`: samples of what a model is trained on or answers, kept in a small buffer and recorded now and then.

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
from tachograph.recorder._completion_rows import completion_row
from tachograph.recorder._run import RankRun, Run
from tachograph.recorder._start import current_run

__all__ = ["Completions"]


class Completions:
    """A bounded buffer of samples that becomes one `completions` record every so many steps.

    When it is full the oldest sample goes, and the next record says how many went. On a run that records nothing, and
    on ranks other than the first, nothing is kept. As a context manager it records what is left at the end.
    """

    def __init__(
        self, run: Run | None = None, *, every: int = 100, max_buffer: int = 128, table: str = "completions"
    ) -> None:
        """Get ready to record samples.

        Args:
            run: where to record; without it, the current run.
            every: steps between two records.
            max_buffer: samples that are kept between them, at most.
            table: a name for samples that belong together.

        Raises:
            ConfigError: if a number is below 1 or not whole, or the table has no name.
            NoRunError: if no run is given and there is none.
        """
        self.every = _whole("every", every, "how many steps lie between two records, such as 100")
        self.max_buffer = _whole("max_buffer", max_buffer, "how many samples are kept between them, such as 128")
        if not isinstance(table, str) or not table:
            raise ConfigError(f'table={table!r}: give the table a name, such as "completions"')
        self.table = table
        self.run = current_run() if run is None else run
        self._rows: deque[dict[str, Any]] = deque(maxlen=self.max_buffer)
        self._num_dropped = 0
        self._last_step: int | None = None
        self._flushed_step: int | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Completions({self.table!r}, {len(self)} of {self.max_buffer} buffered, every {self.every} steps)"

    @property
    def is_recording(self) -> bool:
        """Whether samples are kept: not by a run that is disabled, nor on ranks other than the first."""
        return self.run.enabled and not isinstance(self.run, RankRun)

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
        """Keep a sample until the next record. What is None is absent.

        Args:
            step: the step that the sample belongs to.
            prompt: a text, or messages as chat templates take them; so the other three.
            completion: what the model answered, or was taught to.
            chosen: of two answers, the one that is preferred.
            rejected: the other one.
            fields: whatever belongs to the sample: rewards, advantages, labels; numbers, texts and 0-d tensors.
        """
        if not self.is_recording:
            return
        with guard("keeping a completion"):
            number = _as_step(step)
            texts = {"prompt": prompt, "completion": completion, "chosen": chosen, "rejected": rejected}
            row = completion_row({"step": number, **texts, **fields})
            self._see(number)
            self._num_dropped += len(self._rows) == self.max_buffer
            self._rows.append(row)
            self._last_step = number

    def maybe_flush(self, step: int) -> bool:
        """Record what is buffered if enough steps have passed since the last time; return whether it was."""
        if not self._rows or not self.is_recording:
            return False
        with guard("recording completions"):
            number = _as_step(step)
            if number - self._see(number) >= self.every:
                return self.flush(number)
        return False

    def flush(self, step: int | None = None) -> bool:
        """Record what is buffered now; return whether there was anything."""
        if not self._rows or not self.is_recording:
            return False
        with guard("recording completions"):
            number = self._last_step if step is None else _as_step(step)
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

    def _see(self, step: int) -> int:
        """Return the step from which the next interval counts; one that begins late or goes back counts anew."""
        if self._flushed_step is None or step < self._flushed_step:
            self._flushed_step = max(0, (step - 1) // self.every * self.every)
        return self._flushed_step


def _whole(name: str, value: Any, meaning: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}={value!r}: must be a whole number of at least 1; it says {meaning}")
    return value


def _as_step(step: Any) -> int:
    return step if type(step) is int else int(step)
