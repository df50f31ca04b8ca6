"""Training telemetry for machine learning: a run journal that never hurts training and never loses data.

Example:
    >>> import tachograph as tacho
    >>> with tacho.init("greyjacket", config={"lr": 1e-3}) as run:
    ...     for step in range(100):
    ...         run.log({"train_loss": 1 / (step + 1)}, step=step)
    >>> tacho.read("logs/greyjacket").series("train_loss").values
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph._version import __version__

if TYPE_CHECKING:
    from tachograph._init import init, init_from_config
    from tachograph.exceptions import TachographError
    from tachograph.integrations.torch import track, watch
    from tachograph.journal import RunState
    from tachograph.reader import RunHistory, Series, read
    from tachograph.recorder import Completions, Control, Run, current_run, log
    from tachograph.spans import (
        ProfilingConfig,
        Span,
        application,
        backward,
        checkpoint_finalization,
        checkpoint_load,
        checkpoint_save,
        data_loading,
        dataloader_init,
        distributed_init,
        forward,
        model_init,
        on_app_end,
        on_app_start,
        on_dataloader_init_end,
        on_dataloader_init_start,
        on_distributed_init_end,
        on_distributed_init_start,
        on_load_checkpoint_end,
        on_load_checkpoint_start,
        on_model_init_end,
        on_model_init_start,
        on_optimizer_init_end,
        on_optimizer_init_start,
        on_save_checkpoint_end,
        on_save_checkpoint_start,
        on_save_checkpoint_success,
        on_testing_end,
        on_testing_start,
        on_train_end,
        on_train_start,
        on_training_single_iteration_end,
        on_training_single_iteration_start,
        on_validation_end,
        on_validation_single_iteration_end,
        on_validation_single_iteration_start,
        on_validation_start,
        optimizer_init,
        optimizer_update,
        profile,
        profiling,
        set_profiling,
        set_training_config,
        testing_iteration,
        testing_loop,
        timed_span,
        training_iteration,
        training_loop,
        validation_iteration,
        validation_loop,
        zero_grad,
    )

__all__ = [
    "Completions",
    "Control",
    "ProfilingConfig",
    "Run",
    "RunHistory",
    "RunState",
    "Series",
    "Span",
    "TachographError",
    "__version__",
    "application",
    "backward",
    "checkpoint_finalization",
    "checkpoint_load",
    "checkpoint_save",
    "current_run",
    "data_loading",
    "dataloader_init",
    "diagnose",
    "distributed_init",
    "forward",
    "init",
    "init_from_config",
    "log",
    "model_init",
    "on_app_end",
    "on_app_start",
    "on_dataloader_init_end",
    "on_dataloader_init_start",
    "on_distributed_init_end",
    "on_distributed_init_start",
    "on_load_checkpoint_end",
    "on_load_checkpoint_start",
    "on_model_init_end",
    "on_model_init_start",
    "on_optimizer_init_end",
    "on_optimizer_init_start",
    "on_save_checkpoint_end",
    "on_save_checkpoint_start",
    "on_save_checkpoint_success",
    "on_testing_end",
    "on_testing_start",
    "on_train_end",
    "on_train_start",
    "on_training_single_iteration_end",
    "on_training_single_iteration_start",
    "on_validation_end",
    "on_validation_single_iteration_end",
    "on_validation_single_iteration_start",
    "on_validation_start",
    "optimizer_init",
    "optimizer_update",
    "profile",
    "profiling",
    "read",
    "set_profiling",
    "set_training_config",
    "testing_iteration",
    "testing_loop",
    "timed_span",
    "track",
    "training_iteration",
    "training_loop",
    "validation_iteration",
    "validation_loop",
    "watch",
    "zero_grad",
]

_NAMES = {
    "tachograph.diagnostics.offline": {"diagnose"},
    "tachograph.exceptions": {"TachographError"},
    "tachograph.integrations.torch": {"track", "watch"},
    "tachograph.journal": {"RunState"},
    "tachograph.reader": {"RunHistory", "Series", "read"},
    "tachograph.recorder": {"Completions", "Control", "Run", "current_run", "log"},
    "tachograph._init": {"init", "init_from_config"},
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
"""Where a public name comes from; all others are of `tachograph.spans`."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package costs next to nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'tachograph' has no attribute {name!r}")
    home = _HOMES.get(name, "tachograph.spans")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return __all__
