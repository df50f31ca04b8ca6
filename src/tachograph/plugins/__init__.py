"""Training plugins: change how a model is trained, and record the effect.

`apply` adds plugins to a Hugging Face or TRL trainer. A plugin of your own is a subclass of `BasePlugin`.

Names are imported when they are first used: `apply` needs transformers, which takes seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.exceptions import PluginError
    from tachograph.plugins._apply import AppliedPlugins, apply
    from tachograph.plugins._base import (
        AdapterCapabilities,
        BaseOptimizerFactory,
        BasePlugin,
        LossResult,
        PluginConfig,
        Slots,
        TrainingSetup,
    )
    from tachograph.plugins._config import ForeignKeys as ForeignKeys
    from tachograph.plugins._config import import_dotted as import_dotted
    from tachograph.plugins._config import options_of as options_of
    from tachograph.plugins._report import PluginReport
    from tachograph.plugins._session import PluginSession

__all__ = [
    "AdapterCapabilities",
    "AppliedPlugins",
    "BaseOptimizerFactory",
    "BasePlugin",
    "LossResult",
    "PluginConfig",
    "PluginError",
    "PluginReport",
    "PluginSession",
    "Slots",
    "TrainingSetup",
    "apply",
]

_BASE = "tachograph.plugins._base"
_MODULE_OF = {
    **dict.fromkeys(__all__, _BASE),
    "AppliedPlugins": "tachograph.plugins._apply",
    "PluginError": "tachograph.exceptions",
    "PluginReport": "tachograph.plugins._report",
    "PluginSession": "tachograph.plugins._session",
    "apply": "tachograph.plugins._apply",
    # Not in `__all__`: only `tacho train` and `tacho plugins` need them.
    "ForeignKeys": "tachograph.plugins._config",
    "import_dotted": "tachograph.plugins._config",
    "options_of": "tachograph.plugins._config",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        if error.name in {"pydantic", "torch", "transformers"}:
            message = f"tachograph.plugins needs {error.name}: pip install 'tachograph[plugins]'"
            raise ModuleNotFoundError(message, name=error.name) from error
        raise
    globals()[name] = value
    return value
