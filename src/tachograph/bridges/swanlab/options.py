"""Checks the options of the sink without importing SwanLab, which takes seconds."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tachograph.bridges.exported_media import check_media_option
from tachograph.bridges.swanlab.config import SWANLAB_MODES
from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["check_dashboard", "check_options", "missing_key"]

_PUBLIC_HOST = "https://api.swanlab.cn"

_PROJECT = re.compile(r"[0-9A-Za-z_+.-]{1,100}")
_WORKSPACE = re.compile(r"[0-9A-Za-z_-]{1,25}")


def check_options(
    project: str | None = None,
    workspace: str | None = None,
    mode: str | None = None,
    experiment_name: str | None = None,
    description: str | None = None,
    api_key: str | None = None,
    api_host: str | None = None,
    web_host: str | None = None,
    log_dir: str | None = None,
    completions: bool = True,
    max_rows: int = 128,
    media: bool = False,
) -> None:
    """Raise `ConfigError` for an invalid option of `SwanLabSink`."""
    _check_texts(
        project=project, workspace=workspace, mode=mode, experiment_name=experiment_name, description=description,
        api_host=api_host, web_host=web_host, log_dir=log_dir,
    )  # fmt: skip
    if api_key is not None and (not isinstance(api_key, str) or not api_key.strip()):
        raise ConfigError("api_key must be a non-empty string")  # never quoted
    if mode is not None and mode not in SWANLAB_MODES:
        raise ConfigError(
            f"mode must be one of {', '.join(SWANLAB_MODES)}, got {mode!r}{did_you_mean(mode, SWANLAB_MODES)}"
        )
    if project is not None and not _PROJECT.fullmatch(project):
        raise ConfigError(f"project must be at most 100 letters, digits or any of _-+., got {project!r}")
    if workspace is not None and not _WORKSPACE.fullmatch(workspace):
        raise ConfigError(f"workspace must be at most 25 letters, digits or any of _-, got {workspace!r}")
    if isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows < 1:
        raise ConfigError(f"max_rows must be an integer of at least 1, got {max_rows!r}")
    if not isinstance(completions, bool):
        raise ConfigError(f"completions must be true or false, got {completions!r}")
    check_media_option(media)
    if mode == "local":
        check_dashboard()
    mode = mode or os.environ.get("SWANLAB_MODE") or "cloud"
    if mode in {"cloud", "online"} and not api_key and not _has_settings():
        raise missing_key(api_host or web_host or os.environ.get("SWANLAB_API_HOST") or _PUBLIC_HOST)


def missing_key(host: str) -> ConfigError:
    """Return the error for an upload without a key."""
    return ConfigError(
        f"mode 'cloud' needs an API key for {host}. Set SWANLAB_API_KEY, run `swanlab login`, or set "
        "swanlab_api_key in the config (the option api_key of the sink). The modes 'offline' and 'local' need none"
    )


def _has_settings() -> bool:
    """Return whether there is any place that SwanLab may read a key or another mode from."""
    variables = {"SWANLAB_API_KEY", "SWANLAB_SECRETS_DIR", "SWANLAB_CONFIG_DIR"}
    if any(name.upper() in variables and value for name, value in os.environ.items()):
        return True
    user_folder = os.environ.get("SWANLAB_ROOT") or os.environ.get("SWANLAB_SAVE_DIR") or "~/.swanlab"
    folders = (Path(user_folder).expanduser(), Path(".swanlab"))
    files = [folder / name for folder in folders for name in (".netrc", "config.yaml", "config.yml")]
    return any(path.exists() for path in (*files, *map(Path, ("swanlab.yaml", "swanlab.yml", ".env", "/etc/swanlab"))))


def check_dashboard() -> None:
    """Raise `ConfigError` if the package that the mode `local` needs is not installed."""
    if find_spec("swanboard") is None:
        raise ConfigError(
            "mode 'local' needs SwanLab's dashboard, which is not installed: pip install 'swanlab[dashboard]'. "
            "The mode 'offline' needs nothing"
        )


def _check_texts(**options: Any) -> None:
    for option, value in options.items():
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise ConfigError(f"{option} must be a non-empty string, got {value!r}")
