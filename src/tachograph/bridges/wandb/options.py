"""Checks the options of the sink without importing W&B, which takes seconds."""

from __future__ import annotations

from tachograph.bridges.exported_media import check_media_option
from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["check_options"]

_MODES = ("online", "offline", "disabled", "shared")


def check_options(
    project: str | None = None,
    entity: str | None = None,
    mode: str | None = None,
    group: str | None = None,
    media: bool = False,
) -> None:
    """Raise `ConfigError` for an invalid option of `WandbSink`."""
    for option, value in {"project": project, "entity": entity, "mode": mode, "group": group}.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(f"{option} must be a non-empty string, got {value!r}")
    check_media_option(media)
    if mode is not None and mode not in _MODES:
        raise ConfigError(f"mode must be one of {', '.join(_MODES)}, got {mode!r}{did_you_mean(mode, _MODES)}")
