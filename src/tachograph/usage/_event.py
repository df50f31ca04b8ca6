"""The one way to an event: schema, then the net over what is left, then the envelope."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import Any

from tachograph.exceptions import ConfigError, did_you_mean
from tachograph.usage._config import UsageConfig, clean_version
from tachograph.usage._endpoint import Event
from tachograph.usage._fields import clean_fields
from tachograph.usage._net import caught
from tachograph.usage._process import is_id, new_id

__all__ = ["checked_event", "make_event"]


def make_event(config: UsageConfig, run_id: str, name: str, properties: dict[str, Any]) -> Event:
    """Return an event as it is kept and sent.

    Raises:
        ConfigError: if the app has no such event.
    """
    schemas = config.schemas
    if name not in schemas:
        raise ConfigError(
            f"there is no event {name!r}{did_you_mean(name, schemas)}; "
            f"declare it with UsageConfig(events={{{name!r}: {{'field': Count('…')}}}})"
        )
    cleaned = clean_fields(schemas[name].fields, properties, config.organizations)
    event = {
        "uuid": new_id(),
        "event": name,
        "timestamp": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "run_id": run_id,
        "app": config.app,
        "app_version": config.version or _installed_version(config.app),
        "properties": caught(cleaned, config.organizations),
    }
    return {key: value for key, value in event.items() if value != ""}


def checked_event(
    config: UsageConfig, event: Event, fields: Mapping[str, Collection[str]] | None = None
) -> Event | None:
    """Return what may be sent of an event that was read from the disk, where anyone may have written it.

    Args:
        config: of the app.
        event: as it was read.
        fields: names of the fields that its events have, for one who does not have the app's own schemas.

    Returns:
        None for what the app cannot have written, or no longer would.
    """
    schemas, name, values = config.schemas, event["event"], event["properties"]
    is_ours = event["app"] == config.app and is_id(event["uuid"]) and is_id(event["run_id"])
    is_known = name in (schemas if fields is None else fields)
    if not is_ours or not is_known or not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", event["timestamp"]):
        return None
    if fields is None:
        known = clean_fields(schemas[name].fields, values, config.organizations, again=True)
    else:
        known = {field: value for field, value in values.items() if field in fields[name]}
    version = clean_version(event.get("app_version"))
    envelope = {key: event[key] for key in ("uuid", "event", "timestamp", "run_id", "app")}
    about = {"app_version": version} if version else {}
    return {**envelope, **about, "properties": caught(known, config.organizations)}


@functools.cache
def _installed_version(app: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return clean_version(version(app))
    except PackageNotFoundError:
        return ""
