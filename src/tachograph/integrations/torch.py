"""Plain PyTorch: `track` a loader and `watch` a model and its optimizer, and the loop is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch

from tachograph.exceptions import ConfigError
from tachograph.integrations._common.job import Plan
from tachograph.integrations._common.loop_observer import Observer, share, shared
from tachograph.integrations._common.models import model_facts
from tachograph.integrations._common.torch_patches import Patches
from tachograph.recorder import Run

__all__ = ["Watch", "track", "watch"]

_Batch = TypeVar("_Batch")

_watches: list[Watch] = []
"""Those that are open: they share what follows the loop, and the last to close ends it."""

_patches: list[Patches] = []
"""What they had to wrap."""


class _Tracked(Generic[_Batch]):
    """A loader that is timed; in all else it is the loader."""

    def __init__(self, loader: Iterable[_Batch]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[_Batch]:
        batches = iter(self._loader)  # now and not with the first batch: it may draw a random number
        observer = shared()
        return batches if observer is None else _timed(batches, observer)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type] # raises as the loader would

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy that is being made asks, and has none yet
            raise AttributeError(name)
        return getattr(self._loader, name)


def _timed(batches: Iterator[_Batch], observer: Observer) -> Iterator[_Batch]:
    while True:
        try:
            batch = observer.fetch(batches.__next__)
        except StopIteration:
            return
        yield batch


def track(loader: Iterable[_Batch], *, run: Run | None = None) -> _Tracked[_Batch]:
    """Time how long the loop waits for each batch of a loader: ``for batch in tacho.track(loader):``.

    What it returns is iterated like the loader, has its length and its attributes. Exhausting it ends an epoch; while
    gradients are off it is a validation. Where no optimizer is watched, an iteration is a batch.

    Args:
        loader: any iterable.
        run: the run to record into, if it is not the current one. Without any, one is begun.

    Raises:
        ConfigError: if it cannot be iterated.
    """
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise ConfigError(f"track({type(loader).__name__}): something to iterate is expected, such as a DataLoader")
    _observer(run, "track")
    return _Tracked(loader)


def _observer(run: Run | None, method: str) -> Observer:
    """Return what follows this process's loop, and make it if nothing does yet."""
    plan = Plan(run, None, {})  # refuses what is no run
    observer = shared()
    if observer is None:
        observer = Observer(plan, method=method, logs_into_any=True)
        observer.watched = set()
        share(observer)
    elif run is not None:
        observer.use(run)
    return observer


class Watch:
    """What `watch` returns: `close` ends it, and so does leaving it as a context manager."""

    def __init__(self, observer: Observer, handles: list[Any]) -> None:
        self._observer = observer
        self._handles = handles
        _watches.append(self)

    def close(self) -> None:
        """Look no more. What was seen is recorded; the run goes on."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self not in _watches:
            return
        _watches.remove(self)
        if _watches:
            return
        while _patches:
            _patches.pop().undo()
        if shared() is self._observer and not Patches.sees_every_optimizer:
            share(None)
            self._observer.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def watch(
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    *,
    run: Run | None = None,
    logs: bool = True,
    grad_norm_every: int = 0,
) -> Watch:
    """Record a plain loop: iterations, the time of forward, backward and optimizer, loss and learning rate.

    The loss is what `backward` is called on, summed over accumulated batches; the gradient norm is that which
    `clip_grad_norm_` returns. On a GPU, nothing waits for it.

    Args:
        model: the model, for its size; None if there is none to tell of.
        optimizer: the optimizer, or several. An iteration is a step, or one of each.
        run: the run to record into, if it is not the current one. Without any, one is begun.
        logs: whether `train_loss`, `lr` and `grad_norm` are recorded; False for a loop that logs them itself.
        grad_norm_every: work out the gradient norm every so many steps where nothing is clipped; 0: never. It reads
            all gradients, which takes the device time.

    Raises:
        ConfigError: if something else is passed.

    Example:
        >>> tacho.init("greyjacket")
        >>> tacho.watch(model, optimizer)
        >>> for inputs, labels in tacho.track(loader): ...
    """
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(_iterable(optimizer))
    for one in optimizers:
        if not isinstance(one, torch.optim.Optimizer):
            raise ConfigError(f"optimizer={type(one).__name__}: a torch.optim.Optimizer is expected, or several")
    if model is not None and not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model={type(model).__name__}: a torch.nn.Module is expected, or None")
    if not isinstance(grad_norm_every, int) or grad_norm_every < 0:
        raise ConfigError(f"grad_norm_every={grad_norm_every!r}: a whole number of steps is expected, 0 for never")
    if not optimizers:
        raise ConfigError("optimizer=[]: a torch.optim.Optimizer is expected, or several")
    observer = _observer(run, "watch")
    observer.logs_into_any = logs
    observer.norm_every = grad_norm_every
    observer.sees_steps = True
    if not observer.has_begun:
        observer.method = "watch"
    facts = model_facts(model)
    if _watches and not observer.has_begun:  # one of several, such as the two of a GAN
        for count in ("total_params", "trainable_params"):
            facts[count] = facts.get(count, 0) + observer.facts.get(count, 0)
    observer.facts = {**observer.facts, **facts}
    patches = Patches(observer)
    patches.backward()
    patches.clipping()
    patches.loss_scaling()
    _patches.append(patches)
    handles: list[Any] = []
    if not Patches.sees_every_optimizer:
        begins, ended = patches.step_hooks()
        for one in optimizers:
            handles += [one.register_step_pre_hook(begins), one.register_step_post_hook(ended)]
            if observer.watched is not None:
                observer.watched.add(id(one))
    return Watch(observer, handles)


def _iterable(optimizers: Any) -> Iterable[Any]:
    if not isinstance(optimizers, Iterable):
        raise ConfigError(f"optimizer={type(optimizers).__name__}: a torch.optim.Optimizer is expected, or several")
    return optimizers
