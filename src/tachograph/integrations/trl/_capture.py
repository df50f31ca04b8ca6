"""Capture samples from a running TRL trainer.

How it works: `CompletionCapture` replaces one method of one trainer object (never of its class), the method after
which the samples exist: `_generate_and_score_completions` for GRPO and RLOO, `compute_loss` for the others. The
replacement decides first whether this step is sampled; usually it is not, and the only cost is one comparison. For a
sampled step it also observes the few inner calls whose results the trainer would discard (see `_samples`), calls the
original, reads rows from the trainer, and restores the inner calls.

Training stays bit-identical: no random number is drawn, no model is called and only detached tensors are kept. Nothing
is gathered across ranks either: only rank 0 captures, so a collective started here would wait for the other ranks
forever. Rank 0 records its own samples. GRPO and RLOO gather theirs for their own logs, so there it has all samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tachograph._base.guard import guard
from tachograph._base.patching import Patches
from tachograph.integrations.trl._samples import EXTRACTORS, ObservedMethod, Row, SampleExtractor, scored_rows
from tachograph.recorder import Completions, Run

__all__ = ["CompletionCapture", "capture_completions"]

_SAMPLED_STEPS_PER_RECORD = 4
"""Sampled steps between two records; the first step of training is sampled in addition."""
_MAX_REASON_CHARS = 500


def capture_completions(
    trainer: Any, run: Run, *, every: int | None = None, max_buffer: int | None = None, table: str = "completions"
) -> CompletionCapture | None:
    """Record samples from a TRL trainer until `close` is called.

    An unknown TRL trainer, or one that differs from the supported versions, is reported once in the event
    `completions_unavailable`.

    Args:
        trainer: the trainer.
        run: the run to record into.
        every: steps between two records; the run's setting `completions_every` by default.
        max_buffer: maximum number of samples in a record; the run's setting `completions_buffer` by default.
        table: name of the table that the samples belong to.

    Returns:
        None if the trainer is not from TRL, or if no samples are recorded: see `Completions.is_recording`.

    Raises:
        ConfigError: if a number is below 1.
    """
    completions = Completions(run, every=every, max_buffer=max_buffer, table=table)
    is_from_trl = any(kind.__module__.partition(".")[0] == "trl" for kind in type(trainer).__mro__)
    if not is_from_trl or not completions.is_recording:
        return None
    capture = CompletionCapture(trainer, completions)
    capture.attach()
    return capture


class CompletionCapture:
    """Captures samples from one TRL trainer; see the module docstring."""

    def __init__(self, trainer: Any, completions: Completions) -> None:
        self._trainer = trainer
        self._completions = completions
        self._stride = max(1, completions.every // _SAMPLED_STEPS_PER_RECORD)
        self._max_per_step = max(1, completions.max_buffer // (_SAMPLED_STEPS_PER_RECORD + 1))
        self._patches = Patches()
        self._is_active = False
        self._step: int | None = None
        """The last step that was sampled."""
        self._num_captured = 0
        """Samples captured in that step."""

    def attach(self) -> None:
        """Start capturing samples."""
        names = [kind.__name__ for kind in type(self._trainer).__mro__]
        extractor = next((EXTRACTORS[name] for name in names if name in EXTRACTORS), None)
        if extractor is None:
            self._disable(f"capturing samples from {names[0]} is not supported")
            return
        method = getattr(self._trainer, extractor.method, None)
        if not callable(method):
            self._disable(f"this {names[0]} has no {extractor.method}()")
            return
        # `replace`, not `wrap`: two captures of one trainer, each with its own run, may stack.
        self._patches.replace(self._trainer, extractor.method, self._wrap_to_capture(method, extractor))
        self._is_active = True

    def on_step_end(self, step: int) -> None:
        """Record the captured samples if a record is due."""
        self._completions.maybe_flush(step)

    def on_log(self, step: int) -> None:
        """Record the captured samples if a record is due."""
        self._completions.maybe_flush(step)

    def add_scored(
        self,
        prompts: Sequence[Any],
        completions: Iterable[Any],
        rewards: Mapping[str, Iterable[float]],
        advantages: Iterable[float],
    ) -> None:
        """Capture completions of a trainer that reports them itself, and not through the replaced method."""
        max_rows = self._num_wanted(evaluates=False)
        if max_rows:
            rows = functools.partial(scored_rows, self._trainer, prompts, completions, rewards, advantages)
            self._add_rows(lambda: rows(max_rows=max_rows))

    def close(self) -> None:
        """Restore the trainer and record the remaining samples."""
        self._stop()
        self._completions.flush()

    def _wrap_to_capture(self, method: Callable[..., Any], extractor: SampleExtractor) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            max_rows = self._num_wanted()
            if not max_rows:
                return method(*args, **kwargs)
            extracts: list[Any] = []
            with Patches() as patches:
                self._observe_methods(extractor, args, extracts, patches)
                result = method(*args, **kwargs)
            batch = args[1] if len(args) > 1 else kwargs.get("inputs")
            self._add_rows(lambda: extractor.build_rows(self._trainer, batch, extracts, max_rows))
            return result

        return wrapper

    def _num_wanted(self, *, evaluates: bool = True) -> int:
        """Return how many samples to capture from the current call; 0 for nearly every call.

        Args:
            evaluates: whether the call may also belong to an evaluation, which is not sampled.
        """
        with guard("capturing completions"):
            if not self._is_active or (evaluates and not self._trainer.model.training):
                return 0
            step, last = self._trainer.state.global_step + 1, self._step
            if step != last:
                if last is not None and step > last and step // self._stride == last // self._stride:
                    return 0
                self._step, self._num_captured = step, 0
            return max(0, self._max_per_step - self._num_captured)
        return 0

    def _observe_methods(
        self, extractor: SampleExtractor, arguments: tuple[Any, ...], extracts: list[Any], patches: Patches
    ) -> None:
        with guard("capturing completions"):
            try:
                for method in extractor.observed_methods(self._trainer, arguments):
                    _observe(method, extracts, patches)
            except Exception as error:  # noqa: BLE001 - a subclass of a TRL trainer may differ in any way
                self._disable(f"{type(error).__name__}: {error}")

    def _add_rows(self, build_rows: Callable[[], list[Row]]) -> None:
        if not self._is_active:
            return
        with guard("capturing completions"):
            try:
                rows = build_rows()
            except Exception as error:  # noqa: BLE001 - as above
                self._disable(f"{type(error).__name__}: {error}")
                return
            self._num_captured += len(rows)
            for row in rows:
                self._completions.add(self._step or 0, **row)

    def _disable(self, reason: str) -> None:
        self._stop()
        kind = type(self._trainer).__name__
        self._completions.run.event("completions_unavailable", trainer=kind, reason=reason[:_MAX_REASON_CHARS])

    def _stop(self) -> None:
        # The flag matters where another library has wrapped our method: it then stays in place, but does nothing.
        self._is_active = False
        with guard("restoring a trainer"):
            self._patches.undo()


def _observe(method: ObservedMethod, extracts: list[Any], patches: Patches) -> None:
    """Append an extract of each call of a method to a list, until the patches are undone."""
    original = getattr(method.owner, method.name)
    is_open = True

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if is_open:
            with guard("capturing completions"):
                extracts.append(method.extract(args, kwargs, result))
        return result

    def close() -> None:
        nonlocal is_open
        is_open = False

    patches.replace(method.owner, method.name, wrapper)
    patches.on_undo(close)
