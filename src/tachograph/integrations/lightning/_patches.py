"""Observes saves, loads, fetches and gradient clipping of one trainer, where Lightning has no callback.

Only the objects of an observed trainer are patched, never a class. A wrapper passes on arguments, results and
exceptions unchanged.

Fetching and clipping are patched for the duration of a fit. Saving and loading stay patched: a script may call
``trainer.save_checkpoint()`` after `fit`, and `fit` loads a checkpoint before it calls any callback. Because these
wrappers outlive a fit, they look up the run that observes the trainer at the time of the call.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tachograph._base.guard import guard
from tachograph._base.patching import Patches
from tachograph.integrations.lightning._step_timer import StepTimer
from tachograph.integrations.lightning._trainer_run import TrainerRun

__all__ = ["observe_checkpoints", "observe_clipping", "observe_fetching"]

_observers: weakref.WeakKeyDictionary[Any, TrainerRun] = weakref.WeakKeyDictionary()
"""The run that currently observes each object whose saving or loading is patched."""


def observe_checkpoints(trainer: Any, trainer_run: TrainerRun) -> None:
    """Record every checkpoint that a trainer saves or loads, with its path and duration.

    A trainer that is observed already is not patched again; the new run replaces the previous observer.
    """
    strategy = trainer.strategy

    def make_save(original: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            path = args[0] if args else kwargs.get("filepath")
            observer = _observers[trainer]
            span, error = None, None
            with guard("starting a checkpoint span"):
                span = observer.begin_save(path, is_async=_async_io(trainer) is not None)
            try:
                return original(*args, **kwargs)
            except BaseException as exception:
                error = exception
                raise
            finally:
                with guard("ending a checkpoint span"):
                    observer.end_save(span, path, error)

        return save_checkpoint

    def make_load(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_checkpoint(*args: Any, **kwargs: Any) -> Any:
            start_s = perf_counter()
            checkpoint = original(*args, **kwargs)
            path = args[0] if args else kwargs.get("checkpoint_path")
            with guard("recording a loaded checkpoint"):
                is_fit = getattr(trainer.state.fn, "value", None) == "fit"
                _observers[strategy].checkpoint_loaded(checkpoint, str(path), start_s, perf_counter(), is_resume=is_fit)
            return checkpoint

        return load_checkpoint

    _patch(trainer, "save_checkpoint", make_save, trainer_run)
    _patch(strategy, "load_checkpoint", make_load, trainer_run)
    async_io = _async_io(trainer)
    if async_io is None:
        return
    inner_io = async_io.checkpoint_io

    def make_background_save(original: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(checkpoint: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(checkpoint, path, *args, **kwargs)
            with guard("recording a checkpoint saved in the background"):
                _observers[inner_io].saved_in_background(path, checkpoint.get("global_step"))
            return result

        return save_checkpoint

    _patch(inner_io, "save_checkpoint", make_background_save, trainer_run)


def _patch(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]], run: TrainerRun) -> None:
    _observers[owner] = run
    Patches().wrap(owner, name, make)  # never undone, see the module docstring; a second call does nothing


def observe_fetching(patches: Patches, trainer: Any, timer: StepTimer, before_fetch: Callable[[], None]) -> None:
    """Time how long a fit waits for each batch.

    Args:
        patches: undone at the end of the fit.
        trainer: the trainer.
        timer: receives the times.
        before_fetch: called before each fetch, when the metrics of the previous batch are complete.
    """
    # Private methods that start and stop Lightning's own profiler around a fetch. There is no public hook.
    loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    if not hasattr(loop, "_on_before_fetch") or not hasattr(loop, "_on_after_fetch"):
        return

    def make_before(original: Callable[[], None]) -> Callable[[], None]:
        def on_before_fetch() -> None:
            original()
            if timer.skipped_iterations is not None:
                return
            with timer.governor.hook("starting to time a fetch"):
                before_fetch()
                timer.fetch_started()

        return on_before_fetch

    def make_after(original: Callable[[], None]) -> Callable[[], None]:
        def on_after_fetch() -> None:
            if timer.skipped_iterations is None:
                with timer.governor.hook("timing a fetch"):
                    timer.fetch_ended()
            original()

        return on_after_fetch

    patches.wrap(loop, "_on_before_fetch", make_before)
    patches.wrap(loop, "_on_after_fetch", make_after)


def observe_clipping(patches: Patches, trainer: Any, timer: StepTimer) -> None:
    """Record the gradient norm that clipping computes and Lightning discards.

    Args:
        patches: undone at the end of the fit.
        trainer: the trainer.
        timer: receives the norms.
    """
    torch: Any = sys.modules["torch"]

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip_grad_by_norm(*args: Any, **kwargs: Any) -> Any:
            utils: Any = sys.modules["torch.nn.utils"]
            clip = utils.clip_grad_norm_

            def clip_grad_norm_(*inner_args: Any, **inner_kwargs: Any) -> Any:
                norm = clip(*inner_args, **inner_kwargs)
                with guard("recording a gradient norm"):
                    if type(norm) is torch.Tensor:  # reading a DTensor could be a collective
                        timer.gradients_clipped(norm)
                return norm

            with Patches() as inner_patches:  # `replace`: zero-code instrumentation may have wrapped it as well
                inner_patches.replace(utils, "clip_grad_norm_", clip_grad_norm_)
                return original(*args, **kwargs)

        return clip_grad_by_norm

    patches.wrap(trainer.precision_plugin, "clip_grad_by_norm", make)


def _async_io(trainer: Any) -> Any:
    """Return the trainer's plugin that saves in the background by calling another one, if it has one."""
    plugin = getattr(trainer.strategy, "checkpoint_io", None)
    is_async = any(kind.__name__ == "AsyncCheckpointIO" for kind in type(plugin).__mro__)
    return plugin if is_async and getattr(plugin, "checkpoint_io", None) is not None else None
