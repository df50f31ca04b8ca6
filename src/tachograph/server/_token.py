"""The user's dashboard token, kept in a file that only this user can read.

All dashboards of a user share one token, so that an address stays valid when a server is restarted. The file is created
completely under a temporary name and then linked to its own name, so two servers that start at the same time agree on
one token, and none reads half of it. A file that another user owns or could have read is not used.
"""

from __future__ import annotations

import contextlib
import errno
import html
import os
import re
import secrets
import stat
from pathlib import Path

from tachograph._base.files import UnsafeFileError, add_file, open_to_read
from tachograph._base.paths import state_folder

__all__ = ["TOKEN_PATTERN", "load_token", "token_path", "write_login_page"]

TOKEN_PATTERN = re.compile(r"[!-~]{1,256}")
_MAX_BYTES = 4096
_PRIVATE = stat.S_IRWXG | stat.S_IRWXO


def token_path() -> Path:
    """Return the path of the file that holds the user's token."""
    return state_folder() / "dashboard" / "token"


def load_token() -> str:
    """Return the user's token; create it if there is none, or if others could have read it.

    Raises:
        OSError: if there is no place for it that belongs to this user.
    """
    path = token_path()
    _make_private_folder(path.parent)
    for _ in range(10):  # another server may create or replace the file at the same time
        try:
            token = _read_private(path)
        except FileNotFoundError:
            _create_private(path, secrets.token_urlsafe(24))
            continue
        if token is not None and TOKEN_PATTERN.fullmatch(token):
            return token
        path.unlink(missing_ok=True)
    raise OSError(errno.EAGAIN, "keeps changing", str(path))


def write_login_page(url: str) -> Path:
    """Write a page that leads to a URL with a token, and return its path.

    A browser that is opened with the URL itself would show the token to every user of the machine in its command line.

    Raises:
        OSError: if it cannot be written.
    """
    path = token_path().with_name(f"open-{secrets.token_hex(8)}.html")
    _make_private_folder(path.parent)
    link = html.escape(url)
    _create_private(
        path,
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0; url={link}"><title>Tachograph</title>'
        f'<p><a href="{link}">Open the dashboard</a></p></html>\n',
    )
    return path


def _make_private_folder(folder: Path) -> None:
    """Create a folder that only this user can enter, and check that it is one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    folder_info = os.lstat(folder)
    if not stat.S_ISDIR(folder_info.st_mode) or folder_info.st_uid != _own_uid(folder_info):
        raise OSError(errno.EPERM, f"{folder} is not a folder of this user")
    if folder_info.st_mode & _PRIVATE:
        folder.chmod(0o700)


def _read_private(path: Path) -> str | None:
    """Return the content of a file; None if another user could have read or written it.

    Raises:
        OSError: if it cannot be opened; `FileNotFoundError` if there is none.
    """
    try:
        file = open_to_read(path)
    except UnsafeFileError:  # a link, for example
        return None
    with file:
        file_info = os.fstat(file.fileno())
        is_private = os.name != "posix" or not file_info.st_mode & _PRIVATE
        if file_info.st_uid != _own_uid(file_info) or not is_private:
            return None
        return file.read(_MAX_BYTES).decode("ascii", "replace").strip()


def _create_private(path: Path, text: str) -> None:
    """Create a file that only this user can read, unless there is one of that name."""
    add_file(path, text.encode("ascii"), below=path.parent, mode=0o600)


def _own_uid(file_info: os.stat_result) -> int:
    """Return our own uid, or the owner of the file on systems without uids."""
    return os.geteuid() if hasattr(os, "geteuid") else file_info.st_uid
