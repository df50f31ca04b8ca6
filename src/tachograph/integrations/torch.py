"""Record a plain PyTorch loop: `track` its loader and `watch` its model and optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar

import torch

from tachograph.exceptions import ConfigError
from tachograph.integrations._common.integration_run import RunOptions
from tachograph.integrations._common.loop_observer import LoopObserver, active_observer, set_active_observer
from tachograph.integrations._common.models import model_facts
from tachograph.integrations._common.tensors import prepare_device
from tachograph.integrations._common.torch_patches import TorchPatches
from tachograph.recorder import Run

__all__ = ["Watch", "track", "watch"]

_Batch = TypeVar("_Batch")

_HISTOGRAMS = ("gradients", "weights", "both")

_watches: list[Watch] = []
"""The open watches. They share one observer, which the last to close ends."""

_patches: list[TorchPatches] = []
"""The patches of the open watches."""


class _Tracked(Generic[_Batch]):
    """A loader whose batches are timed. In every other respect it behaves like the loader."""

    def __init__(self, loader: Iterable[_Batch]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[_Batch]:
        batches = iter(self._loader)  # now, not at the first batch: creating it may draw a random number
        observer = active_observer()
        return batches if observer is None else _time_batches(batches, observer)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type] # raises like the loader

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # `copy` looks for attributes before `_loader` is set
            raise AttributeError(name)
        return getattr(self._loader, name)


def _time_batches(batches: Iterator[_Batch], observer: LoopObserver) -> Iterator[_Batch]:
    while True:
        try:
            batch = observer.fetch(batches.__next__)
        except StopIteration:
            return
        yield batch


def track(loader: Iterable[_Batch], *, run: Run | None = None) -> _Tracked[_Batch]:
    """Time how long the loop waits for each batch of a loader: ``for batch in tacho.track(loader):``.

    The result has the length and the attributes of the loader. When it is exhausted, an epoch ends. Batches requested
    while gradients are off belong to a validation. If no optimizer is watched, each batch is an iteration.

    Args:
        loader: any iterable.
        run: the run to record into; the current one if not given. If there is none, one is started.

    Raises:
        ConfigError: if the loader is not iterable.
    """
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise ConfigError(f"track({type(loader).__name__}): expected an iterable, such as a DataLoader")
    _get_observer(run, "track")
    return _Tracked(loader)


def _get_observer(run: Run | None, method: str) -> LoopObserver:
    """Return the observer of this process's loop; create it if there is none."""
    options = RunOptions(run, None, {})  # raises if it is not a Run
    observer = active_observer()
    if observer is None:
        observer = LoopObserver(options, method=method, logs_into_any=True)
        observer.watched_ids = set()
        set_active_observer(observer)
    elif run is not None:
        observer.record_into(run)
    return observer


