"""The folder of usage telemetry. Only its owner can read it.

::

    <folder>/choices.json           the modes that `tacho usage` stored, by app; "*" stands for all apps
    <folder>/<app>/app.json         the configuration of an app that ran here, for `tacho usage`
    <folder>/<app>/*.jsonl, *.sent  its events, see `_spool`

Other users and other programs can write to a shared disk, so a file counts only if it is a regular file of this user.
A choice that cannot be read counts as off.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from tachograph._base.files import make_folder, replace_file
from tachograph._base.guard import faults
from tachograph.exceptions import ConfigError, did_you_mean

__all__ = [
    "ALL_APPS",
    "Mode",
    "StoredChoice",
    "app_folder",
    "clear_choice",
    "parse_mode",
    "check_app",
    "known_apps",
    "make_private_folder",
    "read_own_file",
    "set_choice",
    "stored_choice",
    "save_app",
    "usage_folder",
]

Mode = Literal["off", "local", "on"]
"""Nothing is recorded; recorded on this machine only; recorded and sent. Ordered from strict to permissive."""
ALL_APPS = "*"
"""The key for all apps among the stored choices."""

_APP_NAME = r"[a-z][a-z0-9_-]{0,31}"
_CHOICES = "choices.json"
_APP = "app.json"
_MAX_FILE_BYTES = 4 << 20

try:
    START_FOLDER = os.getcwd()
    """Working directory at import: relative paths keep their meaning when the process changes its directory."""
except faults(OSError):
    START_FOLDER = os.sep


class StoredChoice(NamedTuple):
    """A mode that the user stored with `tacho usage`."""

    mode: Mode
    reason: str


def usage_folder() -> Path:
    """Return the folder: `TACHO_USAGE_DIR`, else a folder in the user's state directory."""
    custom = os.environ.get("TACHO_USAGE_DIR")
    if custom:
        return Path(START_FOLDER, os.path.expanduser(custom))
    # The XDG specification says to ignore a relative path.
    state = os.environ.get("XDG_STATE_HOME")
    home = Path(state) if state and os.path.isabs(state) else Path(os.path.expanduser("~")) / ".local" / "state"
    return home / "tachograph" / "usage"


def app_folder(app: str) -> Path:
    """Return the folder of an app."""
    return usage_folder() / app


def stored_choice(app: str) -> StoredChoice | None:
    """Return the stored choice for an app, or for all apps; off if it cannot be read, None if there is none."""
    path = usage_folder() / _CHOICES
    try:
        choices = _read_mapping(_absolute(path))
    except faults(OSError, ValueError) as error:
        # Only a file that does not exist means that nothing was chosen; a dangling link was put there by someone.
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) and not path.is_symlink():
            return None
        return StoredChoice("off", f"your stored choice cannot be read from {path}: {_error_text(error)}")
    name = app if app in choices else ALL_APPS
    if name not in choices:
        return None
    mode, argument = choices[name], "" if name == ALL_APPS else f" {app}"
    if mode not in get_args(Mode):
        return StoredChoice("off", f"{path} contains an invalid choice; run `tacho usage off` to rewrite it")
    return StoredChoice(mode, f"set with `tacho usage {mode}{argument}`")


def set_choice(mode: str, app: str | None = None) -> None:
    """Store a choice for an app, or for all apps. A choice for all apps replaces the choices for single apps.

    Args:
        mode: "off", "local" or "on".
        app: name of the app; all apps if None, which is not possible for "on".

    Raises:
        ConfigError: if the choice is invalid or cannot be stored, or the choices stored before cannot be read.
    """
    mode = parse_mode(mode)
    if app is not None:
        check_app(app)
    elif mode == "on":
        raise ConfigError("'on' needs the name of an app: consent to sending is given for each app")
    path = usage_folder() / _CHOICES
    try:
        make_private_folder(path.parent)
        with _lock_folder(path.parent):
            choices = _read_choices(path) if app is not None else {}
            _write(path, {**choices, app or ALL_APPS: mode})
    except faults(OSError) as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; set TACHO_USAGE_DIR to another folder, or DO_NOT_TRACK=1"
        ) from error


