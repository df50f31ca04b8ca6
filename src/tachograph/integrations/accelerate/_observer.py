"""Observes the training loop of one accelerator: steps, phases and checkpoints.

How it works: Accelerate leaves the loop to the user, so there is no hook for a step. The observer wraps the methods of
one accelerator object (`backward`, `save_state`, `load_state`, `prepare*`), and hooks into everything it prepares:

- The step hooks of an optimizer end an iteration. They are registered with the inner optimizer, so a step that is
  skipped (gradient accumulation, an overflow of mixed precision) does not call them.
- The forward hooks of a model time the forward pass, in training mode only.
- `__iter__` of a loader's base loader is wrapped to time each fetch. Fetches are kept until the next backward pass or
  optimizer step of a loop claims them. So an iteration starts when its first batch was requested, and an evaluation
  between two steps belongs to no iteration.

`detach` removes all of it. Nothing else in the process is touched, such as the accelerator inside a `Trainer`.
"""

from __future__ import annotations

import functools
import json
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from accelerate import Accelerator

from tachograph._base.files import replace_file
from tachograph._base.guard import faults, guard
from tachograph._base.patching import Patches
from tachograph.integrations._common.integration_run import IntegrationRun, Names
from tachograph.integrations._common.phases import PhaseMarks
from tachograph.reader import CHECKPOINT_RUN_FILE
from tachograph.recorder import Run
from tachograph.spans import checkpoint_load, checkpoint_save

__all__ = ["AcceleratorObserver"]

_MAX_FETCHES = 64


