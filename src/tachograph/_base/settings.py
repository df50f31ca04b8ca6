"""All settings in one table: the fields of `Settings`.

Each value comes from the argument of `init`, else the environment variable ``TACHO_<NAME>``, else the ``telemetry``
section of a config file, else the default below. The table feeds the documentation and the error messages.

Two settings name sinks: the list `sinks`, and a switch for each of the oldest sinks (`tensorboard`, `wandb`), which
existing configs use. `_merge_switches` combines them, so that the rest of the code only reads `Settings.sinks`.

Three settings decide where a run goes: `mode`, `server` and `enabled`. `resolve_mode` combines them; the rest of the
code calls it and does not read `Settings.mode`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from tachograph._base.config import parse_yaml
from tachograph._base.guard import faults
from tachograph._base.typed import convert, decode_json, field_types
from tachograph.exceptions import ConfigError, did_you_mean

__all__ = [
    "ONLINE",
    "Mode",
    "Settings",
    "SettingRow",
    "convert_setting",
    "parse_sinks",
    "parse_switch",
    "read_config",
    "resolve_mode",
    "resolve_settings",
    "settings_table",
]


class Mode(Enum):
    """Where a run goes."""

    LOCAL = "local"
    """Recorded on this machine."""
    CLOUD = "cloud"
    """Recorded on this machine and sent to a server while it is recorded."""
    OFFLINE = "offline"
    """Recorded on this machine and marked to be sent later."""
    DISABLED = "disabled"
    """Not recorded."""


ONLINE = "online"
"""Another name of the mode `cloud`, as SwanLab and W&B call it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a run."""

    enabled: Annotated[
        bool,
        Meta(description="Record the run. When false, `init` returns a run that does nothing, whatever the mode is."),
    ] = True
    mode: Annotated[
        str,
        Meta(
            description=(
                "`local`, `cloud`, `offline` or `disabled`; if empty, `cloud` with a `server` and `local` without. "
                "See [modes](modes.md)."
            )
        ),
    ] = ""
    server: Annotated[
        str, Meta(description="Address of the server of your team, such as `https://tacho.example.org`.")
    ] = ""
    remote_control: Annotated[
        bool, Meta(description="Let people with a key for it change and stop this run from the server.")
    ] = False
    allow_plain_http: Annotated[
        bool, Meta(description="Allow an address that starts with `http://` for a server on another machine.")
    ] = False
    log_dir: Annotated[str, Meta(description="Folder that holds one folder per run.", min_length=1)] = "./logs"
    log_every: Annotated[
        int, Meta(description="Steps per step record; the steps in between are summarised in it.", ge=1)
    ] = 1
    session_tag: Annotated[
        str, Meta(description="Groups the runs of one logical job; derived from the run if empty.")
    ] = ""
    perf_tag: Annotated[str, Meta(description="Groups runs whose speed is comparable.")] = ""
    project: Annotated[str, Meta(description="The project that the run belongs to; see [runs](runs.md).")] = ""
    group: Annotated[str, Meta(description="A word that groups runs, such as the name of a sweep.")] = ""
    job_type: Annotated[str, Meta(description="The kind of job, such as `train` or `eval`.")] = ""
    csv: Annotated[bool, Meta(description="Write `metrics.csv` next to the journal.")] = True
    sinks: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="Sinks to export the run to, with or without options; see [sinks](sinks.md)."),
    ] = {}
    tensorboard: Annotated[
        bool, Meta(description="Short for the sink `tensorboard` without options; needs `tachograph[tensorboard]`.")
    ] = False
    wandb: Annotated[
        bool, Meta(description="Short for the sink `wandb` without options; needs `tachograph[wandb]`.")
    ] = False
    console: Annotated[bool, Meta(description="Print the `[telemetry]` lines.")] = True
    flush_interval_s: Annotated[float, Meta(description="Maximum time a record waits in memory.", ge=0.01, le=1.0)] = (
        0.5
    )
    buffer_size: Annotated[
        int,
        Meta(description="Maximum number of records that wait in memory; further ones are dropped and counted.", ge=16),
    ] = 16_384
    exit_timeout_s: Annotated[
        float,
        Meta(
            description="Maximum time `finish` and the exit of the process wait for the disk and the sinks.",
            ge=0,
            le=600,
        ),
    ] = 5.0
    system_interval_s: Annotated[
        float,
        Meta(
            description="Seconds between samples of CPU, memory, disk, network and GPU; 0 turns them off.",
            ge=0,
            le=86_400,
        ),
    ] = 5.0
    energy_price_per_kwh: Annotated[
        float,
        Meta(description="Price of a kWh, to show the cost of a run; see [energy](energy.md).", ge=0),
    ] = 0.0
    energy_currency: Annotated[str, Meta(description="Currency of that price, such as `EUR`.")] = ""
    carbon_g_per_kwh: Annotated[
        float, Meta(description="Grams of CO2 per kWh of your electricity, to show the emissions of a run.", ge=0)
    ] = 0.0
    control_interval_s: Annotated[
        float, Meta(description="Seconds between polls of `control.json`; 0 turns remote control off.", ge=0, le=60)
    ] = 2.0
    control_gap_s: Annotated[
        float, Meta(description="Minimum time between two changes of the same control.", ge=0, le=86_400)
    ] = 30.0
    max_overhead: Annotated[
        float,
        Meta(
            description=(
                "Maximum share of the step time that observing a loop may take; above it, loss and phases are sampled "
                "less often. 1 turns the limit off."
            ),
            gt=0,
            le=1,
        ),
    ] = 0.01
    ranks: Annotated[
        str,
        Meta(
            description=(
                "How the ranks of a distributed job are observed: `phases` of the loop, also the `collectives` that "
                "they call, or `off`; see [ranks](ranks.md)."
            )
        ),
    ] = "phases"
    diagnose: Annotated[
        bool, Meta(description="Check the run with diagnostic rules and record alerts; `rules` sets their thresholds.")
    ] = True
    black_box: Annotated[
        str,
        Meta(
            description=(
                "Capture evidence when the run goes wrong: `on`, `off` or `memory` (also records where GPU memory is "
                "allocated); see [black box](black_box.md)."
            )
        ),
    ] = "on"
    black_box_max_dumps: Annotated[int, Meta(description="Maximum number of dumps of a run.", ge=0, le=1000)] = 8
    black_box_max_mb: Annotated[
        int, Meta(description="Maximum size of all dumps of a run, in megabytes.", ge=1, le=1_000_000)
    ] = 256
    completions: Annotated[
        bool,
        Meta(
            description=(
                "Record samples of prompts and answers. When false, none are recorded, also if the program logs them "
                "itself; see [completions](completions.md)."
            )
        ),
    ] = True
    completions_every: Annotated[int, Meta(description="Steps between two records of samples.", ge=1)] = 100
    completions_buffer: Annotated[int, Meta(description="Maximum number of samples in such a record.", ge=1)] = 128
    media: Annotated[
        bool, Meta(description="Store images, tables, sounds and other media that is logged; see [media](media.md).")
    ] = True
    media_keep: Annotated[
        str,
        Meta(
            description=(
                "How the media of a run is reduced at a limit: `thin` reduces every second step of the largest "
                "name to thumbnails, `all` stores nothing new, `latest:N` always keeps N steps per name, and `off` "
                "stores no media."
            )
        ),
    ] = "thin"
    media_max_mb: Annotated[int, Meta(description="Maximum size of the media of a run, in MB.", ge=1)] = 2048
    media_max_files: Annotated[int, Meta(description="Maximum number of files of media of a run.", ge=1)] = 20_000
    media_queue_mb: Annotated[
        int,
        Meta(
            description="Maximum size of media that waits to be stored, in MB; further calls are dropped and counted.",
            ge=1,
            le=65_536,
        ),
    ] = 256
    checkpoint_stamp: Annotated[
        bool,
        Meta(
            description=(
                "Write `<checkpoint>.tacho.json` beside each checkpoint, so that `tacho origin` knows its run even "
                "after it was moved."
            )
        ),
    ] = False
    hooks: Annotated[
        bool,
        Meta(description="Record unhandled exceptions and signals that end the process; other handlers still run."),
    ] = True
    git: Annotated[bool, Meta(description="Record the git commit when the run starts.")] = True
    trash_keep_days: Annotated[
        int,
        Meta(
            description=(
                "`tacho rm` and `tacho prune` delete runs for good that have been in the trash for more days; 0 keeps "
                "them until `tacho trash empty`."
            ),
            ge=0,
            le=36_500,
        ),
    ] = 0
    code: Annotated[
        bool,
        Meta(
            description=(
                "Capture uncommitted changes, source files, packages and other facts that are needed to repeat the "
                "run; see [code](code.md). Without `git`, nothing of the repository is captured."
            )
        ),
    ] = True


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
        # `sinks` is written as a list and stored as a dict, whose default msgspec makes with a factory.
        kind, default = ("list", "") if field.name == "sinks" else (base.__name__, field.default)
        rows.append(SettingRow(field.name, _env(field.name), kind, default, meta.description))
    return rows


_DEFAULT, _SECTION, _ENVIRONMENT, _ARGUMENT = range(4)
"""Where a value comes from, in ascending order of precedence."""


def resolve_settings(
    arguments: Mapping[str, Any], section: Mapping[str, Any] | None = None, *, path: str = "telemetry"
) -> Settings:
    """Resolve every setting: argument (unless None), environment, config section, default.

    Args:
        arguments: the arguments of `init`.
        section: the section of the config.
        path: where the section is in the config, for the messages.

    Raises:
        ConfigError: for an unknown name or a value of the wrong type or range, naming its source.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys(Settings.__struct_fields__, _DEFAULT)
    for name in Settings.__struct_fields__:
        if arguments.get(name) is not None:
            values[name], sources[name] = convert_setting(name, arguments[name], name), _ARGUMENT
        elif os.environ.get(_env(name)):  # an empty variable counts as unset
            origin = f"environment variable {_env(name)}"
            values[name], sources[name] = convert_setting(name, os.environ[_env(name)], origin), _ENVIRONMENT
        elif section is not None and name in section:
            values[name], sources[name] = convert_setting(name, section[name], f"{path}.{name}"), _SECTION
    for origin, values_by_name in (("", arguments), (f"{path}.", section or {})):
        for name in values_by_name:
            if name not in Settings.__struct_fields__:
                raise ConfigError(f"unknown setting {origin}{name}{did_you_mean(name, Settings.__struct_fields__)}")
    _merge_switches(values, sources)
    settings = Settings(**values)
    # Much of the code only asks whether the run is recorded.
    return msgspec.structs.replace(settings, enabled=resolve_mode(settings) is not Mode.DISABLED)