def clear_choice(app: str | None = None) -> bool:
    """Remove the stored choice for an app, or all stored choices; return whether there was one.

    Raises:
        ConfigError: if the choices cannot be read or written.
    """
    if app is not None:
        check_app(app)
    path = usage_folder() / _CHOICES
    try:
        if not path.exists():
            return False
        with _lock_folder(path.parent):
            choices = _read_choices(path)
            remaining = {name: mode for name, mode in choices.items() if app is not None and name != app}
            if remaining != choices:
                _write(path, remaining)
            return remaining != choices
    except faults(OSError) as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; set TACHO_USAGE_DIR to another folder") from error


def parse_mode(choice: str | bool | None) -> Mode:
    """Return a choice as a mode.

    Raises:
        ConfigError: if there is no such mode.
    """
    if isinstance(choice, bool):
        return "on" if choice else "off"
    for mode in get_args(Mode):
        if choice == mode:
            return mode  # type: ignore[no-any-return]
    modes = get_args(Mode)
    raise ConfigError(
        f"invalid choice {choice!r} for usage telemetry: expected one of {', '.join(modes)}"
        f"{did_you_mean(str(choice), modes)}"
    )


def check_app(app: str) -> None:
    """Check the name of an app.

    Raises:
        ConfigError: if it is invalid.
    """
    if app == "all":
        raise ConfigError("app='all' is not a valid name; leave the name out to address every app")
    if not isinstance(app, str) or not re.fullmatch(_APP_NAME, app):
        raise ConfigError(f"app={app!r}: expected a name in lower case, such as 'axolotl'")


def known_apps() -> Iterator[dict[str, Any]]:
    """Return the saved configuration of each app that ran here; only its name if that cannot be read."""
    folder = usage_folder()
    try:
        names = sorted(
            entry.name for entry in folder.iterdir() if entry.is_dir() and re.fullmatch(_APP_NAME, entry.name)
        )
    except faults(OSError):
        return
    for name in names:
        try:
            facts = _read_mapping(folder / name / _APP)
        except faults(OSError, ValueError):
            facts = {}
        yield {**facts, "app": name}


def save_app(app: str, facts: Mapping[str, Any]) -> None:
    """Save the configuration of an app for `tacho usage`."""
    path = app_folder(app) / _APP
    try:
        if _read_mapping(path) == facts:
            return
    except faults(OSError, ValueError):
        pass
    make_private_folder(path.parent)
    _write(path, facts)


def make_private_folder(folder: Path) -> None:
    """Create the folder of usage telemetry, and one in it, readable by the owner only."""
    _absolute(usage_folder()).parent.mkdir(parents=True, exist_ok=True)
    usage_folder().mkdir(mode=0o700, exist_ok=True)
    if folder != usage_folder():
        make_folder(folder, below=folder.parent, mode=0o700)


def read_own_file(path: Path) -> bytes:
    """Return the content of a regular file that belongs to this user.

    Raises:
        OSError: if it cannot be read, or is any other file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would block
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > _MAX_FILE_BYTES:
            raise PermissionError(errno.EACCES, "not a regular file of this user")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(_MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


def _absolute(path: Path) -> Path:
    """Reject a relative folder: without a home folder it would depend on where the program is started."""
    if not path.is_absolute():
        raise PermissionError(errno.EACCES, "this user has no home folder; set TACHO_USAGE_DIR")
    return path


def _read_choices(path: Path) -> dict[str, Any]:
    try:
        return _read_mapping(path)
    except faults(FileNotFoundError):
        return {}
    except faults(OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read ({_error_text(error)}); run `tacho usage off` to rewrite it "
            "and turn usage telemetry off for all apps"
        ) from error


def _error_text(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Serialise read-modify-write cycles of several processes."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read_mapping(path: Path) -> dict[str, Any]:
    import json

    try:
        values = json.loads(read_own_file(path))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("not a mapping")
    return values


def _write(path: Path, values: Mapping[str, Any]) -> None:
    """Write atomically: another process may be reading."""
    import json

    text = json.dumps(values, indent=2) + "\n"
    replace_file(path, text.encode(), below=usage_folder(), mode=0o600)
