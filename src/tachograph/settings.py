"""All settings in one table: the fields of `Settings`.

A value is taken from the argument of `init`, else the environment variable ``TACHO_<NAME>``, else the ``telemetry``
section of a config file, else the default below. The table feeds the documentation and the error messages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["Settings", "SettingRow", "parse_switch", "read_config", "resolve_settings", "settings_table"]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set for a run."""

    enabled: Annotated[bool, Meta(description="Record at all. When false, `init` returns a run that does nothing.")] = (
        True
    )
    log_dir: Annotated[str, Meta(description="Folder that holds one folder per run.", min_length=1)] = "./logs"
    log_every: Annotated[
        int, Meta(description="Write a step record every this many steps; what lies between is summarised.", ge=1)
    ] = 1
    session_tag: Annotated[
        str, Meta(description="Same for all runs that are one logical job; derived from the run if not given.")
    ] = ""
    perf_tag: Annotated[str, Meta(description="Same for all runs whose speed should be comparable.")] = ""
    csv: Annotated[bool, Meta(description="Keep `metrics.csv` beside the journal.")] = True
    tensorboard: Annotated[
        bool, Meta(description="Write TensorBoard event files into the run folder; needs `tachograph[tensorboard]`.")
    ] = False
    wandb: Annotated[
        bool, Meta(description="Send the run to W&B, as its own environment says; needs `tachograph[wandb]`.")
    ] = False
    console: Annotated[bool, Meta(description="Print the `[telemetry]` lines.")] = True
    flush_interval_s: Annotated[float, Meta(description="Longest time a record waits in memory.", ge=0.01, le=1.0)] = (
        0.5
    )
    buffer_size: Annotated[
        int, Meta(description="Most records that wait in memory; further ones are dropped and counted.", ge=16)
    ] = 16_384
    exit_timeout_s: Annotated[
        float, Meta(description="Longest time `finish` and the end of the process wait for the disk.", ge=0, le=600)
    ] = 5.0
    system_interval_s: Annotated[
        float,
        Meta(description="Seconds between samples of CPU, memory, disk, network and GPU; 0: none.", ge=0, le=86_400),
    ] = 5.0
    control_interval_s: Annotated[
        float, Meta(description="Seconds between looks at `control.json`; 0 turns remote control off.", ge=0, le=60)
    ] = 2.0
    control_gap_s: Annotated[
        float, Meta(description="Shortest time between two changes of the same control.", ge=0, le=86_400)
    ] = 30.0
    diagnose: Annotated[
        bool, Meta(description="Let rules look at the run and record alerts; `rules` sets their thresholds.")
    ] = True
    hooks: Annotated[
        bool, Meta(description="Record unhandled exceptions and SIGTERM, then run the handlers that were there.")
    ] = True
    git: Annotated[bool, Meta(description="Ask `git` for the commit when the run starts.")] = True


class SettingRow(NamedTuple):
    """One row of the table, as the documentation shows it."""

    name: str
    env: str
    type: str
    default: Any
    doc: str


def settings_table() -> list[SettingRow]:
    """Return every setting with its environment variable, type, default and meaning."""
    rows = []
    for field in msgspec.structs.fields(Settings):
        base, meta = field.type.__origin__, field.type.__metadata__[0]
        rows.append(SettingRow(field.name, _env(field.name), base.__name__, field.default, meta.description))
    return rows


def resolve_settings(arguments: Mapping[str, Any], section: Mapping[str, Any] | None = None) -> Settings:
    """Settle every setting: argument (unless None), environment, config section, default.

    Raises:
        ConfigError: for an unknown name or a value of the wrong type or range, naming where it came from.
    """
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(Settings):
        name = field.name
        if arguments.get(name) is not None:
            values[name] = _checked(name, arguments[name], f"{name}=")
        elif os.environ.get(_env(name)):  # empty means not set
            values[name] = _checked(name, os.environ[_env(name)], f"environment variable {_env(name)}")
        elif section is not None and name in section:
            values[name] = _checked(name, section[name], f"telemetry.{name}")
    for origin, given in (("", arguments), ("telemetry.", section or {})):
        for name in given:
            if name not in Settings.__struct_fields__:
                raise ConfigError(f"unknown setting {origin}{name}{did_you_mean(name, Settings.__struct_fields__)}")
    return Settings(**values)


def _env(name: str) -> str:
    return f"TACHO_{name.upper()}"


_FALSE = {"0", "false", "no", "off"}
_TRUE = {"1", "true", "yes", "on"}


def parse_switch(value: Any) -> Any:
    """Return true or false for a text that says so, and anything else as it is."""
    if not isinstance(value, str):
        return value
    return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}.get(value.strip().lower(), value)


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a YAML or JSON config.

    Raises:
        ConfigError: if it cannot be read or holds no mapping.
    """
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config {str(path)!r}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # Their own text quotes the lines around the fault, and there may be a secret in them.
        where = f" at line {mark.line + 1}" if (mark := getattr(error, "problem_mark", None)) is not None else ""
        what = getattr(error, "problem", None) or type(error).__name__
        raise ConfigError(f"{str(path)!r} is not valid YAML{where}: {what}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{str(path)!r} does not hold a mapping at its top")
    return values


def _checked(name: str, value: Any, origin: str) -> Any:
    wanted = next(field.type for field in msgspec.structs.fields(Settings) if field.name == name)
    given = value
    if wanted.__origin__ is bool:
        value = parse_switch(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if wanted.__origin__ is not bool and isinstance(value, bool):
        raise ConfigError(f"{origin}: expected `{wanted.__origin__.__name__}`, got {given!r}")
    try:
        return msgspec.convert(value, wanted, strict=False)
    except msgspec.ValidationError as error:
        wanted_text = str(error).partition(", got ")[0]
        raise ConfigError(f"{origin}: {wanted_text[0].lower()}{wanted_text[1:]}, got {given!r}") from None
