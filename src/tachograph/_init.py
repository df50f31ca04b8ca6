"""`init` and `init_from_config`: from arguments, environment and config to a run that records, and its sinks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tachograph.diagnostics import resolve_rules
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.recorder import Run, start_run
from tachograph.records import check_run_name
from tachograph.settings import Settings, read_config, resolve_settings
from tachograph.sinks import SINKS, SinkFollower, load_sink

if TYPE_CHECKING:
    from tachograph.sinks.notify import Channel, NotifySettings

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
    notify: Mapping[str, Any] | bool | None = None,
    rules: Mapping[str, Any] | None = None,
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
        notify: who is told of what, such as ``{"slack": {"url": …}, "milestones": ["train_loss < 0.5"]}``; see
            `docs/notifications.md`. False: nobody, whatever the environment says.
        rules: which rules look at the run, such as ``{"plateau": False, "loss_spike": {"sigmas": 8}}``; see
            `docs/diagnosis.md`.
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
    section = dict(section or {})
    notify_section, rules_section = section.pop("notify", None), section.pop("rules", None)
    chosen = resolve_settings(settings, section)
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise ConfigError(f"tags={tags!r}: a list of words is expected, such as tags=['baseline']")
    if facts is not None and not isinstance(facts, Mapping):
        raise ConfigError(f"facts={facts!r}: a dict is expected")
    if name is not None:
        check_run_name(name)
    sinks = [load_sink(sink) for sink in SINKS if chosen.enabled and getattr(chosen, sink)]
    wanted = _wanted(notify, notify_section) if chosen.enabled else None
    thresholds = resolve_rules(_rules(rules, rules_section)) if chosen.diagnose else None
    name = name or time.strftime("run-%Y%m%d_%H%M%S")
    began_s = time.time()
    run = start_run(
        name, chosen, config=config, resume=resume, tags=tags, facts=facts, any_rank=any_rank, rules=thresholds
    )
    if run.folder is not None:
        for sink in sinks:
            run.add_follower(SinkFollower(run.folder, sink, run.report_error))
    if wanted is not None:
        _notify(run, *wanted, began_s)
    return run


def _rules(rules: Any, section: Any) -> Any:
    """Return what is said of the rules: by the argument, else the environment, else the config."""
    if rules is not None:
        return rules
    text = os.environ.get("TACHO_RULES")
    if not text:
        return section
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        what = """a JSON object is expected, such as {"plateau": false}"""
        raise ConfigError(f"environment variable TACHO_RULES: {what}, got {text[:80]!r} ({error})") from None


def _wanted(
    notify: Mapping[str, Any] | bool | None, section: Mapping[str, Any] | bool | None
) -> tuple[NotifySettings, list[Channel]] | None:
    """Return who is to be told of what; None, and nothing is imported for it, where nobody speaks of it."""
    if not notify and not section and not any(name.startswith("TACHO_NOTIFY_") for name in os.environ):
        return None
    from tachograph.sinks.notify import open_channels, resolve_notify

    wanted = resolve_notify(notify, section)
    return wanted, open_channels(wanted)


def _notify(run: Run, settings: NotifySettings, channels: list[Channel], began_s: float) -> None:
    from tachograph.sinks.notify import NotifyFollower, warnings_of

    if run.folder is None or not channels:
        return
    for line in warnings_of(settings):
        run.print_line(line)
    run.print_line(f"notifying {', '.join(channel.name for channel in channels)}")
    run.add_follower(
        NotifyFollower(run.folder, settings, channels, report=run.report_error, say=run.print_line, began_s=began_s)
    )


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
    values = config if isinstance(config, Mapping) else read_config(Path(config))
    section = values.get("telemetry", {})
    if section is None:
        section = {}
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"telemetry: a section such as `telemetry: {{enabled: true}}` is expected, got {type(section).__name__}"
        )
    known = (*Settings.__struct_fields__, "notify", "rules")
    for key in section:
        if key not in known:
            raise ConfigError(f"unknown key telemetry.{key}{did_you_mean(str(key), known)}")
    return init(settings.pop("name", None) or _name(values), config=values, section=section, **settings)


def _name(values: Mapping[str, Any]) -> str | None:
    inner = values.get("config")
    name = values.get("name") or (inner.get("name") if isinstance(inner, Mapping) else None)
    return str(name) if name else None
