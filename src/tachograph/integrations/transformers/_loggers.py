"""Time the callbacks of other loggers, which run on the training thread."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from tachograph._base.patching import Patches
from tachograph.recorder import LoggerCosts, Run, logger_name, watch_loggers

__all__ = ["time_loggers"]

_HOOKS = [name for name in dir(TrainerCallback) if name.startswith("on_") and name != "on_init_end"]


def time_loggers(trainer: Any, run: Run, patches: Patches) -> None:
    """Warn if a trainer reports to several loggers, and time their callbacks until the patches are undone."""
    callbacks_by_logger = list(_loggers_of(trainer))
    costs = watch_loggers(run, {name for name, _ in callbacks_by_logger})
    if costs is None:
        return
    for name, callback in callbacks_by_logger:
        costs.add_time(name, 0.0)
        for hook in _HOOKS:
            if getattr(type(callback), hook, None) is not getattr(TrainerCallback, hook):
                patches.wrap(callback, hook, functools.partial(_time_calls, costs, name))


def _time_calls(costs: LoggerCosts, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        start_s = perf_counter()
        try:
            return hook(*args, **kwargs)
        finally:
            costs.add_time(name, perf_counter() - start_s)

    return wrapper


def _loggers_of(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the callback of each logger of a trainer, also of one that another package provides."""
    handler = getattr(trainer, "callback_handler", None)
    names = {kind.__name__: logger_name(name) for name, kind in INTEGRATION_TO_CALLBACK.items()}
    for callback in getattr(handler, "callbacks", ()):
        name = next((names[kind.__name__] for kind in type(callback).__mro__ if kind.__name__ in names), None)
        if name is not None:
            yield name, callback
