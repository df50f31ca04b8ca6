"""A callback for Hugging Face's `Trainer` that tells a framework's maintainers how training goes: three small events.

It passes raw numbers on; the schemas of the events round them. Nothing is told where usage telemetry is off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Protocol

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tachograph._base.guard import guarded_callback
from tachograph.usage._manager import TelemetryManager
from tachograph.usage._metrics import RuntimeMetricsTracker

__all__ = ["TIME_SINCE_LAST", "TelemetryCallback"]

TIME_SINCE_LAST = 60
"""Seconds since the last report after which a round number of steps is told early."""

_METRICS = {
    "loss": "loss",
    "eval_loss": "eval_loss",
    "ppl": "ppl",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "tokens/total": "tokens_total",
    "tokens/trainable": "tokens_trainable",
    "tokens/train_per_sec_per_gpu": "tokens_per_second_per_gpu",
}
"""What the trainer calls a metric when it logs, and what it is called in an event."""

_TOTALS = {
    "total_time_seconds": "total_s",
    "total_steps": "total_steps",
    "steps_per_second": "steps_per_second",
    "epochs_completed": "epochs_completed",
    "average_epoch_time_seconds": "average_epoch_s",
}
"""What `RuntimeMetrics.to_dict` calls a figure, and what it is called at the end of training."""

_PAUSE_S = 10.0
"""Between reports, devices that keep count of their peak are asked no sooner than after this time. To ask eight of them
takes a millisecond or two, which a trainer that logs every step would feel; only a peak that the training code has
reset meanwhile can be missed.
"""

_ALMOST = 1e-6
"""An epoch is counted in floating point, so its end may be missed by this much."""

_guarded = guarded_callback("the trainer")


class _Manager(Protocol):
    """What is asked of a `TelemetryManager`."""

    @property
    def enabled(self) -> bool: ...

    def send_event(self, name: str, properties: dict[str, Any], /) -> object: ...

    def before_end(self, last_word: Callable[[], None], /) -> object: ...

    def not_before_end(self, last_word: Callable[[], None], /) -> object: ...


class TelemetryCallback(TrainerCallback):
    """Tells how a `Trainer`'s training begins, goes on and ends: ``Trainer(…, callbacks=[TelemetryCallback()])``.

    Progress is told at the first step, then every 100 steps, and at multiples of 100 if a minute went by. Figures are
    those of this process: on resuming, steps and time before do not count, and `start_step` says where it went on.

    Args:
        manager: who sends the events; that of the application when training begins, if nothing is said.
    """

    report_interval_steps = 100
    """Steps between two reports of progress."""

    def __init__(self, manager: _Manager | None = None) -> None:
        self._manager = manager
        self._told: _Manager | None = None
        """Who is told of the training that is under way."""
        self._tracker: RuntimeMetricsTracker | None = None
        """There is one from the beginning of training to its end."""
        self._start_step = 0
        self._epoch: int | None = None
        self._last_report_step = 0
        self._last_report_s = 0.0
        self._metrics: dict[str, float] = {}
        self._metric_steps: dict[str, int] = {}
        self._train_loss: float | None = None

    # Beginning and end ---------------------------------------------------------------------------------------------

    @_guarded
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training begins, or goes on from a checkpoint."""
        self._end_unfinished()
        self._told = self._manager if self._manager is not None else TelemetryManager.get_instance()
        if not self._told.enabled:
            return
        self._told.before_end(self._end_unfinished)
        self._tracker = RuntimeMetricsTracker()
        self._start_step = self._last_report_step = state.global_step
        self._epoch, self._last_report_s = None, 0.0
        self._metrics, self._metric_steps, self._train_loss = {}, {}, None
        self._send(
            "train-start",
            start_step=state.global_step,
            max_steps=_planned(state.max_steps),
            num_epochs=_planned(state.num_train_epochs),
            resumed=state.global_step > 0,
            batch_size=_batch_size(args, state),
            gradient_accumulation=args.gradient_accumulation_steps,
            world_size=args.world_size,
        )

    @_guarded
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training is over."""
        if self._tracker is not None:
            self._tracker.update_memory_metrics()
            self._end(self._tracker, state.global_step, "finished")

    @_guarded
    def _end_unfinished(self) -> None:
        """Tell of a training that did not come to its end: another begins, or the process ends."""
        if self._tracker is not None:
            self._end(self._tracker, self._tracker.metrics.current_step or self._start_step, _outcome())

    def _end(self, tracker: RuntimeMetricsTracker, step: int, outcome: str) -> None:
        self._tracker = None
        if self._told is not None:
            self._told.not_before_end(self._end_unfinished)
        figures = tracker.metrics.to_dict()
        self._send(
            "train-end",
            **{ours: figures.get(name) for name, ours in _TOTALS.items()},
            **_peaks(tracker),
            outcome=outcome,
            step=step,
            start_step=self._start_step,
            train_loss=self._train_loss,
            metrics=dict(self._metrics),
            metric_steps=dict(self._metric_steps),
        )

    # Epochs and steps ----------------------------------------------------------------------------------------------

    @_guarded
    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An epoch begins, or training goes on in the midst of one."""
        tracker = self._tracker
        if tracker is None:
            return
        done = state.epoch or 0.0
        epoch = int(done + _ALMOST)
        is_first = self._epoch is None
        if self._epoch is not None:
            epoch = max(epoch, self._epoch + 1)  # one that was cut short leaves the trainer's count behind
        self._epoch = epoch
        if is_first and done - epoch > _ALMOST:  # the time of a part is not that of an epoch
            tracker.metrics.current_epoch = epoch
            tracker.update_memory_metrics()
        else:
            tracker.start_epoch(epoch)

    @_guarded
    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An epoch is done, or training stops in the midst of one."""
        tracker = self._tracker
        if tracker is None or self._epoch is None:
            return
        if (state.epoch or 0.0) >= self._epoch + 1 - _ALMOST:
            tracker.end_epoch(self._epoch)

    @_guarded
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A step is done; logging, evaluation and saving follow."""
        tracker = self._tracker
        if tracker is None:
            return
        tracker.update_step(state.global_step)
        elapsed_s = tracker.metrics.elapsed_time
        if self._is_due(state.global_step, elapsed_s):
            self._report(tracker, state, elapsed_s)
        elif control.should_log:
            tracker.update_gpu_memory_metrics(_PAUSE_S)

    def _is_due(self, step: int, elapsed_s: float) -> bool:
        if step == self._start_step + 1 or step - self._last_report_step >= self.report_interval_steps:
            return True
        return step % self.report_interval_steps == 0 and elapsed_s - self._last_report_s >= TIME_SINCE_LAST

    def _report(self, tracker: RuntimeMetricsTracker, state: TrainerState, elapsed_s: float) -> None:
        step = state.global_step
        num_steps, since_s = step - self._last_report_step, elapsed_s - self._last_report_s
        self._last_report_step, self._last_report_s = step, elapsed_s
        tracker.update_memory_metrics()
        self._send(
            "train-progress",
            step=step,
            start_step=self._start_step,
            epoch=None if state.epoch is None else int(state.epoch),
            progress=state.epoch,
            steps_per_second=num_steps / since_s if since_s > 0 else None,
            elapsed_s=elapsed_s,
            since_last_report_s=since_s,
            cpu_memory=tracker.cpu_memory,
            gpu_memory=list(tracker.gpu_memory.values()),
            **_peaks(tracker),
            metrics=dict(self._metrics),
            metric_steps=dict(self._metric_steps),
        )

    @_guarded
    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A batch was evaluated, which may need more memory than one that is trained with."""
        tracker = self._tracker
        if tracker is not None:
            tracker.update_gpu_memory_metrics(_PAUSE_S)

    @_guarded
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """The trainer logs: a step, what an evaluation found, or what all of training came to."""
        if self._tracker is None or not logs:
            return
        for name, ours in _METRICS.items():
            value = _number(logs.get(name))
            if value is not None:
                self._metrics[ours], self._metric_steps[ours] = value, state.global_step
        train_loss = _number(logs.get("train_loss"))
        if train_loss is not None:
            self._train_loss = train_loss

    # What all of them use ------------------------------------------------------------------------------------------

    def _send(self, event: str, **properties: Any) -> None:
        """Send what is known: None, and a group or list with nothing in it, is left out."""
        known = {name: value for name, value in properties.items() if value is not None and value not in ({}, [])}
        if self._told is not None:
            self._told.send_event(event, known)


def _peaks(tracker: RuntimeMetricsTracker) -> dict[str, Any]:
    metrics = tracker.metrics
    return {
        "peak_cpu_memory": metrics.peak_cpu_memory or None,
        "peak_gpu_memory": [peak_bytes for _index, peak_bytes in sorted(metrics.peak_gpu_memory.items())],
        "peak_gpu_memory_source": next(iter(metrics.gpu_peak_memory_source.values()), None),
    }


def _outcome() -> str:
    """Return how a training ended that did not finish, as far as the interpreter knows."""
    error = getattr(sys, "last_type", None)  # what nobody caught
    return "unfinished" if error is None else "interrupted" if error is KeyboardInterrupt else "failed"


def _planned(count: int | None) -> int | None:
    """Return how much is to be trained; None for what stands for no end or for nobody having said."""
    return count if count is not None and 0 < count < sys.maxsize else None


def _batch_size(args: TrainingArguments, state: TrainerState) -> int:
    """Return the samples of a device's batch: where the trainer looks for the largest that fits, what it found."""
    if args.auto_find_batch_size and state.train_batch_size:
        return int(state.train_batch_size // max(1, args.n_gpu))
    return int(args.per_device_train_batch_size)


def _number(value: Any) -> float | None:
    """Return a plain number. A tensor is none: to read it could mean to wait for a device."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)