def resolve_mode(settings: Settings) -> Mode:
    """Return where a run with these settings goes.

    `enabled=False` and `mode="disabled"` mean the same: if either is given, the run is not recorded. Otherwise a mode
    that is given wins over `server`, whichever source each comes from.
    """
    if not settings.enabled:
        return Mode.DISABLED
    if settings.mode:
        return Mode.CLOUD if settings.mode == ONLINE else Mode(settings.mode)
    return Mode.CLOUD if settings.server else Mode.LOCAL


def _merge_switches(values: dict[str, Any], sources: Mapping[str, int]) -> None:
    """Apply the switches `tensorboard` and `wandb` to the list of sinks.

    A switch applies unless the list comes from a source of higher precedence. So `TACHO_WANDB=0` turns off a sink that
    the config file lists, and `TACHO_SINKS` is not affected by a `wandb: false` that a config file has by habit.
    """
    sinks = dict(values.get("sinks", {}))
    for switch in ("tensorboard", "wandb"):
        if switch in values and sources[switch] >= sources["sinks"]:
            if values[switch]:
                sinks.setdefault(switch, {})
            else:
                sinks.pop(switch, None)
    values["sinks"] = sinks


def _env(name: str) -> str:
    return f"TACHO_{name.upper()}"


_FALSE = {"0", "false", "no", "off"}
_TRUE = {"1", "true", "yes", "on"}


