"""`tacho notify`."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import rich_click as click

from tachograph._base.config import find_section
from tachograph._base.settings import read_config
from tachograph.cli._format import json_text, safe
from tachograph.cli._options import json_option
from tachograph.cli._terminal import echo
from tachograph.exceptions import ConfigError
from tachograph.sinks.notify import (
    CHANNELS,
    EVENTS,
    Channel,
    DeliveryError,
    NotifySettings,
    config_warnings,
    notify_table,
    open_channels,
    resolve_notify,
    sample_message,
)

__all__ = ["notify"]

_NO_CHANNEL = """No channel is configured. Set one, for example:

  export TACHO_NOTIFY_SLACK_URL='https://hooks.slack.com/services/…'
  tacho notify test

or in a config file, for tachograph.init_from_config and `tacho notify test --config FILE`:

  telemetry:
    notify:
      slack: {url: "https://hooks.slack.com/services/…"}
      milestones: ["train_loss < 0.5"]

`tacho notify settings` lists all settings."""


@click.group()
def notify() -> None:
    """Test notifications and list their settings."""


@notify.command("settings")
@json_option
def settings(as_json: bool) -> None:
    """List the settings of notifications: config key in `telemetry.notify`, environment variable and meaning."""
    rows = notify_table()
    if as_json:
        echo(json_text([row._asdict() for row in rows]))
        return
    for row in rows:
        echo(f"{row.name}  {row.env}{f'={row.default}' if row.default else ''}\n    {row.doc}")


@notify.command("test")
@click.option(
    "--channel", type=click.Choice(list(CHANNELS)), help="Test only this channel. Default: all configured channels."
)
@click.option(
    "--config", "config_path", type=click.Path(dir_okay=False), help="Config file with a `telemetry.notify` section."
)
@click.option(
    "--event", type=click.Choice(list(EVENTS)), default="complete", show_default=True, help="Event to send a sample of."
)
@json_option
def test(channel: str | None, config_path: str | None, event: str, as_json: bool) -> None:
    """Send a sample message to each configured channel and show whether it arrived."""
    notify_settings = resolve_notify(None, _read_section(config_path))
    channels = _select_channels(open_channels(notify_settings), channel)
    if not channels:
        echo(json_text([]) if as_json else _NO_CHANNEL)
        raise SystemExit(1)
    results = []
    for line in [] if as_json else config_warnings(notify_settings):
        echo(line)
    for opened_channel in channels:
        results.append(_send_sample(opened_channel, notify_settings, event))
        if not as_json:
            echo(_format_result(results[-1]))
    if as_json:
        echo(json_text(results))
    if not all(result["arrived"] for result in results):
        raise SystemExit(1)


def _read_section(config_path: str | None) -> Any:
    if config_path is None:
        return None
    section = find_section(read_config(Path(config_path))).value
    return section.get("notify") if isinstance(section, dict) else None


def _select_channels(channels: list[Channel], name: str | None) -> list[Channel]:
    matches = [channel for channel in channels if name in (None, channel.name)]
    if channels and not matches:
        names = ", ".join(channel.name for channel in channels)
        raise ConfigError(f"--channel {name}: not configured; configured channels: {names}")
    return matches


def _send_sample(channel: Channel, settings: NotifySettings, event: str) -> dict[str, Any]:
    start_s = time.monotonic()
    failure = None
    try:
        channel.send(sample_message(event, settings, host=socket.gethostname()), settings.timeout_s)
    except DeliveryError as error:
        failure = str(error)
    return {
        "channel": channel.name,
        "arrived": failure is None,
        "seconds": round(time.monotonic() - start_s, 3),
        "failure": failure,
    }


def _format_result(result: dict[str, Any]) -> str:
    if result["arrived"]:
        return f"{result['channel']}: arrived in {result['seconds']:.2f} s"
    return f"{result['channel']}: failed after {result['seconds']:.2f} s: {safe(result['failure'], 400)}"
