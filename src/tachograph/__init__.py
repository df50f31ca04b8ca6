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
    from tachograph.exceptions import TachographError
    from tachograph.journal import RunHistory, RunState, Series, read
    from tachograph.recorder import Control, Run, current_run, log
    from tachograph.setup import init, init_from_config

__all__ = [
    "Control",
    "Run",
    "RunHistory",
    "RunState",
    "Series",
    "TachographError",
    "__version__",
    "current_run",
    "init",
    "init_from_config",
    "log",
    "read",
]

_HOMES = {
    "Control": "tachograph.recorder",
    "Run": "tachograph.recorder",
    "RunHistory": "tachograph.journal",
    "RunState": "tachograph.journal",
    "Series": "tachograph.journal",
    "TachographError": "tachograph.exceptions",
    "current_run": "tachograph.recorder",
    "init": "tachograph.setup",
    "init_from_config": "tachograph.setup",
    "log": "tachograph.recorder",
    "read": "tachograph.journal",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package costs next to nothing."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tachograph' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return __all__