def parse_switch(value: Any) -> Any:
    """Return the bool that a string such as "on" or "0" stands for, and any other value unchanged."""
    if not isinstance(value, str):
        return value
    return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}.get(value.strip().lower(), value)


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a YAML or JSON config.

    Raises:
        ConfigError: if it cannot be read or is not a mapping.
    """
    import yaml

    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except faults(OSError) as error:
        raise ConfigError(f"cannot read the config {str(path)!r}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # The parser's own message quotes the surrounding lines, which may contain a secret.
        where = f" at line {mark.line + 1}" if (mark := getattr(error, "problem_mark", None)) is not None else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise ConfigError(f"{str(path)!r} is not valid YAML{where}: {problem}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{str(path)!r} must hold a mapping at its top level")
    return values


def convert_setting(name: str, value: Any, origin: str) -> Any:
    """Return the value of one setting, converted to its type.

    Args:
        name: the name of the setting.
        value: the value, such as the text of an environment variable.
        origin: where the value comes from, for the message.

    Raises:
        ConfigError: if the value has the wrong type or is out of range.
    """
    if name == "sinks":
        return parse_sinks(value, origin)
    if name == "mode":
        return _parse_mode(value, origin)
    if name == "ranks":
        return _parse_word(value, origin, _RANK_TIMINGS)
    if name == "black_box":
        return _parse_word(value, origin, _BLACK_BOX_WORDS)
    if name == "media_keep":
        return _parse_media_keep(value, origin)
    setting_type = field_types(Settings)[name]
    original = value
    if setting_type.__origin__ is bool:
        value = parse_switch(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if setting_type.__origin__ is not bool and isinstance(value, bool):
        raise ConfigError(f"{origin}: expected `{setting_type.__origin__.__name__}`, got {original!r}")
    try:
        return convert(value, setting_type, strict=False)
    except msgspec.ValidationError as error:
        expectation = str(error).partition(", got ")[0]
        raise ConfigError(f"{origin}: {expectation[0].lower()}{expectation[1:]}, got {original!r}") from None


_RANK_TIMINGS = ("phases", "collectives", "off")
_BLACK_BOX_WORDS = ("on", "off", "memory")


def _parse_word(value: Any, origin: str, words: tuple[str, ...]) -> str:
    """Return one of some words; a bool stands for `on` or `off`, as YAML reads them."""
    word = parse_switch(value.strip().lower() if isinstance(value, str) else value)
    if isinstance(word, bool):
        word = "on" if word else "off"
    if word not in words:
        hint = did_you_mean(word, words) if isinstance(word, str) else ""
        raise ConfigError(f"{origin}: expected one of {', '.join(words)}, got {value!r:.80}{hint}")
    return str(word)


def _parse_media_keep(value: Any, origin: str) -> str:
    word = value.strip().lower() if isinstance(value, str) else "off" if value is False else ""
    if word not in {"thin", "all", "off"} and not re.fullmatch(r"latest:[1-9]\d{0,8}", word):
        raise ConfigError(f"{origin}: expected thin, all, off or latest:N, got {value!r:.80}")
    return word


def _parse_mode(value: Any, origin: str) -> str:
    word = value.strip().lower() if isinstance(value, str) else value
    modes = [mode.value for mode in Mode]
    if word not in ("", ONLINE, *modes):
        hint = did_you_mean(word, [*modes, ONLINE]) if isinstance(word, str) else ""
        raise ConfigError(f"{origin}: expected one of {', '.join(modes)}, got {value!r:.80}{hint}")
    return str(word)


def parse_sinks(value: Any, origin: str) -> dict[str, dict[str, Any]]:
    """Return the options of each sink by its name, from a list of names and ``{name: options}``, or from a string.

    No message quotes a value, because an option may be a secret.
    """
    expectation = f'{origin}: expected a list such as ["tensorboard", {{"wandb": {{"project": "demo"}}}}]'
    if isinstance(value, str):
        value = _decode_sinks(value, expectation)
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise ConfigError(f"{expectation}, got {type(value).__name__}")
    sinks: dict[str, dict[str, Any]] = {}
    for item in value:
        if isinstance(item, Mapping) and len(item) > 1:
            names = ", ".join(map(str, item))
            raise ConfigError(
                f"{expectation}, got one entry with several names ({names}): indent the options of a sink"
            )
        name, options = next(iter(item.items())) if isinstance(item, Mapping) and item else (item, {})
        options = {} if options is None else options
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise ConfigError(f"{expectation}, got an entry of type {type(item).__name__}")
        if not all(isinstance(option, str) for option in options):
            raise ConfigError(f"{origin}: option names of {name!r} must be strings")
        if name in sinks:
            raise ConfigError(f"{origin}: the sink {name!r} is listed twice")
        sinks[name] = dict(options)
    return sinks


def _decode_sinks(text: str, expectation: str) -> Any:
    if not text.lstrip().startswith(("[", "{")):
        return [name.strip() for name in text.split(",") if name.strip()]
    try:
        return decode_json(text, Any)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{expectation}, got invalid JSON ({error})") from None
