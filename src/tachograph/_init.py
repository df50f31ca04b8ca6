"""`init` and `init_from_config`: resolve the settings, start the run, and attach its sinks.

Everything that can be wrong is checked before the run folder is created: an error leaves nothing behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tachograph._base import ranks
from tachograph._base.config import SECTION_PLACES, ConfigSection, find_section
from tachograph._base.guard import guard, warn
from tachograph._base.settings import (
    ONLINE,
    Mode,
    Settings,
    convert_setting,
    read_config,
    resolve_mode,
    resolve_settings,
)
from tachograph._base.typed import decode_json
from tachograph.diagnostics import resolve_rules, resolve_signals
from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.recorder import Run, loggers_in, start_run, watch_loggers
from tachograph.records import check_run_name
from tachograph.sinks import SINKS, SinkDriver, SinkProcess, read_tool_options, start_sinks

if TYPE_CHECKING:
    from tachograph.sinks.notify import Channel, NotifySettings, NotifySink

__all__ = ["add_exports", "check_config", "check_setting", "init", "init_from_config", "resolve_destination"]

_SUBSECTIONS = ("notify", "rules", "signals")
_SECTION_KEYS = (*Settings.__struct_fields__, *_SUBSECTIONS)
_MAX_WARNINGS = 5
_NO_SERVER = (
    "mode 'cloud' needs the address of a server: pass server='https://…', set TACHO_SERVER, or run `tacho login URL`; "
    "mode 'offline' records now and sends later"
)
_EXPORT_REPLACED = "the config turns {} on, but TACHO_SINKS or init(sinks=…) has other sinks: add {} to them"


def init(
    name: str | None = None,
    *,
    config: Any = None,
    resume: bool = False,
    tags: Iterable[str] = (),
    facts: Mapping[str, Any] | None = None,
    parent: str | os.PathLike[str] | None = None,
    any_rank: bool = False,
    notify: Mapping[str, Any] | bool | None = None,
    rules: Mapping[str, Any] | None = None,
    signals: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Start to record a run and make it the current one.

    Args:
        name: the run's folder inside `log_dir`; ``run-<date>_<time>`` if not given. If the name is in use, a number is
            appended and a line is printed.
        config: the training config (a dict, a dataclass, an argparse namespace, …). It is stored in the `start` record
            with secrets masked, and searched for facts about the model, LoRA and the training. Its `telemetry` section
            sets settings that neither an argument nor the environment sets, and so do its options for SwanLab, such as
            `swanlab_project`.
        resume: continue the run of that name if it exists, however it ended.
        tags: words to find the run by.
        facts: fields for the `start` record, such as ``{"trainable_params": 12_345, "max_steps": 5000}``.
        parent: a run that this one starts from: its name, its folder, or the path of a checkpoint; see `docs/code.md`.
        any_rank: record in this process of a distributed job even if its rank is not 0.
        notify: the channels to notify and when, such as ``{"slack": {"url": …}, "milestones": ["train_loss < 0.5"]}``;
            see `docs/notifications.md`. False turns notifications off, whatever the environment says.
        rules: the diagnostic rules to use, such as ``{"plateau": False, "loss_spike": {"sigmas": 8}}``; see
            `docs/diagnosis.md`.
        signals: more names of metrics that rules observe, such as ``{"loss": "my/objective"}``; see the same page.
        settings: any of the settings in `docs/settings.md`, such as `log_dir`, `log_every`, `enabled` or
            ``sinks=["tensorboard", {"wandb": {"project": "demo"}}]``.

    Raises:
        ConfigError: for a setting that is unknown, out of range or needs a package that is not installed.
        RunNameError: for a name that cannot be a folder.
        LogDirError: if the folder cannot be written.

    Example:
        >>> with tachograph.init("greyjacket", config=config, log_dir="./logs") as run:
        ...     run.log({"train_loss": loss}, step=step)
    """
    path, section, warnings = _read_section(config)
    notify_section, rules_section, signals_section = (section.pop(key, None) for key in _SUBSECTIONS)
    run_settings = resolve_settings(settings, section, path=path)
    if run_settings.enabled:
        section, notify_section, tools, problems = _apply_tool_options(config, section, notify_section)
        run_settings = resolve_settings(settings, section, path=path) if tools else run_settings
        warnings += [
            *problems,
            *(_EXPORT_REPLACED.format(tools[tool], tool) for tool in tools.keys() - run_settings.sinks),
        ]
    is_online = run_settings.mode == ONLINE
    run_settings = resolve_destination(run_settings)
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise ConfigError(f"tags={tags!r}: expected a list of words, such as tags=['baseline']")
    if facts is not None and not isinstance(facts, Mapping):
        raise ConfigError(f"facts={facts!r}: expected a dict")
    if name is not None:
        check_run_name(name)
    channels = _open_channels(notify, notify_section) if run_settings.enabled else None
    parents = _find_parents(parent, run_settings) if any_rank or ranks.rank() == 0 else {}
    rules = _select(rules, "TACHO_RULES", rules_section, """{"plateau": false}""")
    signals = _select(signals, "TACHO_SIGNALS", signals_section, """{"loss": "my/objective"}""")
    # Without a need, no rules: they are many modules.
    is_diagnosed = run_settings.diagnose and (run_settings.enabled or rules is not None)
    thresholds, signal_names = resolve_rules(rules) if is_diagnosed else None, resolve_signals(signals)
    rule_facts = {"rules": dict(rules)} if rules else {}  # for `tacho doctor`
    name = name or time.strftime("run-%Y%m%d_%H%M%S")
    start_s = time.time()
    records_run = run_settings.enabled and (any_rank or ranks.rank() == 0)
    for warning in warnings if records_run else []:
        warn("%s", warning)
    # Only rank 0 exports. Last of the checks, because it takes longest.
    sinks = _start_exports(run_settings) if records_run else []
    try:
        run = start_run(
            name,
            run_settings,
            config=config,
            resume=resume,
            tags=tags,
            facts={**(facts or {}), **parents, **rule_facts},
            any_rank=any_rank,
            rules=thresholds,
            signals=signal_names,
        )
    except BaseException:
        for sink in sinks:
            sink.cancel()
        raise
    if run_settings.enabled and not records_run and resolve_mode(run_settings) is Mode.CLOUD:
        _send_from_node(run, run_settings)
    if run.folder is not None:
        _print_destination(run, run_settings, is_online=is_online)
        if channels is not None:
            for notifier in _notify_sink(run, *channels, start_s):
                run.add_follower(SinkDriver(run.folder, notifier, run.report_follower_error))
        _attach(run, sinks)
        loggers = loggers_in(config)
        if len(loggers) + len(sinks) > 1:
            watch_loggers(run, loggers, {sink.name: sink.pid for sink in sinks})
    return run


