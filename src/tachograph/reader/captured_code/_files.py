"""The files of captured code: named by their content, in the folder `code` of a run.

Runs of one log folder share them by hard links to `.tachograph/code`, so a file takes space once, and each run is still
complete by itself: it can be moved, copied and removed as a folder. Where links are not possible, a run has its own
copy. Whatever is read is checked against its name, because another user could change a shared file.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from tachograph._base.files import add_file, link_file, make_folder, read_small
from tachograph._base.guard import faults
from tachograph.exceptions import CodeError
from tachograph.journal import RunFolder

__all__ = ["code_file_path", "read_code_file", "remove_unused_code_files", "write_code_file"]

_DIGEST_CHARS = 40
_NAME = re.compile(rf"[0-9a-f]{{{_DIGEST_CHARS}}}(\.(?:patch|txt|json))?")
_MAX_BYTES = 16 << 20


def write_code_file(folder: RunFolder, data: bytes, suffix: str = "") -> str:
    """Store data in a run; return the name of the file.

    Raises:
        OSError: if it cannot be written.
    """
    name = _digest(data) + suffix
    own_path = folder.code / name
    make_folder(folder.code, below=folder.path)
    if own_path.exists():
        return name
    log_dir = folder.path.parent
    shared_path = _shared_folder(log_dir) / name
    try:
        make_folder(shared_path.parent, below=log_dir)
        if add_file(shared_path, data, below=log_dir) or read_small(shared_path, len(data), below=log_dir) == data:
            link_file(shared_path, own_path, below=log_dir)
            return name
    except faults(OSError):
        pass  # no hard links, no permission, or a file of another user: the run gets a copy
    add_file(own_path, data, below=folder.path)
    return name


def code_file_path(folder: RunFolder, name: str) -> Path:
    """Return the path of a stored file.

    Raises:
        CodeError: if the name is not one that `write_code_file` returns.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CodeError(f"{name!r} is not the name of a stored file")
    return folder.code / name


def read_code_file(folder: RunFolder, name: str) -> bytes:
    """Return the content of a stored file.

    Raises:
        CodeError: if it is missing or was changed.
    """
    path = code_file_path(folder, name)
    try:
        data = read_small(path, _MAX_BYTES, below=folder.path)
    except faults(OSError) as error:
        raise CodeError(f"cannot read {path}: {error.strerror}") from error
    if _digest(data) != name.partition(".")[0]:
        raise CodeError(f"{path} was changed after it was captured")
    return data


def remove_unused_code_files(log_dir: str | os.PathLike[str]) -> int:
    """Delete the shared files that no run links to; return the number of bytes freed."""
    num_freed_bytes = 0
    try:
        entries = list(os.scandir(_shared_folder(Path(log_dir))))
    except faults(OSError):
        return 0
    for entry in entries:
        try:
            file_status = entry.stat(follow_symlinks=False)
            if file_status.st_nlink == 1 and _NAME.fullmatch(entry.name):
                os.unlink(entry.path)
                num_freed_bytes += file_status.st_size
        except faults(OSError):
            continue
    return num_freed_bytes


def _shared_folder(log_dir: Path) -> Path:
    return log_dir / ".tachograph" / "code"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARS]
