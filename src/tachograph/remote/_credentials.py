"""The access keys that this user logs in with, by server.

They are in one file that only this user can read. The environment variable `TACHO_API_KEY` has precedence, for
containers and continuous integration. No text that is made here contains a key.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tachograph._base.files import (
    UnsafeFileError,
    exclusive_lock,
    open_to_read,
    replace_file,
)
from tachograph._base.guard import warn
from tachograph._base.paths import config_folder
from tachograph._base.typed import decode_json
from tachograph.exceptions import ConfigError
from tachograph.remote._address import ServerAddress
from tachograph.remote._wire import TOKEN_FORMAT

__all__ = [
    "API_KEY_VARIABLE",
    "Credential",
    "check_token",
    "credentials_path",
    "current_token",
    "find_credential",
    "remove_token",
    "store_token",
    "stored_servers",
]

API_KEY_VARIABLE = "TACHO_API_KEY"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Credential:
    """A token and where it comes from; its `repr` does not show the token."""

    token: str = field(repr=False)
    source: str
    """`TACHO_API_KEY`, or the path of the file."""


class _CredentialFile(msgspec.Struct, forbid_unknown_fields=True):
    version: int = 1
    servers: dict[str, str] = {}
    """Tokens by the address of the server."""


def credentials_path() -> Path:
    """Return the path of the file with the keys of this user."""
    return config_folder() / "credentials.json"


def check_token(text: str, source: str) -> str:
    """Return a token without the spaces and line ends around it.

    Raises:
        ConfigError: if it does not have the form of a token. The message names the source, not the text.
    """
    token = text.strip()
    if not TOKEN_FORMAT.fullmatch(token):
        reason = "is empty" if not token else "is not an access key"
        raise ConfigError(
            f"{source} {reason}: expected tk_, 8 characters, _ and 43 characters, as tacho keys create printed it"
        )
    return token


def find_credential(server: ServerAddress) -> Credential | None:
    """Return the token for a server: `TACHO_API_KEY`, else the stored one, else None.

    Raises:
        ConfigError: if the variable or the file is invalid.
    """
    text = os.environ.get(API_KEY_VARIABLE)
    if text:
        return Credential(check_token(text, API_KEY_VARIABLE), API_KEY_VARIABLE)
    path = credentials_path()
    token = _read_file(path).servers.get(server.url)
    if token is None:
        return None
    return Credential(check_token(token, f"the key for {server} in {path}"), str(path))


def current_token(server: ServerAddress) -> str | None:
    """Return the token for a server as it is now; None if there is none, or the variable or the file is invalid.

    For a process that runs for long: the user may log in with another key meanwhile.
    """
    with contextlib.suppress(ConfigError):
        credential = find_credential(server)
        return credential.token if credential is not None else None
    return None


def stored_servers() -> list[str]:
    """Return the addresses of the servers with a stored key.

    Raises:
        ConfigError: if the file is invalid.
    """
    return sorted(_read_file(credentials_path()).servers)


def store_token(server: ServerAddress, token: str) -> Path:
    """Store the token for a server, in place of an earlier one; return the path of the file.

    Raises:
        ConfigError: if the token is not one, or the file is invalid or cannot be written.
    """
    token = check_token(token, "the key")
    with _edit_file() as content:
        content.servers[server.url] = token
    return credentials_path()


def remove_token(server: ServerAddress) -> bool:
    """Remove the token for a server; return whether there was one.

    Raises:
        ConfigError: if the file is invalid or cannot be written.
    """
    if server.url not in stored_servers():
        return False
    with _edit_file() as content:
        return content.servers.pop(server.url, None) is not None


@contextlib.contextmanager
def _edit_file() -> Iterator[_CredentialFile]:
    """Yield the content of the file, to be changed; write it at the end of the block."""
    path = credentials_path()
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive_lock(path.with_suffix(".lock"), below=folder, mode=0o600):
            content = _read_file(path, warns=False)  # the new file is private
            yield content
            replace_file(path, msgspec.json.encode(content, order="sorted") + b"\n", below=folder, mode=0o600)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _read_file(path: Path, *, warns: bool = True) -> _CredentialFile:
    """Return the content of the file; an empty one if there is none.

    Raises:
        ConfigError: if it cannot be read.
    """
    try:
        with open_to_read(path) as file:
            file_info = os.fstat(file.fileno())
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return _CredentialFile()
    except OSError as error:
        reason = str(error) if isinstance(error, UnsafeFileError) else f"{path}: {error.strerror}"
        raise ConfigError(f"cannot read your access keys: {reason}") from None
    if warns and os.name == "posix" and file_info.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        warn("other users can read your access keys in %s: run chmod 600 %s, and ask for new keys", path, path)
    try:
        content = decode_json(data, _CredentialFile)
        if content.version != 1 or len(data) > _MAX_BYTES:
            raise ValueError
    except (msgspec.MsgspecError, ValueError, RecursionError):  # its text could quote a key
        raise ConfigError(
            f"your access keys in {path} cannot be read, because the file is damaged or of a newer version; remove it "
            "and run tacho login again"
        ) from None
    return content
