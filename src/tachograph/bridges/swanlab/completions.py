"""`CompletionLogger`: a bounded buffer of samples with a method for each kind of trainer."""

from __future__ import annotations

from collections import deque
from typing import Any

from tachograph._base.guard import guard
from tachograph.exceptions import ConfigError
from tachograph.recorder import Run, latest_run

__all__ = ["CompletionLogger"]


class CompletionLogger:
    """Buffers samples and records them into the current run. A full buffer drops its oldest sample.

    Args:
        maxlen: the number of samples to keep.
        run: the run to record into; the current run by default.

    Raises:
        ConfigError: if `maxlen` is below 1.
    """

    def __init__(self, maxlen: int = 128, *, run: Run | None = None) -> None:
        if isinstance(maxlen, bool) or not isinstance(maxlen, int) or maxlen < 1:
            raise ConfigError(f"maxlen={maxlen!r}: expected an integer of at least 1")
        self.maxlen = maxlen
        self._run = run
        self._rows: deque[dict[str, Any]] = deque(maxlen=maxlen)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"CompletionLogger(maxlen={self.maxlen}, buffered={len(self)}/{self.maxlen})"

    def add_dpo_completion(
        self, step: int, prompt: str, chosen: str, rejected: str, reward_diff: float | None = None
    ) -> None:
        """Keep a sample of DPO."""
        self._add(step=step, prompt=prompt, chosen=chosen, rejected=rejected, reward_diff=reward_diff)

    def add_cpo_completion(
        self, step: int, prompt: str, chosen: str, rejected: str, reward_diff: float | None = None
    ) -> None:
        """Keep a sample of CPO."""
        self._add(step=step, prompt=prompt, chosen=chosen, rejected=rejected, reward_diff=reward_diff)

    def add_kto_completion(
        self, step: int, prompt: str, completion: str, label: bool, reward: float | None = None
    ) -> None:
        """Keep a sample of KTO."""
        text = "desirable" if label else "undesirable"
        self._add(step=step, prompt=prompt, completion=completion, label=text, reward=reward)

    def add_orpo_completion(
        self, step: int, prompt: str, chosen: str, rejected: str, log_odds_ratio: float | None = None
    ) -> None:
        """Keep a sample of ORPO."""
        self._add(step=step, prompt=prompt, chosen=chosen, rejected=rejected, log_odds_ratio=log_odds_ratio)

    def add_grpo_completion(
        self,
        step: int,
        prompt: str,
        completion: str,
        reward: float | None = None,
        advantage: float | None = None,
    ) -> None:
        """Keep a sample of GRPO."""
        self._add(step=step, prompt=prompt, completion=completion, reward=reward, advantage=advantage)

    def _add(self, **row: Any) -> None:
        self._rows.append({name: value for name, value in row.items() if value is not None})

    def log_to_swanlab(self, table_name: str = "completions") -> bool:
        """Record the buffer as a table, which stays as it is; return False if it is empty or there is no run."""
        with guard("recording completions"):
            run = latest_run() if self._run is None else self._run
            if not self._rows or run is None or not run.enabled or run.status != "running":
                return False
            run.log_completions(list(self._rows), step=self._rows[-1]["step"], table=table_name)
            return True
        return False

    def clear(self) -> None:
        """Drop all samples."""
        self._rows.clear()
