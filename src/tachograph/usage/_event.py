"""The one way to an event: schema, then the net over what is left, then the envelope."""

from __future__ import annotations

import functools
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

from tachograph.exceptions import ConfigError, nearest
from tachograph.usage._config import UsageConfig
from tachograph.usage._endpoint import Event
from tachograph.usage._fields import DROPPED, Version, clean_fields
from tachograph.usage._net import caught

__all__ = ["make_event"]


def make_event(config: UsageConfig, run_id: str, name: str, properties: dict[str, Any]) -> tuple[Event, int]:
    """Return an event as it is kept and sent, and how many values were left out of it.

    Raises:
        ConfigError: if the app has no such event.
    """
    schemas = config.schemas
    if name not in schemas:
        raise ConfigError(
            f"there is no event {name!r}{nearest(name, schemas)}; "
            f"declare it with UsageConfig(events={{{name!r}: {{'field': Count('…')}}}})"
        )
    cleaned, num_dropped = clean_fields(schemas[name].fields, properties, config.organizations)
    event = {
        "uuid": str(uuid4()),
        "event": name,
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "run_id": run_id,
        "app": config.app,
        "app_version": _version(config.app, config.version),
        "properties": caught(cleaned, config.organizations),
    }
    return {key: value for key, value in event.items() if value is not None}, num_dropped


@functools.cache
def _version(app: str, said: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    if not said:
        try:
            said = version(app)
        except PackageNotFoundError:
            return None
    cleaned = Version("").clean(said, ())
    return None if cleaned is DROPPED else cleaned
