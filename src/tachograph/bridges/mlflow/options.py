"""Checks the options of the sink without importing MLflow, which takes seconds."""

from __future__ import annotations

from tachograph.bridges.exported_media import check_media_option
from tachograph.exceptions import ConfigError

__all__ = ["check_options"]


def check_options(
    tracking_uri: str | None = None, experiment: str | None = None, artifacts: bool = True, media: bool = False
) -> None:
    """Raise `ConfigError` for an invalid option of `MlflowSink`."""
    for option, value in {"tracking_uri": tracking_uri, "experiment": experiment}.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise ConfigError(f"{option} must be a non-empty string, got {value!r}")
    if not isinstance(artifacts, bool):
        raise ConfigError(f"artifacts must be true or false, got {artifacts!r}")
    check_media_option(media)
    if media and not artifacts:
        raise ConfigError("media are stored as artifacts, so media: true needs artifacts: true")
