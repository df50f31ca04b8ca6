"""How an event is built: the schema cleans the properties, redaction checks the result, the envelope is added.

An event passes the same steps again before it is sent, because anyone can edit a file on disk.
"""

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
from tachograph.usage._process import is_id, new_id
from tachograph.usage._redact import redact

__all__ = ["recheck_event", "build_event"]


def build_event(config: UsageConfig, run_id: str, name: str, properties: dict[str, Any]) -> Event:
    """Return an event as it is stored and sent.

    Args:
        config: of the app.
        run_id: id of the run.
        name: name of the event.
        properties: raw values for its fields.

    Raises:
        ConfigError: if the app has no such event.
    """
    schemas = config.schemas
    if name not in schemas:
        raise ConfigError(
            f"unknown event {name!r}{did_you_mean(name, schemas)}; "
            f"declare it with UsageConfig(events={{{name!r}: {{'field': Count('…')}}}})"
        )
    clean_values = clean_fields(schemas[name].fields, properties, config.organizations)
    event = {
        "uuid": new_id(),
        "event": name,
        "timestamp": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "run_id": run_id,
        "app": config.app,
        "app_version": config.version or _installed_version(config.app),
        "properties": redact(clean_values, config.organizations),
    }
    return {key: value for key, value in event.items() if value != ""}


def recheck_event(
    config: UsageConfig, event: Event, fields: Mapping[str, Collection[str]] | None = None
) -> Event | None:
    """Return the part of a stored event that may be sent.

    Args:
        config: of the app.
        event: as read from the disk.
        fields: names of the fields of each event, for a caller that does not know the app's own schemas.

    Returns:
        None if the app cannot have written the event, or would not write it any more.
    """
    schemas, name, values = config.schemas, event["event"], event["properties"]
    # An id that this module did not create could carry information.
    is_ours = event["app"] == config.app and is_id(event["uuid"]) and is_id(event["run_id"])
    is_known = name in (schemas if fields is None else fields)
    if not is_ours or not is_known or not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", event["timestamp"]):
        return None
    if fields is None:
        sendable_values = clean_fields(schemas[name].fields, values, config.organizations, is_stored=True)
    else:
        sendable_values = {field: value for field, value in values.items() if field in fields[name]}
    version = clean_version(event.get("app_version"))
    envelope = {key: event[key] for key in ("uuid", "event", "timestamp", "run_id", "app")}
    app_version = {"app_version": version} if version else {}
    return {**envelope, **app_version, "properties": redact(sendable_values, config.organizations)}


@functools.cache
def _installed_version(app: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return clean_version(version(app))
    except PackageNotFoundError:
        return ""