class AcceleratorObserver:
    """Observes one accelerator and the objects that it prepares; see the module docstring.

    Args:
        accelerator: the accelerator.
        job: receives iterations, phases and spans.
        begin_run: starts the run, or returns the one that is open.
        target: the number of optimizer steps to train for, if known.
    """

    def __init__(
        self, accelerator: Accelerator, job: IntegrationRun, begin_run: Callable[[], Run], target: int | None
    ) -> None:
        self.accelerator = accelerator
        self.num_steps = 0
        self.lr: float | None = None
        """The learning rate of the last step."""
        self._job = job
        self._begin_run = begin_run
        self._target = target
        self._patches = Patches()
        self._hooked_objects: weakref.WeakSet[Any] = weakref.WeakSet()
        self._num_prepared = 0
        self._fetches: deque[tuple[int, float, float]] = deque(maxlen=_MAX_FETCHES)
        """The loader's id, start and end of each fetch that no iteration has claimed yet."""
        self._marks = self._next_marks()
        self._last_end_s: float | None = None
        """When the last iteration or checkpoint ended: the next iteration starts there if no fetch was timed."""
        self._is_in_iteration = False
        self._has_step_hooks = False
        """Whether an optimizer with step hooks is prepared."""
        self._is_loading = False
        for name in ("prepare", "prepare_data_loader", "prepare_model", "prepare_optimizer"):
            self._wrap(accelerator, name, self._wrap_prepare)
        self._wrap(accelerator, "init_trackers", self._wrap_init_trackers)
        self._patches.wrap(accelerator, "backward", self._timed_backward)  # its mark shows that a tracker is attached
        self._wrap(accelerator, "save_state", self._timed_save)
        self._wrap(accelerator, "load_state", self._timed_load)
        self._hook_prepared()

    def detach(self) -> None:
        """End the loop, remove all hooks and restore the accelerator."""
        self._job.end_loop()
        self._patches.undo()

    def set_step(self, step: int) -> None:
        """Continue counting at a step. An open loop ends."""
        self._job.end_loop()
        self._is_in_iteration = False
        self.num_steps = step

    def _wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        # Not `Patches.wrap`: zero-code instrumentation wraps `Accelerator.save_state` in the class, and `wrap` would
        # refuse to wrap it a second time.
        original = getattr(owner, name)
        self._patches.replace(owner, name, functools.wraps(original)(make(original)))

    # Prepared objects ----------------------------------------------------------------------------------------------

    def _wrap_prepare(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = prepare(*args, **kwargs)
            with guard("hooking into prepared objects"):
                self._hook_prepared()
            return result

        return wrapper

    def _wrap_init_trackers(self, init_trackers: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = init_trackers(*args, **kwargs)
            self._begin_run()  # unguarded: invalid settings must raise
            return result

        return wrapper

    def _hook_prepared(self) -> None:
        # Private lists: only they hold the objects that an accelerator has prepared.
        accelerator, undo = self.accelerator, self._patches.on_undo
        self._num_prepared = _num_prepared(accelerator)
        for optimizer in accelerator._optimizers:
            inner = getattr(optimizer, "optimizer", optimizer)
            if self._is_new(inner) and hasattr(inner, "register_step_post_hook"):
                undo(inner.register_step_pre_hook(self._before_step).remove)
                undo(inner.register_step_post_hook(self._after_step).remove)
                self._has_step_hooks = True
        for model in accelerator._models:
            if self._is_new(model):
                undo(model.register_forward_pre_hook(self._before_forward).remove)
                undo(model.register_forward_hook(self._after_forward).remove)
        for loader in accelerator._dataloaders:
            # The prepared loader calls `base_dataloader.__iter__()` by name, so an instance attribute is found.
            base = getattr(loader, "base_dataloader", None)
            if base is not None and self._is_new(loader):
                self._wrap(base, "__iter__", functools.partial(self._timed_iter, id(loader)))

    def _is_new(self, instance: Any) -> bool:
        is_new = instance not in self._hooked_objects
        self._hooked_objects.add(instance)
        return is_new

    def _timed_iter(self, loader: int, iterate: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper() -> Iterator[Any]:
            return _TimedIterator(iterate(), lambda start_s, stop_s: self._fetches.append((loader, start_s, stop_s)))

        return wrapper

    def _before_forward(self, model: Any, _arguments: Any) -> None:
        with self._job.governor.hook("timing a forward pass"):
            if model.training and torch.is_grad_enabled():
                self._marks.mark(None)

    def _after_forward(self, model: Any, _arguments: Any, _output: Any) -> None:
        with self._job.governor.hook("timing a forward pass"):
            if model.training and torch.is_grad_enabled():
                self._marks.mark(Names.MODEL_FORWARD)

    # Steps ---------------------------------------------------------------------------------------------------------

    def _timed_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._job.governor.hook("timing a backward pass"):
                self._enter_iteration()
                self._marks.mark(None)
            result = backward(*args, **kwargs)
            with self._job.governor.hook("timing a backward pass"):
                self._marks.mark(Names.MODEL_BACKWARD)
                if not self._has_step_hooks and self.accelerator.sync_gradients:
                    self._end_iteration()  # the step follows, or is part of the backward call (DeepSpeed)
            return result

        return wrapper

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with self._job.governor.hook("timing an optimizer step"):
            if self._is_loading:
                return
            self._enter_iteration()
            self._marks.mark(None)
            rate = optimizer.param_groups[0].get("lr")
            if self._is_first(optimizer) and isinstance(rate, (int, float)):
                self.lr = float(rate)

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with self._job.governor.hook("timing an optimizer step"):
            if self._is_loading:
                return
            self._marks.mark(Names.OPTIMIZER_UPDATE)
            if self._is_first(optimizer):
                self._end_iteration()

    def _is_first(self, optimizer: Any) -> bool:
        """Return whether an optimizer is the first prepared one. With several, only its steps are counted."""
        first = next(iter(self.accelerator._optimizers), None)
        return getattr(first, "optimizer", first) is optimizer

    def _enter_iteration(self) -> None:
        """Start an iteration if none is open, and add the fetches of the active loader to it."""
        accelerator, job = self.accelerator, self._job
        if self._num_prepared != _num_prepared(accelerator):
            self._hook_prepared()
        loader = accelerator.gradient_state.active_dataloader
        fetches = [(start_s, stop_s) for fetched_by, start_s, stop_s in self._fetches if fetched_by == id(loader)]
        self._fetches.clear()
        self._begin_run()
        if not job.is_in_loop:
            batch_size = getattr(loader, "total_batch_size", None) if loader is not None else None
            job.configure(
                world_size=accelerator.num_processes,
                global_batch_size=batch_size * accelerator.gradient_accumulation_steps if batch_size else None,
            )
            job.begin_loop(self.num_steps, self._target)
        if not self._is_in_iteration:
            job.open_iteration(fetches[0][0] if fetches else self._last_end_s or perf_counter())
            self._is_in_iteration = True
        for start_s, stop_s in fetches:
            job.add_data_wait(start_s, stop_s)

    def _end_iteration(self) -> None:
        marks, self._marks = self._marks, self._next_marks()
        self._last_end_s = perf_counter()
        self._is_in_iteration = False
        self.num_steps += 1
        self._job.end_iteration(self._last_end_s, marks=marks)

    def _next_marks(self) -> PhaseMarks:
        """Return marks for the next iteration, whose forward pass comes before anything that starts an iteration."""
        _, samples_phases = self._job.governor.start_iteration()
        return PhaseMarks(self.accelerator.device.type == "cuda", samples_phases)

    # Checkpoints ---------------------------------------------------------------------------------------------------

    def _timed_save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            span = None
            with guard("starting a checkpoint span"):
                self._begin_run()
                path = self._save_path(*args, **kwargs)
                span = self._job.begin_span(checkpoint_save(self.num_steps, path=path))
            try:
                result = save(*args, **kwargs)
            except BaseException as error:
                with guard("recording a failed checkpoint"):
                    self._job.end_span(span, error=error)
                raise
            with guard("recording a checkpoint"):
                if self.accelerator.is_main_process:
                    self._write_run_file(result)
                self._job.end_span(span)
                self._last_end_s = perf_counter()
            return result

        return wrapper

    def _save_path(self, output_dir: str | None = None, *_args: Any, **_kwargs: Any) -> str | None:
        """Return where `save_state` will save; it picks the folder itself if checkpoints are named automatically."""
        accelerator = self.accelerator
        if accelerator.project_configuration.automatic_checkpoint_naming and accelerator.project_dir is not None:
            return os.path.join(accelerator.project_dir, "checkpoints", f"checkpoint_{accelerator.save_iteration}")
        return None if output_dir is None else os.fspath(output_dir)

    def _write_run_file(self, folder: Any) -> None:
        """Write the step count into a checkpoint, because Accelerate does not save it."""
        run = self._job.run
        if run is None or run.folder is None or not isinstance(folder, (str, os.PathLike)) or not os.path.isdir(folder):
            return
        content = {"run_name": run.name, "run_id": run.id, "log_dir": str(run.folder.path.parent)}
        data = json.dumps({**content, "step": self.num_steps}).encode()
        replace_file(Path(folder, CHECKPOINT_RUN_FILE), data, below=Path(folder))

    def _timed_load(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            span = None
            with guard("starting a checkpoint span"):
                self._begin_run()
                self._job.end_loop()
                self._is_in_iteration = False
                span = self._job.begin_span(checkpoint_load())
            self._is_loading = True
            try:
                result = load(*args, **kwargs)
            except BaseException as error:
                with guard("recording a failed load"):
                    self._job.end_span(span, error=error)
                raise
            finally:
                self._is_loading = False
            with guard("recording a loaded checkpoint"):
                self._job.end_span(span)
                self._last_end_s = perf_counter()
                self._restore_step(*args, **kwargs)
            return result

        return wrapper

    def _restore_step(self, input_dir: str | None = None, *_args: Any, **_kwargs: Any) -> None:
        """Continue counting at the step that the loaded checkpoint contains."""
        if input_dir is None:  # `load_state` loads the latest automatically named checkpoint
            folder = os.path.join(str(self.accelerator.project_dir), "checkpoints")
            checkpoints = [name for name in os.listdir(folder) if name.rpartition("_")[2].isdecimal()]
            input_dir = os.path.join(folder, max(checkpoints, key=lambda name: int(name.rpartition("_")[2])))
        if self._job.run is not None:
            self._job.run.log_parent(os.path.abspath(os.path.expanduser(input_dir)), how="resume")
        try:
            with open(os.path.join(os.path.expanduser(input_dir), CHECKPOINT_RUN_FILE), encoding="utf-8") as file:
                step = json.load(file).get("step")
        except faults(OSError, ValueError):
            return  # saved without this tracker
        if isinstance(step, int):
            self.num_steps = step


class _TimedIterator:
    """Wraps an iterator and calls a function with the start and end of each `next`."""

    __slots__ = ("_iterator", "_on_fetch")

    def __init__(self, iterator: Iterator[Any], on_fetch: Callable[[float, float], object]) -> None:
        self._iterator = iterator
        self._on_fetch = on_fetch

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start_s = perf_counter()
        try:
            return next(self._iterator)
        finally:
            self._on_fetch(start_s, perf_counter())  # also at the end of the data: accelerate fetches one batch ahead


def _num_prepared(accelerator: Accelerator) -> int:
    return len(accelerator._optimizers) + len(accelerator._models) + len(accelerator._dataloaders)
