"""`wandb.config`: the config of a run, with attributes and items."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tachograph._base.settings import read_config
from tachograph.bridges.wandb.facade.errors import Error, UsageError
from tachograph.records import to_plain

__all__ = ["ConfigChangeError", "RunConfig", "config_defaults", "parse_config"]

_DEFAULTS = Path("config-defaults.yaml")


class ConfigChangeError(Error):
    """A value of the config is set a second time, to another value."""


class RunConfig:
    """The config of a run: ``config.lr`` and ``config["lr"]``, and a dict in most other respects.

    A key that has a value keeps it, unless a change is allowed explicitly: code that sets it twice usually has a bug.
    """

    def __init__(self, values: Mapping[str, Any], on_change: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.__dict__["_values"] = {_key(name): _plain(value) for name, value in values.items()}
        self.__dict__["_on_change"] = on_change

    def update(self, d: Any = None, allow_val_change: bool | None = None, **more: Any) -> None:
        """Set several values.

        Raises:
            ConfigChangeError: if a key has another value already, unless `allow_val_change` is true.
        """
        values = {**parse_config(d), **more}
        self._set({_key(name): _plain(value) for name, value in values.items()}, bool(allow_val_change))

    def setdefaults(self, d: Any) -> None:
        """Set the values that are missing."""
        defaults = {_key(name): _plain(value) for name, value in parse_config(d).items()}
        self._set({name: value for name, value in defaults.items() if name not in self._values}, False)

    def _set(self, values: dict[str, Any], may_change: bool) -> None:
        current = self._values
        new_values = {name: value for name, value in values.items() if name not in current or current[name] != value}
        for name in new_values:
            if name in current and not may_change and not _is_notebook():
                raise ConfigChangeError(
                    f"config.{name} is already set to {current[name]!r:.80}; to change it, call "
                    f"config.update({{{name!r}: …}}, allow_val_change=True)"
                )
        current.update(new_values)
        if new_values and self._on_change is not None:
            self._on_change(new_values)

    def as_dict(self) -> dict[str, Any]:
        """Return a copy as a dict."""
        return dict(self._values)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or a default if it is missing."""
        return self._values.get(name, default)

    def keys(self) -> Any:
        """Return the names."""
        return self._values.keys()

    def values(self) -> Any:
        """Return the values."""
        return self._values.values()

    def items(self) -> Any:
        """Return names with values."""
        return self._values.items()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._set({_key(name): _plain(value)}, False)

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"the config has no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def parse_config(config: Any) -> dict[str, Any]:
    """Return a config as a dict, from anything that W&B accepts: a dict, a namespace, flags, or the path of a file.

    Raises:
        UsageError: if it is something else.
    """
    if config is None:
        return {}
    if isinstance(config, str):
        return {name: _unwrap(value) for name, value in read_config(Path(config)).items() if name != "wandb_version"}
    if isinstance(config, RunConfig):
        return config.as_dict()
    if isinstance(config, Mapping):
        return dict(config)
    if hasattr(config, "flag_values_dict"):  # absl
        return dict(config.flag_values_dict())
    if hasattr(config, "keys") and hasattr(config, "__getitem__"):
        return {name: config[name] for name in config.keys()}  # noqa: SIM118 - not a mapping, only similar
    if hasattr(config, "__dict__"):  # argparse and others
        return dict(vars(config))
    raise UsageError(f"config={config!r:.80}: expected a dict, a namespace or the path of a YAML file")


def config_defaults() -> dict[str, Any]:
    """Return the values in `config-defaults.yaml` in the working directory, if there is one."""
    return parse_config(str(_DEFAULTS)) if _DEFAULTS.is_file() else {}


def _unwrap(value: Any) -> Any:
    """Return the value of an entry with a description: ``{"desc": …, "value": …}``."""
    return value["value"] if isinstance(value, dict) and "value" in value and set(value) <= {"desc", "value"} else value


def _key(name: Any) -> str:
    return str(name).lstrip("-")


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float, type(None))):
        return value
    plain = to_plain(value, "config", [])
    return plain if isinstance(plain, (dict, list, str, int, float, type(None))) else str(value)


def _is_notebook() -> bool:
    return "ipykernel" in sys.modules