def resolve_destination(settings: Settings) -> Settings:
    """Return the settings with `mode` resolved to one of the four words, and the server that the run is sent to.

    Raises:
        ConfigError: if the run is to be sent to a server and no server is given, or its address is invalid.
    """
    mode = resolve_mode(settings)
    server = settings.server
    if mode is Mode.CLOUD or (mode is Mode.OFFLINE and server):
        from tachograph.remote import parse_server, stored_servers

        if not server:
            servers = stored_servers()
            if len(servers) != 1:
                raise ConfigError(_NO_SERVER)
            server = servers[0]
        server = parse_server(server, allow_plain_http=settings.allow_plain_http).url
    return msgspec.structs.replace(settings, mode=mode.value, server=server)


def _print_destination(run: Run, settings: Settings, *, is_online: bool) -> None:
    if is_online:
        run.print_line(f"mode {ONLINE!r} is another name of {Mode.CLOUD.value!r}")
    if resolve_mode(settings) is Mode.CLOUD:
        run.print_line(f"Sending it to {settings.server}")
        run.print_line(f"Watch it at: {str(settings.server).rstrip('/')}/#/?q=run_id%3D{run.id}")


def _start_exports(settings: Settings) -> list[SinkProcess]:
    """Start the processes of the sinks, and of the sender to the server of the team.

    Raises:
        ConfigError: if a sink cannot be built, or there is no key for the server.
    """
    sender = _start_sender(settings) if resolve_mode(settings) is Mode.CLOUD else None
    if sender is None:
        return start_sinks(settings.sinks)
    try:
        return [*start_sinks(settings.sinks), sender]  # the sender is not waited for: a run starts without a network
    except BaseException:
        sender.cancel()
        raise


def _start_sender(settings: Settings) -> SinkProcess:
    """Start the process that sends a run to the server.

    Raises:
        ConfigError: if there is no key for the server.
    """
    from tachograph.remote import find_credential, parse_server

    address = parse_server(settings.server, allow_plain_http=settings.allow_plain_http)
    if find_credential(address) is None:
        raise ConfigError(
            f"no access key for {address}: run `tacho login {address}`, or set TACHO_API_KEY; mode 'offline' records "
            "now and sends later"
        )
    options = {
        "server": address.url,
        "remote_control": settings.remote_control,
        "allow_plain_http": settings.allow_plain_http,
    }
    return SinkProcess("server", options, factory="tachograph.remote:ServerSink")


