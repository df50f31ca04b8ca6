"""Times how long a rank waits for others at the end of DDP's backward pass, with ``ranks="collectives"``.

DDP reduces gradients in C++, bucket by bucket, while the backward pass computes the next ones, and waits for the rest
at its end. Nothing of that is visible from Python, except in a communication hook, which DDP calls when a bucket is
ready. So one is registered that averages gradients as DDP does without a hook: the backward pass of this rank ends when
the last bucket is ready, and the waiting ends when the last future is complete. A hook of the user is wrapped instead.

On a GPU, futures complete when their work is queued and not when it is done, so nothing is timed there.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any

from tachograph._base.guard import guard
from tachograph._base.patching import Patches

__all__ = ["DdpWaits"]

_perf_counter = time.perf_counter


class DdpWaits:
    """Registers hooks with DDP modules, at the first forward pass of each.

    Args:
        add_wait: called with the beginning and the end of each waiting, on the clock of `time.perf_counter`.
        give_up: called if the waiting of a module cannot be timed.
    """

    def __init__(self, add_wait: Callable[[float, float], None], give_up: Callable[[], None]) -> None:
        self._add_wait = add_wait
        self._give_up = give_up
        self._modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_closed = False

    def wrap(self, patches: Patches, module: Any) -> None:
        """Wrap the methods of `torch.nn.parallel.distributed.DistributedDataParallel`."""
        patches.wrap(module.DistributedDataParallel, "forward", self._wrap_forward)
        patches.wrap(module.DistributedDataParallel, "register_comm_hook", self._wrap_register)

    def close(self) -> None:
        """Time nothing more. DDP cannot remove a hook, so the existing hooks only pass their calls on."""
        self._is_closed = True

    def _wrap_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        modules = self._modules

        def forward(model: Any, *args: Any, **kwargs: Any) -> Any:
            if model not in modules:
                modules.add(model)
                with guard("timing the communication of DDP"):
                    self._register(model)
            return original(model, *args, **kwargs)

        return forward

    def _wrap_register(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register_comm_hook(model: Any, state: object, hook: Callable[..., Any]) -> Any:
            self._modules.add(model)
            return original(model, state, self._timed(hook))

        return register_comm_hook

    def _register(self, model: Any) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        if getattr(model, "_comm_hooks", None):  # registered before the run was started
            self._give_up()
            return
        try:
            model.register_comm_hook(model.process_group, allreduce_hook)
        except (RuntimeError, TypeError, ValueError):  # such as a hook in C++, which DDP does not list
            self._give_up()

    def _timed(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        num_pending = 0
        last_ready_s: float | None = None

        @functools.wraps(hook)
        def timed_hook(state: object, bucket: Any) -> Any:
            nonlocal num_pending, last_ready_s
            if self._is_closed or bucket.buffer().is_cuda:
                return hook(state, bucket)
            future = hook(state, bucket)
            num_pending += 1
            last_ready_s = _perf_counter() if bucket.is_last() else None
            return future.then(complete)

        def complete(future: Any) -> Any:
            nonlocal num_pending
            num_pending -= 1
            if not num_pending and last_ready_s is not None:
                self._add_wait(last_ready_s, _perf_counter())
            return future.value()

        return timed_hook
