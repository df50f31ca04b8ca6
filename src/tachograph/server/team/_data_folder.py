"""Who may read the data folder on the machine of the server: its user and, if the administrator wants it, its group.

The folder has the runs of all projects. Other users of the machine could read them without any key, so the server takes
that access away when it starts, and creates new files without it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["close_to_others", "private_umask"]


@contextlib.contextmanager
def private_umask(*, for_group: bool) -> Iterator[None]:
    """Create files that only this user, or also the group, can read. This changes the whole process."""
    umask = os.umask(0o027 if for_group else 0o077)
    try:
        yield
    finally:
        os.umask(umask)


def close_to_others(root: Path, *, for_group: bool) -> str | None:
    """Create the data folder, or take away the access of others to it and to everything in it that belongs to us.

    Args:
        root: the folder.
        for_group: let the group of the folder read the runs; the keys in `.server` stay private.

    Returns:
        A warning, if other users can still read the folder.

    Raises:
        OSError: if it cannot be created.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name != "posix":
        return None
    folder_info = os.stat(root)
    mode = stat.S_IMODE(folder_info.st_mode)
    if folder_info.st_uid != os.geteuid():
        is_open = mode & 0o007 if for_group else mode & 0o077
        return f"other users can access {root}, which belongs to another user: chown it" if is_open else None
    if mode != _private_mode(folder_info, for_group=for_group):
        for path, folders, files, descriptor in os.fwalk(root):
            if path == os.fspath(root) and ".server" in folders:  # nothing in it is for others
                folders.remove(".server")
            for name in [*folders, *files]:
                _restrict(name, folder_info.st_gid, for_group=for_group, dir_fd=descriptor)
        # Last the folder itself: if this is interrupted, the next start does the rest.
        _restrict(os.path.realpath(root), folder_info.st_gid, for_group=for_group)
    return None


def _restrict(name: str, group: int, *, for_group: bool, dir_fd: int | None = None) -> None:
    """Take away the access of others to a file or folder of ours; leave links and anything of others as it is."""
    with contextlib.suppress(OSError):
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            file_info = os.fstat(descriptor)
            # A hard link may lead to a file outside of this folder, which the group must not be able to read.
            for_group = for_group and (stat.S_ISDIR(file_info.st_mode) or file_info.st_nlink == 1)
            if file_info.st_uid == os.geteuid():
                os.fchmod(descriptor, _private_mode(file_info, for_group=False))
                if for_group:
                    os.fchown(descriptor, -1, group)
                    os.fchmod(descriptor, _private_mode(file_info, for_group=True))
        finally:
            os.close(descriptor)


def _private_mode(file_info: os.stat_result, *, for_group: bool) -> int:
    mode = stat.S_IMODE(file_info.st_mode) & 0o700
    if for_group:
        mode |= (mode & 0o500) >> 3
        if stat.S_ISDIR(file_info.st_mode):
            mode |= stat.S_ISGID  # new files get the same group
    return mode