def _send_from_node(run: Run, settings: Settings) -> None:
    """On another rank than 0: send the ranks of this machine if they do not find the folder of rank 0."""
    from tachograph.remote import NodeCollector, NodeFollower

    files = getattr(run.backend, "files", None)
    if files is None:
        return
    follower = NodeFollower(lambda: files.node_folder, lambda: _start_sender(settings), run.report_follower_error)
    run.add_follower(follower)
    run.collectors.append(NodeCollector(follower))


def _find_parents(parent: str | os.PathLike[str] | None, settings: Settings) -> dict[str, Any]:
    """Return the field `parents` of the start record, if a parent is given."""
    if parent is None or not settings.enabled:
        return {}
    if not isinstance(parent, (str, os.PathLike)):
        raise ConfigError(f"parent={parent!r:.80}: expected the name of a run, or the path of a run or a checkpoint")
    from tachograph.reader import find_parent

    parent_run = find_parent(parent, settings.log_dir, "init")
    if parent_run is None:
        where = f"no run of that name in {settings.log_dir!r}, and no file or folder at that path"
        raise ConfigError(f"parent={os.fspath(parent)!r}: {where}")
    return {
        "parents": [{name: value for name, value in msgspec.structs.asdict(parent_run).items() if value is not None}]
    }


def _attach(run: Run, sinks: Iterable[SinkProcess]) -> None:
    for sink in sinks:
        if run.folder is not None:
            sink.attach(run.folder, run.report_follower_error)
            run.add_follower(sink)


def add_exports(run: Run, sinks: Iterable[SinkProcess], notify: Mapping[str, Any] | None = None) -> None:
    """Export a run that is open already to more sinks, and notify more channels, from the start of its journal.

    Args:
        run: the run.
        sinks: processes of sinks that wait for a run.
        notify: the channels, as in the section `telemetry.notify`.

    Raises:
        ConfigError: if the run does not record, or a channel is invalid.
    """
    if run.folder is None:
        raise ConfigError("the run does not record, so there is nothing to export")
    channels = _open_channels(None, notify) if notify is not None else None
    _attach(run, sinks)
    if channels is not None:
        for notifier in _notify_sink(run, *channels, start_s=0.0):
            run.add_follower(SinkDriver(run.folder, notifier, run.report_follower_error))


def _read_section(config: Any) -> tuple[str, dict[str, Any], list[str]]:
    """Return the path and the content of the config's `telemetry` section, and warnings about keys without effect.

    Unlike in `init_from_config`, a section with unknown keys does not raise: it may belong to another tool.
    """
    config_section = ConfigSection(SECTION_PLACES[0], None, ())
    with guard("searching the config for settings"):
        config_section = find_section(config)
    path, section, warnings = config_section.path, {}, []
    if isinstance(config_section.value, Mapping):
        section = {key: value for key, value in config_section.value.items() if key in _SECTION_KEYS}
        unknown = [str(key) for key in config_section.value if key not in _SECTION_KEYS]
        if unknown:
            names = ", ".join(f"{path}.{key}{did_you_mean(key, _SECTION_KEYS)}" for key in unknown[:_MAX_WARNINGS])
            warnings.append(f"unknown settings in the config have no effect: {names}")
    elif config_section.value is not None:
        warnings.append(f"the config's {path} has no effect: {_not_a_section(config_section.value)}")
    if config_section.unused:
        remedy = (
            f"{path} is used"
            if isinstance(config_section.value, Mapping)
            else f"move them to one of {', '.join(SECTION_PLACES)}"
        )
        warnings.append(f"the config has settings that have no effect at {', '.join(config_section.unused)}: {remedy}")
    return path, section, warnings


def _apply_tool_options(
    config: Any, section: dict[str, Any], notify: Any
) -> tuple[dict[str, Any], Any, dict[str, str], list[str]]:
    """Return the sections with the options of other tools in the config, the titles of these tools, and warnings."""
    options_by_tool, warnings = read_tool_options(config)
    for options in options_by_tool.values():
        section, notify = options.add_to_section(section), options.add_to_notify(notify)
    return section, notify, {tool: options.title for tool, options in options_by_tool.items()}, warnings


def _not_a_section(value: Any) -> str:
    return f"expected a section such as `telemetry: {{enabled: true}}`, got {type(value).__name__}"


def _select(argument: Any, variable: str, section: Any, example: str) -> Any:
    """Return a part of the configuration: from the argument, else the environment, else the config."""
    if argument is not None:
        return argument
    text = os.environ.get(variable)
    if not text:
        return section
    try:
        return decode_json(text, Any)
    except msgspec.DecodeError as error:
        expectation = f"expected a JSON object, such as {example}"
        raise ConfigError(f"environment variable {variable}: {expectation}, got {text[:80]!r} ({error})") from None


