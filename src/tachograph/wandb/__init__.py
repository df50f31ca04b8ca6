"""The interface of W&B, recording to runs on this machine: ``import tachograph.wandb as wandb``.

Nothing is sent, and neither the package nor an account is needed. `docs/coming_from.md` lists the calls that
are recorded, that have no effect, and that raise.

Example:
    >>> import tachograph.wandb as wandb
    >>> run = wandb.init(project="jackets", config={"lr": 3e-4})
    >>> wandb.log({"loss": 0.5})
    >>> wandb.finish()
"""

from __future__ import annotations

from typing import Any, NoReturn

from tachograph._base.guard import warn
from tachograph.bridges.wandb.facade.api import LocalApi as Api
from tachograph.bridges.wandb.facade.artifact import LoggedArtifact as Artifact
from tachograph.bridges.wandb.facade.config import RunConfig as Config
from tachograph.bridges.wandb.facade.data_types import (
    Audio,
    Classes,
    Graph,
    Histogram,
    Html,
    Image,
    JoinedTable,
    Molecule,
    Object3D,
    Plotly,
    Table,
    Video,
)
from tachograph.bridges.wandb.facade.errors import CommError, Error, NotAvailableError, UsageError
from tachograph.bridges.wandb.facade.plot import plot_table
from tachograph.bridges.wandb.facade.run import AlertLevel
from tachograph.bridges.wandb.facade.run import WandbRun as Run
from tachograph.bridges.wandb.facade.settings import WandbSettings as Settings
from tachograph.bridges.wandb.facade.start import active_run as _active_run
from tachograph.bridges.wandb.facade.start import active_runs as _runs
from tachograph.bridges.wandb.facade.start import init, setup
from tachograph.wandb import data_types, env, errors, plot, sdk, util

__all__ = [
    "AlertLevel",
    "Api",
    "Artifact",
    "Audio",
    "Classes",
    "CommError",
    "Config",
    "Error",
    "Graph",
    "Histogram",
    "Html",
    "Image",
    "JoinedTable",
    "Molecule",
    "Object3D",
    "Plotly",
    "Run",
    "Settings",
    "Table",
    "UsageError",
    "Video",
    "data_types",
    "ensure_configured",
    "env",
    "errors",
    "finish",
    "init",
    "join",
    "log",
    "login",
    "plot",
    "plot_table",
    "require",
    "sdk",
    "setup",
    "teardown",
    "termerror",
    "termlog",
    "termwarn",
    "util",
]

__version__ = "0.31.0"
"""The version whose interface this is; libraries compare it."""

_RUN_METHODS = (
    "alert",
    "define_metric",
    "link_artifact",
    "link_model",
    "log_artifact",
    "log_code",
    "log_model",
    "mark_preempting",
    "pin_config_keys",
    "restore",
    "save",
    "unwatch",
    "use_artifact",
    "use_model",
    "watch",
)

_MISSING = {
    "agent": "there are no sweeps: a search would run nothing",
    "controller": "there are no sweeps",
    "sweep": "there are no sweeps: a search would run nothing",
    "attach": "a run cannot be joined from another process",
    "launch": "jobs are not started from here",
    "launch_add": "jobs are not started from here",
    "keras": "use tachograph.integrations.keras",
    "lightgbm": "log its results with log()",
    "sklearn": "log its results with log()",
    "xgboost": "log its results with log()",
    "catboost": "log its results with log()",
    "fastai": "log its results with log()",
    "sacred": "log its results with log()",
    "gym": "videos are not recorded",
}


class _BeforeInit:
    """Stands for `config` and `summary` before `init`: reading or writing them raises."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def _fail(self, *_arguments: Any) -> NoReturn:
        raise Error(f"call wandb.init() before wandb.{object.__getattribute__(self, '_name')}")

    __getitem__ = __setitem__ = __contains__ = __setattr__ = _fail

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._fail()


def _call_method(name: str) -> Any:
    """Return a function that calls a method of the current run."""

    def function(*arguments: Any, **options: Any) -> Any:
        run = _active_run()
        if run is None:
            raise Error(f"call wandb.init() before wandb.{name}()")
        return getattr(run, name)(*arguments, **options)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = getattr(Run, name).__doc__
    return function


for _name in _RUN_METHODS:
    globals()[_name] = _call_method(_name)


def log(data: Any, step: int | None = None, commit: bool | None = None, sync: bool | None = None) -> None:
    """Record a row of values in the current run; see `Run.log`.

    Raises:
        Error: if there is no run.
    """
    if not _runs:
        raise Error("call wandb.init() before wandb.log()")
    _runs[-1].log(data, step, commit)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """End the current run, if there is one."""
    run = _active_run()
    if run is not None:
        run.finish(exit_code)


def join(exit_code: int | None = None) -> None:
    """End the current run, as older code does."""
    finish(exit_code)


def login(*_arguments: Any, **_options: Any) -> bool:
    """Return True: there is no account. A key that is passed is neither read nor stored."""
    return True


def ensure_configured() -> None:
    """Do nothing."""


def require(*_arguments: Any, **_options: Any) -> None:
    """Do nothing: no feature has to be turned on."""


def teardown(exit_code: int | None = None) -> None:
    """End the current run."""
    finish(exit_code)


def termlog(string: str = "", *_arguments: Any, **_options: Any) -> None:
    """Print a line."""
    print(f"wandb: {string}")  # noqa: T201 - the purpose of the function


def termwarn(string: str, *_arguments: Any, **_options: Any) -> None:
    """Log a warning."""
    warn("%s", string)


termerror = termwarn


def __getattr__(name: str) -> Any:
    """Return attributes of the current run; raise for names without an equivalent."""
    if name == "run":
        return _active_run()
    if name in ("config", "summary"):
        run = _active_run()
        return _BeforeInit(name) if run is None else getattr(run, name)
    if name in _MISSING:
        raise NotAvailableError(f"wandb.{name} is not available here: {_MISSING[name]}")
    raise AttributeError(f"module 'wandb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_RUN_METHODS, "config", "run", "summary"})
