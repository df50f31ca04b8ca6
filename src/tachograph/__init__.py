"""Training telemetry for machine learning: a run journal that never hurts training and never loses data.

Example:
    >>> import tachograph as tacho
    >>> with tacho.init("greyjacket", config={"lr": 1e-3}) as run:
    ...     for step in range(100):
    ...         run.log({"train_loss": 1 / (step + 1)}, step=step)
    >>> tacho.read("logs/greyjacket").series("train_loss").values

One Logger's API, with its `on_*` callbacks, is in `tachograph.one_logger`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph._base.version import __version__

if TYPE_CHECKING:
    from tachograph._init import init, init_from_config
    from tachograph.black_box import resume_skipping
    from tachograph.catalog.diagnosis import diagnose
    from tachograph.exceptions import TachographError
    from tachograph.integrations.torch import track, watch
    from tachograph.journal import RunState
    from tachograph.journal.artifacts import ArtifactVersion, find_artifact, list_artifacts
    from tachograph.media import (
        Audio,
        ConfusionMatrix,
        File,
        Histogram,
        Html,
        Image,
        Markdown,
        Points,
        PRCurve,
        Table,
        Text,
        Video,
    )
    from tachograph.reader import RunHistory, Series, read
    from tachograph.recorder import Completions, Control, Run, ab, current_run, log
    from tachograph.spans import (
        ProfilingConfig,
        Span,
        application,
        backward,
        checkpoint_finalization,
        checkpoint_load,
        checkpoint_save,
        configure_profiling,
        data_loading,
        dataloader_init,
        distributed_init,
        forward,
        model_init,
        optimizer_init,
        optimizer_update,
        profile_block,
        profile_function,
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
    from tachograph.store.notebook import show

__all__ = [
    "ArtifactVersion",
    "Audio",
    "Completions",
    "ConfusionMatrix",
    "Control",
    "File",
    "Histogram",
    "Html",
    "Image",
    "Markdown",
    "PRCurve",
    "Points",
    "ProfilingConfig",
    "Run",
    "RunHistory",
    "RunState",
    "Series",
    "Span",
    "Table",
    "TachographError",
    "Text",
    "Video",
    "__version__",
    "ab",
    "application",
    "backward",
    "checkpoint_finalization",
    "checkpoint_load",
    "checkpoint_save",
    "configure_profiling",
    "current_run",
    "data_loading",
    "dataloader_init",
    "diagnose",
    "distributed_init",
    "find_artifact",
    "forward",
    "init",
    "init_from_config",
    "list_artifacts",
    "log",
    "model_init",
    "optimizer_init",
    "optimizer_update",
    "profile_block",
    "profile_function",
    "read",
    "resume_skipping",
    "set_training_config",
    "show",
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

# The module that defines each public name. The names are imported on first use, so `import tachograph` stays cheap.
_MODULES = {
    "tachograph._init": {"init", "init_from_config"},
    "tachograph.journal.artifacts": {"ArtifactVersion", "find_artifact", "list_artifacts"},
    "tachograph.black_box": {"resume_skipping"},
    "tachograph.catalog.diagnosis": {"diagnose"},
    "tachograph.exceptions": {"TachographError"},
    "tachograph.integrations.torch": {"track", "watch"},
    "tachograph.journal": {"RunState"},
    "tachograph.media": {
        "Audio",
        "ConfusionMatrix",
        "File",
        "Histogram",
        "Html",
        "Image",
        "Markdown",
        "PRCurve",
        "Points",
        "Table",
        "Text",
        "Video",
    },
    "tachograph.store.notebook": {"show"},
    "tachograph.reader": {"RunHistory", "Series", "read"},
    "tachograph.recorder": {"Completions", "Control", "Run", "ab", "current_run", "log"},
    "tachograph.spans": {
        "ProfilingConfig",
        "Span",
        "application",
        "backward",
        "checkpoint_finalization",
        "checkpoint_load",
        "checkpoint_save",
        "configure_profiling",
        "data_loading",
        "dataloader_init",
        "distributed_init",
        "forward",
        "model_init",
        "optimizer_init",
        "optimizer_update",
        "profile_block",
        "profile_function",
        "set_training_config",
        "testing_iteration",
        "testing_loop",
        "timed_span",
        "training_iteration",
        "training_loop",
        "validation_iteration",
        "validation_loop",
        "zero_grad",
    },
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tachograph' has no attribute {name!r}")
    from importlib import import_module

    from tachograph._base.importing import import_on_first_use

    import_on_first_use(_MODULE_OF[name])
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