class Watch:
    """An active watch, as `watch` returns it. `close` ends it; so does leaving its `with` block."""

    def __init__(self, observer: LoopObserver, handles: list[Any]) -> None:
        self._observer = observer
        self._handles = handles
        _watches.append(self)

    def close(self) -> None:
        """Stop watching. Iterations observed so far are recorded, and the run keeps running."""
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
        if active_observer() is self._observer and not TorchPatches.sees_every_optimizer:
            set_active_observer(None)
            self._observer.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def watch(
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | Mapping[str, torch.optim.Optimizer],
    *,
    run: Run | None = None,
    logs: bool = True,
    grad_norm_every: int = 0,
    histograms: Literal["gradients", "weights", "both"] | None = None,
    every: int = 1_000,
) -> Watch:
    """Record a plain loop: iterations, time of forward, backward and optimizer, loss and learning rate.

    The loss is the value that `backward` is called on, summed over accumulated batches. The gradient norm is the one
    that `clip_grad_norm_` returns. Recording never waits for a GPU.

    Args:
        model: the model, to record its size; may be None.
        optimizer: the optimizer, or several, as a list or by name. An iteration is one step of each. If each steps on
            a loss of its own, as in a GAN, these are recorded as `loss/0` and `loss/1`, or as `loss/generator` and
            `loss/discriminator` for ``{"generator": …, "discriminator": …}``; so are their learning rates, as `lr/0` …
        run: the run to record into; the current one if not given. If there is none, one is started.
        logs: whether to record `train_loss`, `lr` and `grad_norm`. One that your loop logs itself is left to it.
        grad_norm_every: compute the gradient norm every this many steps if gradients are not clipped; 0: never. This
            reads all gradients, which costs device time.
        histograms: `gradients`, `weights` or `both`: record their distributions, one for each tensor of the model that
            the optimizers update.
        every: the number of steps of an optimizer from one recording of histograms to the next.

    Raises:
        ConfigError: if an argument has the wrong type or value.

    Example:
        >>> tacho.init("greyjacket")
        >>> tacho.watch(model, optimizer)
        >>> for inputs, labels in tacho.track(loader):
        ...     ...
    """
    optimizers_by_name = dict(optimizer) if isinstance(optimizer, Mapping) else {}
    if not all(isinstance(name, str) and name for name in optimizers_by_name):
        raise ConfigError(f"optimizer={list(optimizers_by_name)!r}: expected names as keys, such as 'generator'")
    optimizer_argument = optimizers_by_name.values() if optimizers_by_name else optimizer
    optimizers = (
        [optimizer_argument]
        if isinstance(optimizer_argument, torch.optim.Optimizer)
        else list(_iterable(optimizer_argument))
    )
    other_types = [type(one).__name__ for one in optimizers if not isinstance(one, torch.optim.Optimizer)]
    if other_types or not optimizers:
        problem = other_types[0] if other_types else "[]"
        raise ConfigError(f"optimizer={problem}: expected a torch.optim.Optimizer or a list of them")
    if model is not None and not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model={type(model).__name__}: expected a torch.nn.Module or None")
    if not isinstance(grad_norm_every, int) or grad_norm_every < 0:
        raise ConfigError(f"grad_norm_every={grad_norm_every!r}: expected an integer of at least 0 (0: never)")
    _check_histograms(model, histograms, every)
    observer = _get_observer(run, "watch")
    prepare_device(optimizers[0])
    observer.logs_into_any = logs
    observer.norm_every = grad_norm_every
    observer.expect_steps()
    observer.names.update((id(one), name) for name, one in optimizers_by_name.items())
    if not observer.has_started:
        observer.method = "watch"
    facts = model_facts(model)
    if _watches and not observer.has_started:  # one of several, such as the two models of a GAN
        for count in ("total_params", "trainable_params"):
            facts[count] = facts.get(count, 0) + observer.facts.get(count, 0)
    observer.facts = {**observer.facts, **facts}
    patches = TorchPatches(observer)
    patches.backward()
    patches.clipping()
    patches.loss_scaling()
    _patches.append(patches)
    handles: list[Any] = []
    if not TorchPatches.sees_every_optimizer:
        before_step, after_step = patches.step_hooks()
        for one in optimizers:
            handles += [one.register_step_pre_hook(before_step), one.register_step_post_hook(after_step)]
            if observer.watched_ids is not None:
                observer.watched_ids.add(id(one))
    if histograms:
        handles += _count_tensors(model, optimizers, observer, histograms, every)
    return Watch(observer, handles)


def _count_tensors(model: Any, optimizers: list[Any], observer: LoopObserver, kind: Any, every: int) -> list[Any]:
    """Count gradients or weights at the steps of optimizers; return what removes the hooks."""
    # Imported here: a run without media loads no module of it.
    from tachograph.integrations._common.tensor_histograms import TensorHistograms

    counter = TensorHistograms(model, observer, kind, every)
    before_step, after_step = counter.step_hooks()
    handles: list[Any] = [counter]
    for one in optimizers:  # after the hooks of the observer: these start the run and count the step
        handles += [one.register_step_pre_hook(before_step), one.register_step_post_hook(after_step)]
    return handles


def _check_histograms(model: Any, histograms: Any, every: Any) -> None:
    if histograms is not None and histograms not in _HISTOGRAMS:
        raise ConfigError(f"histograms={histograms!r:.80}: expected one of {', '.join(map(repr, _HISTOGRAMS))}")
    if histograms is not None and model is None:
        raise ConfigError(
            f"histograms={histograms!r} with model=None: pass the model, which has the names of its tensors"
        )
    if type(every) is not int or every < 1:
        raise ConfigError(f"every={every!r:.80}: expected an integer of at least 1")


def _iterable(optimizers: Any) -> Iterable[Any]:
    if not isinstance(optimizers, Iterable):
        raise ConfigError(f"optimizer={type(optimizers).__name__}: expected a torch.optim.Optimizer or a list of them")
    return optimizers
