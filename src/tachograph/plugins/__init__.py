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
    from tachograph.plugins._base import import_dotted as import_dotted
    from tachograph.plugins._config import ForeignKeys as ForeignKeys
    from tachograph.plugins._config import options_of as options_of
    from tachograph.plugins._config import validate_config as validate_config
    from tachograph.plugins._equal_weights import EqualWeightsProbe as EqualWeightsProbe
    from tachograph.plugins._equal_weights import StepDifference as StepDifference
    from tachograph.plugins._facts import BASE_PACKAGES as BASE_PACKAGES
    from tachograph.plugins._facts import PluginFacts as PluginFacts
    from tachograph.plugins._facts import built_in_facts as built_in_facts
    from tachograph.plugins._facts import facts_of_class as facts_of_class
    from tachograph.plugins._facts import is_installed as is_installed
    from tachograph.plugins._loading import PLUGINS as PLUGINS
    from tachograph.plugins._loading import built_in_name as built_in_name
    from tachograph.plugins._loading import config_keys_of as config_keys_of
    from tachograph.plugins._loading import find_class as find_class
    from tachograph.plugins._loading import listed_plugins as listed_plugins
    from tachograph.plugins._loading import name_of as name_of
    from tachograph.plugins._loading import parse_entries as parse_entries
    from tachograph.plugins._new import write_package as write_package
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
    # Not in `__all__`: only `tacho train`, `tacho plugins` and benchmarks need them.
    **dict.fromkeys(("EqualWeightsProbe", "StepDifference"), "tachograph.plugins._equal_weights"),
    **dict.fromkeys(("ForeignKeys", "options_of", "validate_config"), "tachograph.plugins._config"),
    **dict.fromkeys(
        ("BASE_PACKAGES", "PluginFacts", "built_in_facts", "facts_of_class", "is_installed"),
        "tachograph.plugins._facts",
    ),
    **dict.fromkeys(
        ("PLUGINS", "built_in_name", "config_keys_of", "find_class", "listed_plugins", "name_of", "parse_entries"),
        "tachograph.plugins._loading",
    ),
    "import_dotted": _BASE,
    "write_package": "tachograph.plugins._new",
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
