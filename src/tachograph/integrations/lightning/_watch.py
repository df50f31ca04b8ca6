"""Wraps methods of one trainer and its parts, where Lightning has no callback: saves, loads, fetches and clipping.

Only the objects of a trainer that is observed are touched, never a class. A wrapper calls what it wraps with what it
was given, returns what that returns and lets through what it raises.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tachograph._base.guard import guard
from tachograph.integrations.lightning._session import Session
from tachograph.integrations.lightning._steps import Steps

__all__ = ["watch_checkpoints", "watch_clipping", "watch_fetching"]

_MARK = "_tachograph"


def watch_checkpoints(trainer: Any, session: Session) -> None:
    """See every checkpoint that a trainer saves or loads, with its path and how long it took."""

    def make_save(original: Callable[..., Any], owner: list[Any]) -> Callable[..., Any]:
        def save_checkpoint(*arguments: Any, **named: Any) -> Any:
            path = arguments[0] if arguments else named.get("filepath")
            observer: Session = owner[0]
            span, error = None, None
            with guard("seeing a checkpoint begin"):
                span = observer.begin_save(path, is_async=_async_io(trainer) is not None)
            try:
                return original(*arguments, **named)
            except BaseException as raised:
                error = raised
                raise
            finally:
                with guard("seeing the end of a checkpoint"):
                    observer.end_save(span, path, error)

        return save_checkpoint

    def make_load(original: Callable[..., Any], owner: list[Any]) -> Callable[..., Any]:
        def load_checkpoint(*arguments: Any, **named: Any) -> Any:
            start_s = perf_counter()
            checkpoint = original(*arguments, **named)
            path = arguments[0] if arguments else named.get("checkpoint_path")
            observer: Session = owner[0]
            with guard("seeing a checkpoint loaded"):
                fits = getattr(trainer.state.fn, "value", None) == "fit"
                observer.loaded(checkpoint, str(path), start_s, perf_counter(), resumes=fits)
            return checkpoint

        return load_checkpoint

    def make_late_save(original: Callable[..., Any], owner: list[Any]) -> Callable[..., Any]:
        def save_checkpoint(checkpoint: Any, path: Any, *arguments: Any, **named: Any) -> Any:
            result = original(checkpoint, path, *arguments, **named)
            observer: Session = owner[0]
            with guard("seeing a checkpoint saved in the background"):
                observer.saved_later(path, checkpoint.get("global_step"))
            return result

        return save_checkpoint

    _wrap(trainer, "save_checkpoint", make_save, session)
    _wrap(trainer.strategy, "load_checkpoint", make_load, session)
    late = _async_io(trainer)
    if late is not None:
        _wrap(late.checkpoint_io, "save_checkpoint", make_late_save, session)


def watch_fetching(trainer: Any, steps: Steps, before: Callable[[], None]) -> Callable[[], None]:
    """See how long a fit waits for each batch; return what ends that.

    Args:
        trainer: the trainer.
        steps: who is told.
        before: called before a batch is asked for, when all that is logged of the one before is known.
    """
    loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    names = ("_on_before_fetch", "_on_after_fetch")
    if loop is None or any(name in vars(loop) or not hasattr(loop, name) for name in names):
        return lambda: None
    tell_before, tell_after = loop._on_before_fetch, loop._on_after_fetch

    def on_before_fetch() -> None:
        tell_before()
        with guard("seeing a batch asked for"):
            before()
            steps.fetch_begins()

    def on_after_fetch() -> None:
        with guard("seeing a batch"):
            steps.fetch_ended()
        tell_after()

    loop._on_before_fetch, loop._on_after_fetch = on_before_fetch, on_after_fetch

    def stop() -> None:
        for name in names:
            vars(loop).pop(name, None)

    return stop


def watch_clipping(trainer: Any, steps: Steps) -> None:
    """See the gradient norm that clipping works out and Lightning drops."""

    def make(original: Callable[..., Any], owner: list[Any]) -> Callable[..., Any]:
        def clip_grad_by_norm(*arguments: Any, **named: Any) -> Any:
            functions: Any = sys.modules["torch.nn.utils"]
            clip = functions.clip_grad_norm_

            def telling(*inner: Any, **inner_named: Any) -> Any:
                norm = clip(*inner, **inner_named)
                with guard("seeing a gradient norm"):
                    if type(norm) is sys.modules["torch"].Tensor:  # another kind may be a collective to read
                        owner[0].norm_known(norm)
                return norm

            functions.clip_grad_norm_ = telling
            try:
                return original(*arguments, **named)
            finally:
                if functions.clip_grad_norm_ is telling:
                    functions.clip_grad_norm_ = clip

        return clip_grad_by_norm

    _wrap(trainer.precision_plugin, "clip_grad_by_norm", make, steps)


def _async_io(trainer: Any) -> Any:
    """Return the trainer's plugin that saves in the background, if it has one that wraps another."""
    plugin = getattr(trainer.strategy, "checkpoint_io", None)
    is_late = any(kind.__name__ == "AsyncCheckpointIO" for kind in type(plugin).__mro__)
    return plugin if is_late and getattr(plugin, "checkpoint_io", None) is not None else None


def _wrap(
    owner: Any, name: str, make: Callable[[Callable[..., Any], list[Any]], Callable[..., Any]], observer: Any
) -> None:
    """Wrap a method of one object; one that is wrapped already is told to a new observer."""
    original = getattr(owner, name, None)
    if original is None:
        return
    watched = getattr(original, _MARK, None)
    if isinstance(watched, list):
        watched[0] = observer
        return
    watched = [observer]
    wrapper = functools.wraps(original)(make(original, watched))
    setattr(wrapper, _MARK, watched)
    setattr(owner, name, wrapper)
