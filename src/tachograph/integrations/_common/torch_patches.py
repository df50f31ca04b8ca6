"""Wraps the few functions of torch and its neighbours through which an `Observer` sees a loop, and unwraps them.

A wrapper calls what it wraps with what it was given, returns what that returns and lets through what it raises. Where
it is itself compiled by torch it does no more than set a mark, for all else would cut the graph in pieces.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from tachograph.integrations._common.loop_observer import Observer

__all__ = ["Patches"]

_MARK = "_tachograph"


class Patches:
    """What was wrapped, so that it can be undone."""

    sees_every_optimizer = False
    """Whether the hooks of `every_optimizer` are in place, in this process."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._undo: list[Callable[[], None]] = []

    def undo(self) -> None:
        """Put back what was there, where nobody has wrapped it since."""
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Wrap an attribute, unless it is wrapped already."""
        original = getattr(owner, name, None)
        if original is None or getattr(original, _MARK, False):
            return
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, _MARK, True)
        # Also where it was defined, or it could not be pickled any more, as for a pool that saves in the background.
        home = sys.modules.get(getattr(original, "__module__", None) or "")
        for place in {id(place): place for place in (owner, home)}.values():
            if getattr(place, name, None) is original:
                setattr(place, name, wrapper)
                self._undo.append(functools.partial(_put_back, place, name, wrapper, original))

    # What a loop calls ---------------------------------------------------------------------------------------------

    def backward(self) -> None:
        """See the backward pass: `Tensor.backward` calls this function, too."""
        observer, is_compiling = self._observer, _is_compiling()
        compiled = observer.compiled

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def backward(*arguments: Any, **named: Any) -> Any:
                if is_compiling():
                    compiled.has_learnt = True
                    return original(*arguments, **named)
                loss = arguments[0] if arguments else named.get("tensors")
                return observer.backward(lambda: original(*arguments, **named), loss)

            return backward

        self._replace(sys.modules["torch.autograd"], "backward", make)

    def clipping(self) -> None:
        """See the gradient norm that clipping works out anyway."""
        observer, is_compiling = self._observer, _is_compiling()

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def clip_grad_norm_(*arguments: Any, **named: Any) -> Any:
                norm = original(*arguments, **named)
                if not is_compiling():
                    observer.norm_known(norm)
                return norm

            return clip_grad_norm_

        self._replace(sys.modules["torch.nn.utils"], "clip_grad_norm_", make)

    def every_optimizer(self) -> None:
        """See the steps of all optimizers, whoever makes them."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._observer.sees_steps = True
        begins, ended = self.step_hooks()
        handles = (register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ended))
        Patches.sees_every_optimizer = True

        def remove() -> None:
            Patches.sees_every_optimizer = False
            for handle in handles:
                handle.remove()

        self._undo.append(remove)

    def step_hooks(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return what to call before and after the step of an optimizer."""
        observer, is_compiling = self._observer, _is_compiling()
        compiled = observer.compiled

        def begins(optimizer: Any, _arguments: Any, _named: Any) -> None:
            if not is_compiling():
                observer.step_begins(optimizer)

        def ended(optimizer: Any, _arguments: Any, _named: Any) -> None:
            if is_compiling():
                compiled.has_stepped = True
            else:
                observer.step_ended(optimizer)

        return begins, ended

    def every_loader(self, module: Any) -> None:
        """See the batches of all data loaders of torch's module of that name."""
        observer = self._observer

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def __next__(self: Any) -> Any:  # noqa: N807 - it stands in for that method
                return observer.fetch(functools.partial(original, self))

            return __next__

        self._replace(module._BaseDataLoaderIter, "__next__", make)

    def loss_scaling(self) -> None:
        """See the loss before it is scaled, and steps that are skipped because gradients overflowed."""
        observer, is_compiling = self._observer, _is_compiling()

        def make_scale(original: Callable[..., Any]) -> Callable[..., Any]:
            def scale(self: Any, outputs: Any) -> Any:
                scaled = original(self, outputs)
                if scaled is not outputs and not is_compiling():
                    observer.loss_scaled()
                    if isinstance(outputs, sys.modules["torch"].Tensor):
                        scaled._tachograph_loss = outputs.detach()
                return scaled

            return scale

        def make_step(original: Callable[..., Any]) -> Callable[..., Any]:
            def step(self: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
                if is_compiling():
                    return original(self, optimizer, *arguments, **named)
                before = observer.num_optimizer_steps
                result = original(self, optimizer, *arguments, **named)
                if observer.num_optimizer_steps == before:
                    observer.step_skipped(optimizer)
                return result

            return step

        scaler = sys.modules["torch.amp.grad_scaler"].GradScaler
        self._replace(scaler, "scale", make_scale)
        self._replace(scaler, "step", make_step)

    def saving(self, owner: Any, name: str, place: int, keyword: str) -> None:
        """See what a function saves.

        Args:
            owner: where the function is.
            name: its name.
            place: which of its arguments is the path.
            keyword: what that argument is called.
        """
        observer = self._observer

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def save(*arguments: Any, **named: Any) -> Any:
                path = arguments[place] if len(arguments) > place else named.get(keyword)
                return observer.save(lambda: original(*arguments, **named), path)

            return save

        self._replace(owner, name, make)


def _is_compiling() -> Callable[[], bool]:
    """Return what tells whether torch is making a graph of the code that calls it."""
    is_compiling: Callable[[], bool] = sys.modules["torch"].compiler.is_compiling
    return is_compiling


def _put_back(place: Any, name: str, wrapper: Any, original: Any) -> None:
    if getattr(place, name, None) is wrapper:
        setattr(place, name, original)
