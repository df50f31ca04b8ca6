"""The folder of usage telemetry: what was chosen, which apps there are, what each recorded. Only its owner reads it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from tachograph.exceptions import ConfigError, did_you_mean

__all__ = [
    "EVERY",
    "Mode",
    "StoredChoice",
    "app_folder",
    "as_mode",
    "check_app",
    "known_apps",
    "make_private",
    "read_own",
    "set_choice",
    "stored_choice",
    "tell_of",
    "usage_folder",
]

Mode = Literal["off", "local", "on"]
"""Nothing is recorded; recorded on this machine alone; recorded here, and sent."""
EVERY = "*"
"""Stands for all apps in what was chosen."""

_APP_NAME = r"[a-z][a-z0-9_-]{0,31}"
_CHOICES = "choices.json"
_APP = "app.json"
_MOST_BYTES = 4 << 20

try:
    START = os.getcwd()
    """Where the process began, as far as we know: what is relative stays what it was when it moves on."""
except OSError:
    START = os.sep


class StoredChoice(NamedTuple):
    """What the user chose with `tacho usage`."""

    mode: Mode
    reason: str


def usage_folder() -> Path:
    """Return the folder: `TACHO_USAGE_DIR`, else inside the state folder of the user."""
    chosen = os.environ.get("TACHO_USAGE_DIR")
    if chosen:
        return Path(START, os.path.expanduser(chosen))
    state = os.environ.get("XDG_STATE_HOME")
    home = Path(state) if state and os.path.isabs(state) else Path(os.path.expanduser("~")) / ".local" / "state"
    return home / "tachograph" / "usage"


def app_folder(app: str) -> Path:
    """Return the folder of an app."""
    return usage_folder() / app


def stored_choice(app: str) -> StoredChoice | None:
    """Return what the user chose for an app, or for all; off if it cannot be told."""
    path = usage_folder() / _CHOICES
    try:
        choices = _read(_absolute(path))
    except (OSError, ValueError) as error:
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) and not path.is_symlink():
            return None
        return StoredChoice("off", f"what you chose cannot be read from {path}: {_why(error)}")
    name = app if app in choices else EVERY
    if name not in choices:
        return None
    mode, whom = choices[name], "" if name == EVERY else f" {app}"
    if mode not in get_args(Mode):
        return StoredChoice("off", f"{path} holds a choice that is none; `tacho usage off` writes it anew")
    return StoredChoice(mode, f"you chose it with `tacho usage {mode}{whom}`")


def set_choice(mode: str, app: str | None = None) -> None:
    """Store a choice, for an app or for all; what is said for all takes the place of what was said for one.

    Raises:
        ConfigError: if it is none, agrees to every app, cannot be written, or what was chosen before cannot be read.
    """
    mode = as_mode(mode)
    if app is not None:
        check_app(app)
    elif mode == "on":
        raise ConfigError("to send reports is agreed for each app by its name")
    path = usage_folder() / _CHOICES
    try:
        make_private(path.parent)
        with _locked(path.parent):
            choices = _choices_to_keep(path) if app is not None else {}
            _write(path, {**choices, app or EVERY: mode})
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; set TACHO_USAGE_DIR to another folder, or DO_NOT_TRACK=1"
        ) from error


def as_mode(choice: str | bool | None) -> Mode:
    """Return a choice as a mode.

    Raises:
        ConfigError: if it is none.
    """
    if isinstance(choice, bool):
        return "on" if choice else "off"
    for mode in get_args(Mode):
        if choice == mode:
            return mode  # type: ignore[no-any-return]
    known = get_args(Mode)
    raise ConfigError(
        f"{choice!r} is no choice for usage telemetry; use one of {', '.join(known)}{did_you_mean(str(choice), known)}"
    )


def check_app(app: str) -> None:
    """Refuse what cannot be the name of an app.

    Raises:
        ConfigError: if it is none.
    """
    if app == "all":
        raise ConfigError("app='all': no app can have this name; to mean every app, name none")
    if not isinstance(app, str) or not re.fullmatch(_APP_NAME, app):
        raise ConfigError(f"app={app!r}: expected a name in lower case, such as 'axolotl'")


def known_apps() -> Iterator[dict[str, Any]]:
    """Return what each app that ran here said of itself."""
    folder = usage_folder()
    try:
        names = sorted(
            entry.name for entry in folder.iterdir() if entry.is_dir() and re.fullmatch(_APP_NAME, entry.name)
        )
    except OSError:
        return
    for name in names:
        try:
            facts = _read(folder / name / _APP)
        except (OSError, ValueError):
            facts = {}
        yield {**facts, "app": name}


def tell_of(app: str, facts: Mapping[str, Any]) -> None:
    """Keep what an app says of itself, for `tacho usage`."""
    path = app_folder(app) / _APP
    try:
        if _read(path) == facts:
            return
    except (OSError, ValueError):
        pass
    make_private(path.parent)
    _write(path, facts)


def make_private(folder: Path) -> None:
    """Make the folder of usage telemetry, or one in it, for its owner alone."""
    _absolute(usage_folder()).parent.mkdir(parents=True, exist_ok=True)
    for each in (usage_folder(), folder):
        each.mkdir(mode=0o700, exist_ok=True)


def read_own(path: Path) -> bytes:
    """Return what is in a file, if it is one and this user's own: nobody else decides or speaks for them.

    Raises:
        OSError: if it cannot be read, or is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for ever
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_size > _MOST_BYTES:
            raise PermissionError(errno.EACCES, "it is no plain file of this user's")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(_MOST_BYTES)
    finally:
        os.close(descriptor)


def _absolute(path: Path) -> Path:
    """Refuse a place that depends on where the program happens to be, for want of a home folder."""
    if not path.is_absolute():
        raise PermissionError(errno.EACCES, "this user has no home folder; set TACHO_USAGE_DIR")
    return path


def _choices_to_keep(path: Path) -> dict[str, Any]:
    try:
        return _read(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read ({_why(error)}); `tacho usage off` turns it off for all and writes it anew"
        ) from error


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process after the other read, change and write."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path) -> dict[str, Any]:
    import json

    try:
        values = json.loads(read_own(path))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("not a mapping")
    return values


def _write(path: Path, values: Mapping[str, Any]) -> None:
    """Write as a whole or not at all: another process may be reading."""
    import json

    text = json.dumps(values, indent=2) + "\n"
    part = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
