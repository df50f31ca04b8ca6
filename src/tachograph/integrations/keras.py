"""Keras 3: one callback for `fit`, `evaluate` and `predict`.

Keras tells its callbacks when a batch begins and ends, so an iteration lasts from the end of one batch to the end of
the next, and what lies before the second one's beginning is the wait for its data.
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
from tachograph._base.guard import guard, guarded_callback
from tachograph.exceptions import ConfigError
from tachograph.integrations._common.job import ASK_EVERY, Job, Names, Plan
from tachograph.recorder import Run
from tachograph.spans import Span, checkpoint_save, testing_loop, timed_span, validation_loop

__all__ = ["TachographCallback"]


_SAVING = ("save", "save_weights")

_guarded = guarded_callback("Keras")


class TachographCallback(keras.callbacks.Callback):
    """Records what a Keras model does: ``model.fit(…, callbacks=[TachographCallback("greyjacket")])``.

    A run that goes on is used; else one is begun, and ends with the process. `fit` records steps, epochs, validation
    and whatever saves the model; `evaluate` and `predict` record themselves where the callback is passed to them.

    Args:
        name: the name of the run.
        run: the run to record into, if it is not the current one.
        batch_size: samples in a batch, which Keras does not tell; without it, samples are not counted.
        checkpoint_path: where to save the model when a reader asks for a checkpoint, such as
            ``"asked-{step}.keras"``; without it, nothing is saved then.
        settings: settings of the run, as `tachograph.init` takes them.

    Raises:
        ConfigError: for a setting that does not exist, or a batch size or path that makes no sense.
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
            raise ConfigError(f"batch_size={batch_size!r}: a whole number of at least 1 is expected")
        self._path = None if checkpoint_path is None else os.fspath(checkpoint_path)
        if self._path is not None:
            _path_at(self._path, 0)
        self._job = Job("keras", Plan(run, name, settings))
        self._batch_size = batch_size
        self._num_batches = 0
        """Batches that the optimizer has seen, with those before a resume."""
        self._per_step = 1
        self._is_fitting = False
        self._epoch = 0
        self._first_batch = 0
        self._mark_s = perf_counter()
        """When Keras last told us something: what follows begins there."""
        self._iteration_s: float | None = None
        self._lr: float | None = None
        self._test: Span | None = None
        self._test_batch_s: float | None = None
        self._prediction: Span | None = None
        self._num_predicted = 0

    @property
    def run(self) -> Run | None:
        """The run that is recorded into, once something has begun."""
        return self._job.run

    def finish(self) -> None:
        """End the run now, if it was begun by this callback; otherwise it ends with the process."""
        self._job.finish()

    @property
    def _num_steps(self) -> int:
        return self._num_batches // self._per_step

    def _begin(self) -> Run:
        run = self._job.run
        if run is not None and run.status == "running":
            return run
        model, params = self.model, self.params or {}
        optimizer = getattr(model, "optimizer", None)
        facts = {**_model_facts(model), "backend": keras.backend.backend(), "first_step": 1}
        if optimizer is not None:
            facts |= {"optimizer": optimizer.name, "gradient_accumulation_steps": _per_step(optimizer)}
        if self._batch_size is not None:
            size = self._batch_size * _per_step(optimizer)
            facts |= {"batch_size": self._batch_size, "effective_batch_size": size}
        config = {"model": _model_config(model), "optimizer": _config_of(optimizer), "fit": dict(params)}
        self._job.first_step = 1
        return self._job.begin(config=config, facts=facts, version=keras.__version__)

    # Training ------------------------------------------------------------------------------------------------------

    @_guarded
    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Training begins; the loop does with its first epoch, when a checkpoint that is restored is there."""
        self._end_test()
        self._job.end_loop()
        self._begin()
        self._is_fitting = True
        self._watch_saving()

    @_guarded
    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """An epoch begins."""
        self._epoch = epoch
        if not self._job.is_in_loop:
            self._begin_loop(epoch)
        self._mark_s = perf_counter()

    def _begin_loop(self, epoch: int) -> None:
        self._begin()
        optimizer, params = getattr(self.model, "optimizer", None), self.params or {}
        self._per_step = _per_step(optimizer)
        self._num_batches = _num_batches(optimizer)
        self._iteration_s = None
        target = None
        if params.get("steps") and params.get("epochs"):
            num_left = (params["epochs"] - epoch) * params["steps"]
            target = (self._num_batches + num_left) // self._per_step
        world_size = ranks.world_size()
        if self._batch_size is not None:
            self._job.configure(global_batch_size=self._batch_size * self._per_step * world_size)
        self._job.configure(world_size=world_size)
        self._job.begin_loop(self._num_steps, target)

    @_guarded
    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """The data of a batch, or of several that are executed together, is there."""
        now_s = perf_counter()
        if self._iteration_s is None:
            self._iteration_s = self._mark_s
            self._job.begin_iteration(self._mark_s)
        self._job.phase(Names.DATA_LOADING, self._mark_s, now_s)
        self._first_batch = batch
        run = self._job.run
        if run is not None and (self._num_steps + 1) % run.log_every == 0:
            self._lr = _learning_rate(getattr(self.model, "optimizer", None))

    @_guarded
    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """A batch, or the last of several that are executed together, is done."""
        now_s = self._mark_s = perf_counter()
        run = self._job.run
        if run is None:
            return
        steps = (self.params or {}).get("steps") or math.inf
        before = self._num_steps
        self._num_batches += max(1, int(min(batch, steps - 1)) - self._first_batch + 1)
        num_done = self._num_steps - before
        if not num_done:
            return  # the gradients are kept for the next batch
        self._end_iterations(num_done, now_s)
        metrics = dict(logs or {})
        if "loss" in metrics:
            metrics.setdefault("train_loss", metrics["loss"])
        if self._lr is not None:
            metrics.setdefault("lr", self._lr)
            self._lr = None
        metrics.setdefault("epoch", self._epoch + min(1.0, (batch + 1) / steps))
        run.log(metrics, step=self._num_steps)
        self._steer(run, num_done)
        self._mark_s = perf_counter()

    def _end_iterations(self, num_done: int, now_s: float) -> None:
        """End an iteration; several that were executed together get equal parts of the time."""
        start_s = self._iteration_s if self._iteration_s is not None else now_s
        self._iteration_s = None
        part_s = (now_s - start_s) / num_done
        for place in range(num_done):
            if place:
                self._job.begin_iteration(start_s + place * part_s)
            self._job.end_iteration(start_s + (place + 1) * part_s)

    def _steer(self, run: Run, num_done: int) -> None:
        if ranks.world_size() > 1 and self._num_steps // ASK_EVERY == (self._num_steps - num_done) // ASK_EVERY:
            return
        asked = self._job.asked()
        if asked.stop:
            self.model.stop_training = True
        if asked.checkpoint and ranks.rank() == 0:
            if self._path is None:
                reason = "nobody said where to: TachographCallback(checkpoint_path=…) was not given"
                run.event("checkpoint_not_saved", step=self._num_steps, reason=reason)
            else:
                self.model.save(_path_at(self._path, self._num_steps))

    @_guarded
    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """An epoch is done, and the validation that belongs to it."""
        run = self._job.run
        if run is not None:
            found = {name: value for name, value in (logs or {}).items() if not name.startswith("val_")}
            if "loss" in found:
                found.setdefault("train_loss", found["loss"])
            run.log_epoch(epoch + 1, found, step=self._num_steps)

    @_guarded
    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Training is over."""
        self._is_fitting = False
        self._iteration_s = None
        self._forget_saving()
        self._job.end_loop()
        self._job.finish_if_interactive()

    # Saving --------------------------------------------------------------------------------------------------------

    def _watch_saving(self) -> None:
        """Time what saves the model while it is trained, a `ModelCheckpoint` or anything else."""
        self._forget_saving()  # training that failed may have left something
        model: Any = self.model
        for name in _SAVING:
            save = getattr(model, name, None)
            if save is not None and name not in model.__dict__:
                model.__dict__[name] = self._timed_save(save)  # not an attribute that Keras is to track

    def _forget_saving(self) -> None:
        model: Any = self.model
        kept = model.__dict__
        for name in _SAVING:
            if hasattr(kept.get(name), "_tachograph"):
                del kept[name]

    def _timed_save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(save)
        def saved(*arguments: Any, **named: Any) -> Any:
            span = None
            with guard("before Keras saves a model"):
                path = arguments[0] if arguments else named.get("filepath")
                place = path if isinstance(path, (str, os.PathLike)) else None
                span = self._job.begin_span(checkpoint_save(self._num_steps, path=place))
            try:
                result = save(*arguments, **named)
            except BaseException as error:
                with guard("after Keras failed to save a model"):
                    self._job.end_span(span, error=error)
                raise
            with guard("after Keras saved a model"):
                self._job.end_span(span)
            return result

        saved._tachograph = True  # type: ignore[attr-defined]
        return saved

    # Evaluation and prediction -------------------------------------------------------------------------------------

    @_guarded
    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """An evaluation begins: validation inside of `fit`, a test elsewhere."""
        self._end_test()
        self._begin()
        self._test = self._job.begin_span(validation_loop() if self._is_fitting else testing_loop())

    @_guarded
    def on_test_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """A batch is evaluated; the one before is done."""
        self._end_test_batch()
        self._test_batch_s = perf_counter()

    def _end_test_batch(self) -> None:
        recorder = self._test.recorder if self._test is not None else None
        if recorder is not None and self._test is not None and self._test_batch_s is not None:
            is_test = self._test.name == Names.TESTING_LOOP
            name = Names.TESTING_SINGLE_ITERATION if is_test else Names.VALIDATION_SINGLE_ITERATION
            recorder.add_finished_span(name, self._test_batch_s, perf_counter(), self._test)
        self._test_batch_s = None

    @_guarded
    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """An evaluation is done."""
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

    @_guarded
    def on_predict_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """A prediction begins."""
        self._job.end_span(self._prediction)
        self._begin()
        self._num_predicted = 0
        self._prediction = self._job.begin_span(timed_span("predict"))

    @_guarded
    def on_predict_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """A batch is predicted."""
        self._num_predicted += 1

    @_guarded
    def on_predict_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """A prediction is done."""
        span, self._prediction = self._prediction, None
        self._job.end_span(span, attributes={"num_batches": self._num_predicted})


# What a model says of itself -----------------------------------------------------------------------------------------


def _per_step(optimizer: Any) -> int:
    """Return how many batches make a step."""
    return int(getattr(optimizer, "gradient_accumulation_steps", None) or 1)


def _num_batches(optimizer: Any) -> int:
    """Return how many batches an optimizer has seen, which it keeps with the model."""
    seen = getattr(optimizer, "_iterations", None)
    if seen is None:
        seen = getattr(optimizer, "iterations", None)
    return 0 if seen is None else int(seen)


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


def _config_of(optimizer: Any) -> Any:
    if optimizer is None:
        return None
    with guard("asking an optimizer for its config"):
        return {"class_name": type(optimizer).__name__, **optimizer.get_config()}
    return None


def _path_at(path: str, step: int) -> str:
    try:
        return path.format(step=step)
    except (LookupError, ValueError) as error:
        raise ConfigError(f"checkpoint_path={path!r}: only {{step}} may stand in braces ({error})") from None
