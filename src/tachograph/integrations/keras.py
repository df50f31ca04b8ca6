"""Keras 3: one callback for `fit`, `evaluate` and `predict`.

Keras calls hooks at the start and at the end of a batch, and none around the fetch of its data. So an iteration lasts
from the end of one batch to the end of the next, and the time until that batch starts counts as data loading. With
gradient accumulation an iteration spans several batches. With `steps_per_execution` one pair of hooks spans several
iterations, which get equal shares of the time.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import keras

from tachograph._base import ranks
from tachograph._base.guard import guard
from tachograph.exceptions import ConfigError
from tachograph.integrations._common.governor import OverheadGovernor, timed_callback
from tachograph.integrations._common.integration_run import SYNC_REQUESTS_EVERY, IntegrationRun, Names, RunOptions
from tachograph.recorder import Run
from tachograph.spans import Span, checkpoint_save, testing_loop, timed_span, validation_loop

__all__ = ["TachographCallback"]


_SAVE_METHODS = ("save", "save_weights")
_WRAPPER_MARK = "_tachograph"

_hook = timed_callback("Keras")


class TachographCallback(keras.callbacks.Callback):
    """Records the training of a Keras model: ``model.fit(…, callbacks=[TachographCallback("greyjacket")])``.

    Uses the current run if there is one. Otherwise it starts a run, which ends with the process. `fit` records steps,
    epochs, validation and saves of the model. Pass the callback to `evaluate` and `predict` to record them as well.

    Args:
        name: the name of the run.
        run: the run to record into; the current run by default.
        batch_size: samples in a batch, which Keras does not pass to callbacks; without it, samples are not counted.
        checkpoint_path: where to save the model when a reader requests a checkpoint, such as
            ``"requested-{step}.keras"``; without it, such a request saves nothing.
        settings: settings of the run, as for `tachograph.init`.

    Raises:
        ConfigError: if a setting does not exist, or the batch size or the path is invalid.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        run: Run | None = None,
        batch_size: int | None = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
            raise ConfigError(f"batch_size={batch_size!r}: expected an integer of at least 1")
        self._checkpoint_path = None if checkpoint_path is None else os.fspath(checkpoint_path)
        if self._checkpoint_path is not None:
            _checkpoint_path(self._checkpoint_path, 0)
        self._job = IntegrationRun("keras", RunOptions(run, name, settings))
        self._batch_size = batch_size
        self._num_batches = 0
        """Batches that the optimizer has processed, including those before a resume."""
        self._batches_per_step = 1
        self._is_fitting = False
        self._epoch = 0
        self._first_batch = 0
        self._last_event_s = perf_counter()
        """When the last hook returned: the time since then belongs to the next phase."""
        self._iteration_start_s: float | None = None
        self._lr: float | None = None
        self._test: Span | None = None
        self._test_batch_start_s: float | None = None
        self._prediction: Span | None = None
        self._num_predicted = 0

    @property
    def governor(self) -> OverheadGovernor:
        """Decides which steps are recorded in detail; every hook adds its time to it."""
        return self._job.governor

    @property
    def run(self) -> Run | None:
        """The run, once it is started."""
        return self._job.run

    def finish(self) -> None:
        """Finish the run now, if this callback started it; otherwise it ends with the process."""
        self._job.finish()

    @property
    def _num_steps(self) -> int:
        return self._num_batches // self._batches_per_step

    def _begin_run(self) -> Run:
        run = self._job.run
        if run is not None and run.status == "running":
            return run
        model, params = self.model, self.params or {}
        optimizer = getattr(model, "optimizer", None)
        facts = {**_model_facts(model), "backend": keras.backend.backend(), "first_step": 1}
        if optimizer is not None:
            facts |= {"optimizer": optimizer.name, "gradient_accumulation_steps": _batches_per_step(optimizer)}
        if self._batch_size is not None:
            size = self._batch_size * _batches_per_step(optimizer)
            facts |= {"batch_size": self._batch_size, "effective_batch_size": size}
        config = {"model": _model_config(model), "optimizer": _optimizer_config(optimizer), "fit": dict(params)}
        self._job.first_step = 1
        return self._job.begin(config=config, facts=facts, version=keras.__version__)

    # Training ------------------------------------------------------------------------------------------------------

    @_hook
    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Start the run. The loop starts with the first epoch, when `BackupAndRestore` has restored its checkpoint."""
        self._end_test()
        self._job.end_loop()
        self._begin_run()
        self._is_fitting = True
        self._observe_saving()

    @_hook
    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Start the loop, if this is its first epoch."""
        self._epoch = epoch
        if not self._job.is_in_loop:
            self._begin_loop(epoch)
        self._last_event_s = perf_counter()

    def _begin_loop(self, epoch: int) -> None:
        self._begin_run()
        optimizer, params = getattr(self.model, "optimizer", None), self.params or {}
        self._batches_per_step = _batches_per_step(optimizer)
        self._num_batches = _batches_done(optimizer)
        self._iteration_start_s = None
        target = None
        if params.get("steps") and params.get("epochs"):
            num_left = (params["epochs"] - epoch) * params["steps"]
            target = (self._num_batches + num_left) // self._batches_per_step
        world_size = ranks.world_size()
        if self._batch_size is not None:
            self._job.configure(global_batch_size=self._batch_size * self._batches_per_step * world_size)
        self._job.configure(world_size=world_size)
        self._job.begin_loop(self._num_steps, target)

    @_hook
    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Start a batch, or several that are executed together. Their data has been fetched."""
        now_s = perf_counter()
        if self._iteration_start_s is None:
            self._iteration_start_s = self._last_event_s
            self._job.begin_iteration(self._last_event_s)
        self._job.add_data_wait(self._last_event_s, now_s)
        self._first_batch = batch
        run = self._job.run
        if run is not None and (self._num_steps + 1) % run.log_every == 0:
            self._lr = _learning_rate(getattr(self.model, "optimizer", None))

    @_hook
    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """End a batch, or several that are executed together. `batch` is the index of the last one."""
        now_s = self._last_event_s = perf_counter()
        run = self._job.run
        if run is None:
            return
        steps = (self.params or {}).get("steps") or math.inf
        before = self._num_steps
        self._num_batches += max(1, int(min(batch, steps - 1)) - self._first_batch + 1)
        num_done = self._num_steps - before
        if not num_done:
            return  # the gradients are accumulated
        self._end_iterations(num_done, now_s)
        metrics = dict(logs or {})
        if "loss" in metrics:
            metrics.setdefault("train_loss", metrics["loss"])
        if self._lr is not None:
            metrics.setdefault("lr", self._lr)
            self._lr = None
        metrics.setdefault("epoch", self._epoch + min(1.0, (batch + 1) / steps))
        run.log(metrics, step=self._num_steps)
        self._apply_requests(run, num_done)
        self._last_event_s = perf_counter()

    def _end_iterations(self, num_done: int, now_s: float) -> None:
        """End an iteration, or several that were executed together and get equal shares of the time."""
        start_s = self._iteration_start_s if self._iteration_start_s is not None else now_s
        self._iteration_start_s = None
        share_s = (now_s - start_s) / num_done
        for index in range(num_done):
            if index:
                self._job.begin_iteration(start_s + index * share_s)
            self._job.end_iteration(start_s + (index + 1) * share_s)

    def _apply_requests(self, run: Run, num_done: int) -> None:
        if (
            ranks.world_size() > 1
            and self._num_steps // SYNC_REQUESTS_EVERY == (self._num_steps - num_done) // SYNC_REQUESTS_EVERY
        ):
            return
        actions = self._job.requested_actions()
        if actions.stop:
            self.model.stop_training = True
        if actions.checkpoint and ranks.rank() == 0:
            if self._checkpoint_path is None:
                reason = "no path to save to: pass TachographCallback(checkpoint_path=…)"
                run.event("checkpoint_not_saved", step=self._num_steps, reason=reason)
            else:
                self.model.save(_checkpoint_path(self._checkpoint_path, self._num_steps))

    @_hook
    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Record an epoch. Its validation has been recorded by `on_test_end`."""
        run = self._job.run
        if run is not None:
            metrics = {name: value for name, value in (logs or {}).items() if not name.startswith("val_")}
            if "loss" in metrics:
                metrics.setdefault("train_loss", metrics["loss"])
            run.log_epoch(epoch + 1, metrics, step=self._num_steps)

    @_hook
    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """End the loop and restore the model."""
        self._is_fitting = False
        self._iteration_start_s = None
        self._restore_saving()
        self._job.end_loop()
        self._job.finish_if_interactive()

    # Saving --------------------------------------------------------------------------------------------------------

    # Not with `Patches`, which sets attributes of the model: Keras tracks those. The model's dict is changed instead.

    def _observe_saving(self) -> None:
        """Time everything that saves the model during training, a `ModelCheckpoint` or the user's own code."""
        self._restore_saving()  # a fit that raised has not restored it
        model: Any = self.model
        for name in _SAVE_METHODS:
            save = getattr(model, name, None)
            if save is not None and name not in model.__dict__:
                model.__dict__[name] = wrapper = functools.wraps(save)(self._timed_save(save))
                setattr(wrapper, _WRAPPER_MARK, True)

    def _restore_saving(self) -> None:
        model: Any = self.model
        for name in _SAVE_METHODS:
            if hasattr(model.__dict__.get(name), _WRAPPER_MARK):
                del model.__dict__[name]

    def _timed_save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            span = None
            with guard("starting a checkpoint span"):
                path = args[0] if args else kwargs.get("filepath")
                where = path if isinstance(path, (str, os.PathLike)) else None
                span = self._job.begin_span(checkpoint_save(self._num_steps, path=where))
            try:
                result = save(*args, **kwargs)
            except BaseException as error:
                with guard("recording a failed save"):
                    self._job.end_span(span, error=error)
                raise
            with guard("recording a save"):
                self._job.end_span(span)
            return result

        return wrapper

    # Evaluation and prediction -------------------------------------------------------------------------------------

    @_hook
    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Start an evaluation: a validation inside `fit`, otherwise a test."""
        self._end_test()
        self._begin_run()
        self._test = self._job.begin_span(validation_loop() if self._is_fitting else testing_loop())

    @_hook
    def on_test_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """End the previous batch of an evaluation, and start the next."""
        self._end_test_batch()
        self._test_batch_start_s = perf_counter()

    def _end_test_batch(self) -> None:
        recorder = self._test.recorder if self._test is not None else None
        if recorder is not None and self._test is not None and self._test_batch_start_s is not None:
            is_test = self._test.name == Names.TESTING_LOOP
            name = Names.TESTING_SINGLE_ITERATION if is_test else Names.VALIDATION_SINGLE_ITERATION
            recorder.add_finished_span(name, self._test_batch_start_s, perf_counter(), self._test)
        self._test_batch_start_s = None

    @_hook
    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """End an evaluation and record its results."""
        self._end_test_batch()
        self._end_test()
        run = self._job.run
        if run is None or not logs:
            return
        if self._is_fitting:
            run.log_validation(logs, step=self._num_steps, epoch=self._epoch + 1)
        else:
            run.log_test(logs, step=self._num_steps or None)

    def _end_test(self) -> None:
        span, self._test = self._test, None
        self._job.end_span(span)

    @_hook
    def on_predict_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Start the span of a prediction."""
        self._job.end_span(self._prediction)
        self._begin_run()
        self._num_predicted = 0
        self._prediction = self._job.begin_span(timed_span("predict"))

    @_hook
    def on_predict_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Count a batch of a prediction."""
        self._num_predicted += 1

    @_hook
    def on_predict_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """End the span of a prediction."""
        span, self._prediction = self._prediction, None
        self._job.end_span(span, attributes={"num_batches": self._num_predicted})


# Facts about the model and its optimizer ------------------------------------------------------------------------------


def _batches_per_step(optimizer: Any) -> int:
    """Return the number of batches in an optimizer step."""
    return int(getattr(optimizer, "gradient_accumulation_steps", None) or 1)


def _batches_done(optimizer: Any) -> int:
    """Return how many batches an optimizer has processed. The count is saved with the model."""
    # Private: with gradient accumulation, the public `iterations` counts steps instead of batches.
    count = getattr(optimizer, "_iterations", None)
    if count is None:
        count = getattr(optimizer, "iterations", None)
    return 0 if count is None else int(count)


def _learning_rate(optimizer: Any) -> float | None:
    rate = getattr(optimizer, "learning_rate", None)
    return None if rate is None else float(rate)


def _model_facts(model: Any) -> dict[str, Any]:
    if model is None or not getattr(model, "built", False):
        return {}
    return {
        "model_class": type(model).__name__,
        "total_params": sum(math.prod(weight.shape) for weight in model.weights),
        "trainable_params": sum(math.prod(weight.shape) for weight in model.trainable_weights),
    }


def _model_config(model: Any) -> dict[str, Any]:
    loss = getattr(model, "loss", None)
    return {
        "name": getattr(model, "name", None),
        "class_name": type(model).__name__,
        "num_layers": len(getattr(model, "layers", ())),
        "loss": loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", None),
    }


def _optimizer_config(optimizer: Any) -> Any:
    if optimizer is None:
        return None
    with guard("reading the config of an optimizer"):
        return {"class_name": type(optimizer).__name__, **optimizer.get_config()}
    return None


def _checkpoint_path(path: str, step: int) -> str:
    try:
        return path.format(step=step)
    except (LookupError, ValueError) as error:
        raise ConfigError(f"checkpoint_path={path!r}: only {{step}} is allowed in braces ({error})") from None
