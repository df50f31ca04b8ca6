"""The functions of torch and related libraries that are wrapped so that a `LoopObserver` sees a loop.

A wrapper calls the original with the same arguments, returns its result and lets its exceptions propagate. While torch
compiles the wrapper itself, it does no more than set a flag: anything else would break the graph.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from tachograph._base import patching
from tachograph.integrations._common.loop_observer import LoopObserver

__all__ = ["TorchPatches"]


class TorchPatches:
    """Wraps the functions that a training loop calls, one method per kind of call. `undo` restores everything."""

    sees_every_optimizer = False
    """Whether the global hooks of `every_optimizer` are registered in this process."""

    def __init__(self, observer: LoopObserver) -> None:
        self._observer = observer
        self._patches = patching.Patches()

    def undo(self) -> None:
        """Restore the originals, except where another library has replaced our wrapper since."""
        self._patches.undo()

    def _wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        # Where it is defined, too: a process pool that saves in the background pickles `torch.save`.
        self._patches.wrap(owner, name, make, where_defined=True)

    def backward(self) -> None:
        """Observe the backward pass. `Tensor.backward` calls the same function."""
        observer, is_compiling = self._observer, _compiling_test()
        flags = observer.compiled_flags

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def backward(*args: Any, **kwargs: Any) -> Any:
                if is_compiling():
                    flags.ran_backward = True
                    return original(*args, **kwargs)
                if observer.skipped_iterations is not None:
                    return original(*args, **kwargs)
                loss = args[0] if args else kwargs.get("tensors")
                return observer.backward(lambda: original(*args, **kwargs), loss)

            return backward

        self._wrap(sys.modules["torch.autograd"], "backward", make)

    def clipping(self) -> None:
        """Observe the gradient norm that clipping computes anyway."""
        observer, is_compiling = self._observer, _compiling_test()

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
                norm = original(*args, **kwargs)
                if not is_compiling() and observer.skipped_iterations is None:
                    observer.gradients_clipped(norm)
                return norm

            return clip_grad_norm_

        self._wrap(sys.modules["torch.nn.utils"], "clip_grad_norm_", make)

    def every_optimizer(self) -> None:
        """Observe the steps of all optimizers, including those created later."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._observer.expect_steps()
        before_step, after_step = self.step_hooks()
        handles = (register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step))
        TorchPatches.sees_every_optimizer = True

        def remove() -> None:
            TorchPatches.sees_every_optimizer = False
            for handle in handles:
                handle.remove()

        self._patches.on_undo(remove)

    def step_hooks(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return hooks to call before and after the step of an optimizer."""
        observer, is_compiling = self._observer, _compiling_test()
        flags = observer.compiled_flags

        def before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if not is_compiling() and observer.skipped_iterations is None:
                observer.step_started(optimizer)

        def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if is_compiling():
                flags.ran_step = True
            elif observer.skipped_iterations is not None:
                observer.count_step(observer.skipped_iterations, optimizer)
            else:
                observer.step_finished(optimizer)

        return before_step, after_step

    def every_loader(self, module: Any) -> None:
        """Observe the batches of all data loaders.

        Args:
            module: `torch.utils.data.dataloader`.
        """
        observer = self._observer

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def __next__(self: Any) -> Any:  # noqa: N807 - replaces that method
                return observer.fetch(functools.partial(original, self))

            return __next__

        self._wrap(module._BaseDataLoaderIter, "__next__", make)

    def loss_scaling(self) -> None:
        """Observe losses before they are scaled, and steps skipped because gradients overflowed."""
        observer, is_compiling = self._observer, _compiling_test()

        def make_scale(original: Callable[..., Any]) -> Callable[..., Any]:
            def scale(self: Any, outputs: Any) -> Any:
                scaled_outputs = original(self, outputs)
                if scaled_outputs is not outputs and not is_compiling() and observer.skipped_iterations is None:
                    observer.loss_scaled()
                    if isinstance(outputs, sys.modules["torch"].Tensor):
                        scaled_outputs._tachograph_loss = outputs.detach()
                return scaled_outputs

            return scale

        def make_step(original: Callable[..., Any]) -> Callable[..., Any]:
            def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                if is_compiling():
                    return original(self, optimizer, *args, **kwargs)
                before = observer.num_optimizer_steps
                result = original(self, optimizer, *args, **kwargs)
                if observer.num_optimizer_steps == before:
                    observer.step_skipped(optimizer)
                return result

            return step

        scaler = sys.modules["torch.amp.grad_scaler"].GradScaler
        self._wrap(scaler, "scale", make_scale)
        self._wrap(scaler, "step", make_step)

    def saving(self, owner: Any, name: str, position: int, keyword: str) -> None:
        """Observe a function that saves a checkpoint.

        Args:
            owner: the module or class that has the function.
            name: the name of the function.
            position: the position of the argument that is the path.
            keyword: the name of that argument.
        """
        observer = self._observer

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def save(*args: Any, **kwargs: Any) -> Any:
                path = args[position] if len(args) > position else kwargs.get(keyword)
                return observer.save(lambda: original(*args, **kwargs), path)

            return save

        self._wrap(owner, name, make)


def _compiling_test() -> Callable[[], bool]:
    """Return torch's function that tells whether it is compiling its caller."""
    is_compiling: Callable[[], bool] = sys.modules["torch"].compiler.is_compiling
    return is_compiling
