"""`init` and `init_from_config`: from arguments, environment and config to a run that records, and its sinks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tachograph.exceptions import ConfigError, nearest
from tachograph.recorder import Run, begin_run
from tachograph.records import check_run_name
from tachograph.settings import Settings, resolve_settings
from tachograph.sinks import SINKS, SinkFollower, load_sink

__all__ = ["init", "init_from_config"]


def init(
    name: str | None = None,
    *,
    config: Any = None,
    resume: bool = False,
    tags: Iterable[str] = (),
    facts: Mapping[str, Any] | None = None,
    section: Mapping[str, Any] | None = None,
    any_rank: bool = False,
    **settings: Any,
) -> Run:
    """Begin to record a run and make it the current one.

    Args:
        name: the run's folder inside `log_dir`; ``run-<date>_<time>`` if not given. A name that is in use gets a number
            behind it, and a line says so.
        config: the training config (a dict, a dataclass, an argparse namespace, …): stored in the `start` record with
            secrets masked, and searched for model, LoRA and training facts.
        resume: continue the run of that name if there is one, whether it finished, failed or crashed.
        tags: words to find the run by.
        facts: fields for the `start` record, such as ``{"trainable_params": 12_345, "max_steps": 5000}``.
        any_rank: record in this process of a distributed job even if its rank is not 0.
        section: the `telemetry` section of a config file; see `init_from_config`.
        settings: any of the settings, such as `log_dir`, `log_every`, `tensorboard` or `enabled`.

    Raises:
        ConfigError: for a setting that does not exist, is out of its range or needs a package that is not installed.
        RunNameError: for a name that cannot be a folder.
        LogDirError: if the folder cannot be written.

    Example:
        >>> with tachograph.init("greyjacket", config=config, log_dir="./logs") as run:
        ...     run.log({"train_loss": loss}, step=step)
    """
    chosen = resolve_settings(settings, section)
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise ConfigError(f"tags={tags!r}: a list of words is expected, such as tags=['baseline']")
    if facts is not None and not isinstance(facts, Mapping):
        raise ConfigError(f"facts={facts!r}: a dict is expected")
    if name is not None:
        check_run_name(name)
    sinks = [load_sink(sink) for sink in SINKS if chosen.enabled and getattr(chosen, sink)]
    name = name or time.strftime("run-%Y%m%d_%H%M%S")
    run = begin_run(name, chosen, config=config, resume=resume, tags=tags, facts=facts, any_rank=any_rank)
    if run.folder is not None:
        for sink in sinks:
            run.add_follower(SinkFollower(run.folder, sink, run.report))
    return run


def init_from_config(config: str | os.PathLike[str] | Mapping[str, Any], **settings: Any) -> Run:
    """Begin a run as a training config says: its `telemetry` section, its `name`, and all of it as the snapshot.

    Args:
        config: the config, or the path of a YAML or JSON file.
        settings: settings that win over the section; also `name`, `resume`, `tags` and `facts` of `init`.

    Raises:
        ConfigError: if the file cannot be read, or the section has an unknown key or a wrong value.

    Example:
        >>> run = tachograph.init_from_config("config/train_lora.yaml")
    """
    if not isinstance(config, (str, os.PathLike, Mapping)):
        raise ConfigError(f"a config or the path of one is expected, got {config!r}")
    values = config if isinstance(config, Mapping) else _load(Path(config))
    section = values.get("telemetry", {})
    if section is None:
        section = {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"telemetry: a section such as `telemetry: {{enabled: true}}` is expected, got {section!r}")
    for key in section:
        if key not in Settings.__struct_fields__:
            raise ConfigError(f"unknown key telemetry.{key}{nearest(str(key), Settings.__struct_fields__)}")
    return init(settings.pop("name", None) or _name(values), config=values, section=section, **settings)


def _name(values: Mapping[str, Any]) -> str | None:
    inner = values.get("config")
    name = values.get("name") or (inner.get("name") if isinstance(inner, Mapping) else None)
    return str(name) if name else None


def _load(path: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config {str(path)!r}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{str(path)!r} does not hold a mapping at its top")
    return values