def _open_channels(
    notify: Mapping[str, Any] | bool | None, section: Mapping[str, Any] | bool | None
) -> tuple[NotifySettings, list[Channel]] | None:
    """Resolve the settings of notifications; return None, without importing anything, if there are none."""
    if not notify and not section and not any(name.startswith("TACHO_NOTIFY_") for name in os.environ):
        return None
    from tachograph.sinks.notify import open_channels, resolve_notify

    settings = resolve_notify(notify, section)
    return settings, open_channels(settings)


def _notify_sink(run: Run, settings: NotifySettings, channels: list[Channel], start_s: float) -> list[NotifySink]:
    """Return the sink that sends notifications, or an empty list if no channel is configured."""
    from tachograph.sinks.notify import NotifySink, config_warnings

    if not channels:
        return []
    for line in config_warnings(settings):
        run.print_line(line)
    run.print_line(f"notifying {', '.join(channel.name for channel in channels)}")
    report = run.report_follower_error
    return [NotifySink(settings, channels, report=report, print_line=run.print_line, start_s=start_s)]


def check_setting(name: str, value: Any, origin: str) -> None:
    """Check a value of the `telemetry` section long before a run is started with it.

    Does not check problems that only starting a sink reveals, such as a missing package.

    Args:
        name: the key in the section: a setting, `notify`, `rules` or `signals`.
        value: its value.
        origin: the name of the value for the user, which begins the message.

    Raises:
        ConfigError: if the value is invalid. No message quotes a secret.
    """
    if name not in _SUBSECTIONS:
        setting_value = convert_setting(name, value, origin)
        for sink in setting_value if name == "sinks" else ():
            if sink not in (sink_names := SINKS.names()):
                raise ConfigError(f"{origin}: unknown sink {sink!r}{did_you_mean(sink, sink_names)}")
        return
    try:
        if name == "rules":
            resolve_rules(value)
        elif name == "signals":
            resolve_signals(value)
        else:
            from tachograph.sinks.notify import resolve_notify

            resolve_notify(value)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None


def init_from_config(config: str | os.PathLike[str] | Mapping[str, Any], **settings: Any) -> Run:
    """Start a run from a training config: its `telemetry` section, its `name`, and all of it as the config snapshot.

    The section is at the top level, or where AI Toolkit has it: in `config.process[0]`.

    Args:
        config: the config, or the path of a YAML or JSON file.
        settings: settings that override the section; also `name`, `resume`, `tags` and `facts` of `init`.

    Raises:
        ConfigError: if the file cannot be read, or the section has an unknown key or a wrong value.

    Example:
        >>> run = tachograph.init_from_config("config/train_lora.yaml")
    """
    if not isinstance(config, (str, os.PathLike, Mapping)):
        raise ConfigError(f"expected a config or the path of one, got {config!r}")
    values = config if isinstance(config, Mapping) else read_config(Path(config))
    _strict_section(values)
    return init(settings.pop("name", None) or _run_name(values), config=values, **settings)


def check_config(config: Mapping[str, Any]) -> None:
    """Check the options that `init_from_config` reads from a config, without starting a run or a sink.

    Raises:
        ConfigError: if the section `telemetry` or an option of another tool is invalid.
    """
    path, section = _strict_section(config)
    notify, rules, signals = (section.pop(key, None) for key in _SUBSECTIONS)
    section, notify, _, _ = _apply_tool_options(config, section, notify)
    settings = resolve_destination(resolve_settings({}, section, path=path))
    for name in settings.sinks:
        if name not in SINKS.names():
            raise ConfigError(f"{path}.sinks: unknown sink {name!r}{did_you_mean(name, SINKS.names())}")
    resolve_rules(rules)
    resolve_signals(signals)
    if notify:
        from tachograph.sinks.notify import resolve_notify

        resolve_notify(None, notify)


def _strict_section(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the path and the content of the section `telemetry`, which must not have unknown keys."""
    path, section, _ = find_section(values)
    if section is not None and not isinstance(section, Mapping):
        raise ConfigError(f"{path}: {_not_a_section(section)}")
    for key in section or {}:
        if key not in _SECTION_KEYS:
            raise ConfigError(f"unknown key {path}.{key}{did_you_mean(str(key), _SECTION_KEYS)}")
    return path, dict(section or {})


def _run_name(values: Mapping[str, Any]) -> str | None:
    inner = values.get("config")
    name = values.get("name") or (inner.get("name") if isinstance(inner, Mapping) else None)
    return str(name) if name else None
