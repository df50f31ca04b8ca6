"""Sees what one accelerator does, and what it prepared: steps, phases and checkpoints."""

from __future__ import annotations

import functools
import json
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch
from accelerate import Accelerator

from tachograph._base.guard import guard
from tachograph.integrations._common.job import RUN_FILE, Job, Names
from tachograph.integrations._common.phases import Marks
from tachograph.recorder import Run
from tachograph.spans import checkpoint_load, checkpoint_save

__all__ = ["AcceleratorWatch"]

_MOST_FETCHES = 64
_MOST_MARKS = 20_000


class AcceleratorWatch:
    """Sees what one accelerator, and what it prepared, does."""

    def __init__(self, accelerator: Accelerator, job: Job, begin: Callable[[], Run], target: int | None) -> None:
        self.accelerator = accelerator
        self.num_steps = 0
        self.lr: float | None = None
        """The learning rate of the latest step."""
        self._job = job
        self._begin = begin
        self._target = target
        self._undo: list[Callable[[], object]] = []
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._num_adopted = 0
        self._fetches: deque[tuple[int, float, float]] = deque(maxlen=_MOST_FETCHES)
        self._marks = self._new_marks()
        self._free_s: float | None = None
        """When the latest iteration, or what is none, ended: the next begins then, if nobody knows better."""
        self._is_in_iteration = False
        self._has_steps = False
        """Whether an optimizer tells of its steps."""
        self._is_loading = False
        for name in ("prepare", "prepare_data_loader", "prepare_model", "prepare_optimizer"):
            self._wrap(accelerator, name, self._preparing)
        self._wrap(accelerator, "init_trackers", self._starting)
        self._wrap(accelerator, "backward", self._timed_backward)
        self._wrap(accelerator, "save_state", self._timed_save)
        self._wrap(accelerator, "load_state", self._timed_load)
        self._adopt()

    def detach(self) -> None:
        """Leave everything as it was."""
        self._job.end_loop()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def go_on_at(self, step: int) -> None:
        """Count steps from here on; a loop that is open ends."""
        self._job.end_loop()
        self._is_in_iteration = False
        self.num_steps = step

    def _wrap(self, owner: Any, name: str, wrapping: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put something around a method of this one object."""
        before = vars(owner).get(name)
        original = getattr(owner, name)
        wrapper = functools.wraps(original)(wrapping(original))
        wrapper._tachograph = True  # type: ignore[attr-defined]
        setattr(owner, name, wrapper)

        def undo() -> None:
            if vars(owner).get(name) is not wrapper:
                return  # somebody put something around ours, which goes on and finds no loop
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    # What it prepared ----------------------------------------------------------------------------------------------

    def _preparing(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        def prepared(*arguments: Any, **named: Any) -> Any:
            result = prepare(*arguments, **named)
            with guard("looking at what was prepared"):
                self._adopt()
            return result

        return prepared

    def _starting(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def started(*arguments: Any, **named: Any) -> Any:
            result = start(*arguments, **named)
            self._begin()  # a mistake in its settings is to be told
            return result

        return started

    def _adopt(self) -> None:
        accelerator = self.accelerator
        self._num_adopted = _num_prepared(accelerator)
        for optimizer in accelerator._optimizers:
            inner = getattr(optimizer, "optimizer", optimizer)
            if self._is_new(inner) and hasattr(inner, "register_step_post_hook"):
                self._undo.append(inner.register_step_pre_hook(self._before_step).remove)
                self._undo.append(inner.register_step_post_hook(self._after_step).remove)
                self._has_steps = True
        for model in accelerator._models:
            if self._is_new(model):
                self._undo.append(model.register_forward_pre_hook(self._before_forward).remove)
                self._undo.append(model.register_forward_hook(self._after_forward).remove)
        for loader in accelerator._dataloaders:
            base = getattr(loader, "base_dataloader", None)  # whose `__iter__` the loader calls by that name
            if base is not None and self._is_new(loader):
                self._wrap(base, "__iter__", functools.partial(self._timed_iteration, id(loader)))

    def _is_new(self, one: Any) -> bool:
        is_new = one not in self._known
        self._known.add(one)
        return is_new

    def _timed_iteration(self, loader: int, iterate: Callable[..., Any]) -> Callable[..., Any]:
        def timed() -> Iterator[Any]:
            return _Timed(iterate(), lambda start_s, stop_s: self._fetches.append((loader, start_s, stop_s)))

        return timed

    def _before_forward(self, model: Any, _arguments: Any) -> None:
        with guard("before a forward pass"):
            if model.training and torch.is_grad_enabled():
                self._mark(None)

    def _after_forward(self, model: Any, _arguments: Any, _output: Any) -> None:
        with guard("after a forward pass"):
            if model.training and torch.is_grad_enabled():
                self._mark(Names.MODEL_FORWARD)

    # Steps ---------------------------------------------------------------------------------------------------------

    def _timed_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            with guard("before a backward pass"):
                self._enter_iteration()
                self._mark(None)
            result = backward(*arguments, **named)
            with guard("after a backward pass"):
                self._mark(Names.MODEL_BACKWARD)
                if not self._has_steps and self.accelerator.sync_gradients:
                    self._end_iteration()  # a step follows, or was part of it, as with DeepSpeed
            return result

        return timed

    def _before_step(self, optimizer: Any, _arguments: Any, _named: Any) -> None:
        with guard("before an optimizer step"):
            if self._is_loading:
                return
            self._enter_iteration()
            self._mark(None)
            rate = optimizer.param_groups[0].get("lr")
            if self._is_first(optimizer) and isinstance(rate, (int, float)):
                self.lr = float(rate)

    def _after_step(self, optimizer: Any, _arguments: Any, _named: Any) -> None:
        with guard("after an optimizer step"):
            if self._is_loading:
                return
            self._mark(Names.OPTIMIZER_UPDATE)
            if self._is_first(optimizer):
                self._end_iteration()

    def _is_first(self, optimizer: Any) -> bool:
        """Tell whether an optimizer is the one that counts: where there are several, each takes its own steps."""
        first = next(iter(self.accelerator._optimizers), None)
        return getattr(first, "optimizer", first) is optimizer

    def _enter_iteration(self) -> None:
        """Begin an iteration, if none goes on, when its first batch was asked for; and take what was fetched for it."""
        accelerator, job = self.accelerator, self._job
        if self._num_adopted != _num_prepared(accelerator):
            self._adopt()
        loader = accelerator.gradient_state.active_dataloader
        fetches = [(start_s, stop_s) for whose, start_s, stop_s in self._fetches if whose == id(loader)]
        self._fetches.clear()
        self._begin()
        if not job.is_in_loop:
            batch_size = getattr(loader, "total_batch_size", None) if loader is not None else None
            job.configure(
                world_size=accelerator.num_processes,
                global_batch_size=batch_size * accelerator.gradient_accumulation_steps if batch_size else None,
            )
            job.begin_loop(self.num_steps, self._target)
        if not self._is_in_iteration:
            began_s = [start_s for start_s, _ in fetches[:1]] or [self._free_s or perf_counter()]
            job.begin_iteration(began_s[0])
            self._is_in_iteration = True
        for start_s, stop_s in fetches:
            job.phase(Names.DATA_LOADING, start_s, stop_s)

    def _end_iteration(self) -> None:
        marks, self._marks = self._marks, self._new_marks()
        self._free_s = perf_counter()
        self._is_in_iteration = False
        self.num_steps += 1
        self._job.end_iteration(self._free_s, marks=marks)

    def _mark(self, ended: Names | None) -> None:
        if len(self._marks) < _MOST_MARKS:  # an iteration may never end, if the first optimizer never steps
            self._marks.mark(ended)

    def _new_marks(self) -> Marks:
        return Marks(is_cuda=self.accelerator.device.type == "cuda")

    # Checkpoints ---------------------------------------------------------------------------------------------------

    def _timed_save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        def saved(*arguments: Any, **named: Any) -> Any:
            span = None
            with guard("before a checkpoint"):
                self._begin()
                path = self._save_path(*arguments, **named)
                span = self._job.begin_span(checkpoint_save(self.num_steps, path=path))
            try:
                result = save(*arguments, **named)
            except BaseException as error:
                with guard("after a checkpoint that failed"):
                    self._job.end_span(span, error=error)
                raise
            with guard("after a checkpoint"):
                if self.accelerator.is_main_process:
                    self._leave_word(result)
                self._job.end_span(span)
                self._free_s = perf_counter()
            return result

        return saved

    def _save_path(self, output_dir: str | None = None, *_arguments: Any, **_named: Any) -> str | None:
        accelerator = self.accelerator
        if accelerator.project_configuration.automatic_checkpoint_naming and accelerator.project_dir is not None:
            return os.path.join(accelerator.project_dir, "checkpoints", f"checkpoint_{accelerator.save_iteration}")
        return None if output_dir is None else os.fspath(output_dir)

    def _leave_word(self, folder: Any) -> None:
        """Say in the checkpoint how many steps it is of, which accelerate does not."""
        run = self._job.run
        if run is None or run.folder is None or not isinstance(folder, (str, os.PathLike)) or not os.path.isdir(folder):
            return
        where = {"run_name": run.name, "run_id": run.id, "log_dir": str(run.folder.path.parent)}
        with open(os.path.join(folder, RUN_FILE), "w", encoding="utf-8") as file:
            json.dump({**where, "step": self.num_steps}, file)

    def _timed_load(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(*arguments: Any, **named: Any) -> Any:
            span = None
            with guard("before loading a checkpoint"):
                self._begin()
                self._job.end_loop()
                self._is_in_iteration = False
                span = self._job.begin_span(checkpoint_load())
            self._is_loading = True
            try:
                result = load(*arguments, **named)
            except BaseException as error:
                with guard("after a checkpoint that could not be loaded"):
                    self._job.end_span(span, error=error)
                raise
            finally:
                self._is_loading = False
            with guard("after loading a checkpoint"):
                self._job.end_span(span)
                self._free_s = perf_counter()
                self._find_word(*arguments, **named)
            return result

        return loaded

    def _find_word(self, input_dir: str | None = None, *_arguments: Any, **_named: Any) -> None:
        if input_dir is None:
            folder = os.path.join(str(self.accelerator.project_dir), "checkpoints")
            found = [name for name in os.listdir(folder) if name.rpartition("_")[2].isdecimal()]
            input_dir = os.path.join(folder, max(found, key=lambda name: int(name.rpartition("_")[2])))
        try:
            with open(os.path.join(os.path.expanduser(input_dir), RUN_FILE), encoding="utf-8") as file:
                step = json.load(file).get("step")
        except (OSError, ValueError):
            return  # saved without us
        if isinstance(step, int):
            self.num_steps = step


class _Timed:
    """An iterator that tells how long each batch took."""

    __slots__ = ("_iterator", "_tell")

    def __init__(self, iterator: Iterator[Any], tell: Callable[[float, float], object]) -> None:
        self._iterator = iterator
        self._tell = tell

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start_s = perf_counter()
        try:
            return next(self._iterator)
        finally:
            self._tell(start_s, perf_counter())  # also at the end: accelerate asks one batch ahead


def _num_prepared(accelerator: Accelerator) -> int:
    return len(accelerator._optimizers) + len(accelerator._models) + len(accelerator._dataloaders)
