"""Open, create and replace files without touching the files of others. No other module opens files for writing.

A log folder may lie on a disk that other users or programs can write to. At a path that we are about to write they can
put a link to any file, a pipe that blocks, a second name of another file (a hard link) or a file of their own. So:

- Each function takes a path and the folder `below` which the path lies. The user chose that folder and may have put
  links above it or in its place. Below it no folder and no file may be a link. The folders are opened one after the
  other, each relative to the one before, so replacing one of them with a link in the meantime has no effect.
- An existing file is used only if it is a regular file with one name that belongs to this user or to the owner of its
  folder. That owner can replace the file at any time, so rejecting it would protect nothing; and on some shared disks
  every file seems to belong to another user. A file that we create is ours, whatever its owner seems to be.
- Opening never blocks, and the descriptor is not inherited by other programs.
- A temporary file is created anew under a name that cannot be guessed.

A rejected file raises `UnsafeFileError`. Where the system lacks a flag (Windows), the checks are made before opening.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tachograph._base.guard import faults, suppress

__all__ = [
    "UnsafeFileError",
    "add_file",
    "add_name",
    "check_file",
    "clone_file",
    "create_file",
    "exclusive_lock",
    "is_trusted",
    "link_file",
    "link_user_file",
    "make_folder",
    "make_link",
    "make_temporary_folder",
    "move_file",
    "move_folder",
    "open_folder",
    "open_lock",
    "open_to_append",
    "open_to_read",
    "open_to_update",
    "open_user_file",
    "read_small",
    "read_small_files",
    "replace_file",
    "replacing",
    "temporary_path",
    "write_all",
]

_SAFE_FLAGS = 0
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY", "O_NOINHERIT"):
    _SAFE_FLAGS |= getattr(os, _flag, 0)
_FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FICLONE = 0x40049409
"""The request of Linux to share the blocks of another file."""
_HAS_DIR_FD = os.open in os.supports_dir_fd


class UnsafeFileError(OSError):
    """A file or folder in the way was not made by us; the message names it and the remedy."""

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


class _DirEntry(NamedTuple):
    """A path, as the name to use with the descriptor of its folder; without descriptors the name is the whole path."""

    path: Path
    name: str
    folder: int | None

    def sibling(self, path: Path) -> _DirEntry:
        return _DirEntry(path, path.name if self.folder is not None else str(path), self.folder)

    def lstat(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def unlink(self) -> None:
        with suppress(OSError):
            os.unlink(self.name, dir_fd=self.folder)


# Opening -------------------------------------------------------------------------------------------------------------


def open_to_append(path: Path, *, below: Path, mode: int = 0o644, must_exist: bool = False) -> int:
    """Return a descriptor that reads anywhere and writes at the end of a file; create the file if necessary.

    Raises:
        OSError: if it cannot be opened; `UnsafeFileError` if it is not ours.
    """
    return _open_or_create(path, below, os.O_RDWR | os.O_APPEND, mode, must_exist=must_exist)


def open_to_update(path: Path, *, below: Path, mode: int = 0o644) -> int:
    """Return a descriptor that reads and writes anywhere in a file; create the file if necessary.

    Raises:
        OSError: if it cannot be opened; `UnsafeFileError` if it is not ours.
    """
    return _open_or_create(path, below, os.O_RDWR, mode)


def open_lock(path: Path, *, below: Path, mode: int = 0o644) -> int:
    """Return a descriptor to lock. The file has no content, so it may belong to anyone.

    Raises:
        OSError: if it cannot be opened; `UnsafeFileError` if it is not a regular file.
    """
    return _open_or_create(path, below, os.O_RDWR, mode, any_owner=True)


@contextlib.contextmanager
def exclusive_lock(
    path: Path, *, below: Path, mode: int = 0o644, is_shared: bool = False, may_wait: bool = True
) -> Iterator[None]:
    """Wait until no other process or thread is in such a block; see `open_lock`. Windows has no such locks.

    Args:
        path: the file to lock.
        below: see the module.
        mode: the permissions of a new file.
        is_shared: whether others may be in the block at the same time if they share it as well.
        may_wait: whether to wait for others.

    Raises:
        BlockingIOError: if others are in the block and this must not wait.
        OSError: if the file cannot be opened or locked.
    """
    descriptor = open_lock(path, below=below, mode=mode)
    try:
        with suppress(ImportError):
            import fcntl

            operation = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
            fcntl.flock(descriptor, operation if may_wait else operation | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def open_folder(path: Path) -> int:
    """Return a descriptor of a folder, which keeps its identity as long as it is open.

    Raises:
        OSError: if it is not a folder.
    """
    return os.open(path, _FOLDER_FLAGS | getattr(os, "O_NOFOLLOW", 0))


def create_file(path: Path, *, below: Path, mode: int = 0o644) -> int:
    """Create a file and return a descriptor to append to it.

    Raises:
        FileExistsError: if there is anything at the path.
    """
    with _resolve(path, below) as entry:
        return _open(entry, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, mode)


def open_to_read(path: Path, *, below: Path | None = None) -> BinaryIO:
    """Open a regular file for reading. Never blocks, and follows no link that others may have put there.

    Raises:
        OSError: if it cannot be read; `UnsafeFileError` if it is not a regular file.
    """
    with _resolve(path, below or path.parent) as entry:
        descriptor = _open(entry, os.O_RDONLY, 0)
    try:
        _check_kind(os.fstat(descriptor), path)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_small(path: Path, max_bytes: int, *, below: Path | None = None) -> bytes:
    """Return the content of a small regular file; see `open_to_read`.

    Raises:
        OSError: if it cannot be read, is not a regular file, or has more than `max_bytes`.
    """
    with open_to_read(path, below=below) as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes", str(path))
        return file.read(max_bytes)


def read_small_files(folder: Path, names: Iterable[str], max_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of small regular files of one folder, several times faster than `read_small` for many.

    Leaves out files that cannot be read, are not regular or have more than `max_bytes`.
    """
    with suppress(OSError), _resolve(folder / "names", folder) as entry:
        for name in names:
            try:
                data = _read_whole(entry.sibling(folder / name), max_bytes)
            except faults(OSError):
                continue
            yield name, data


def open_user_file(path: str | os.PathLike[str], *, mode: int = 0o666) -> BinaryIO:
    """Open a file that the user named, for appending without a buffer. It may be a link, a terminal or a pipe.

    Raises:
        OSError: if it cannot be opened, such as a named pipe that no process reads from.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if not hasattr(os, "O_NONBLOCK"):
        return open(os.open(path, flags, mode), "wb", buffering=0)
    descriptor = os.open(path, flags | os.O_NONBLOCK, mode)  # or it would wait for a reader of a named pipe
    os.set_blocking(descriptor, True)
    return open(descriptor, "wb", buffering=0)


def check_file(path: Path, *, below: Path) -> None:
    """Raise `UnsafeFileError` if there is something at the path that `open_to_update` would reject."""
    with suppress(FileNotFoundError), _resolve(path, below) as entry:
        _check_ours(entry.lstat(), entry)


def is_trusted(path: Path) -> bool:
    """Return whether a file or folder belongs to this user or to the owner of the folder that contains it."""
    return _is_trusted(os.stat(path), os.stat(path.parent))


# Replacing -----------------------------------------------------------------------------------------------------------


def replace_file(path: Path, data: bytes, *, below: Path, mode: int = 0o666) -> None:
    """Replace a file atomically: a reader sees the old content or the new one, never a part.

    Raises:
        OSError: if it cannot be replaced; the old file is left as it was.
    """
    with _resolve(path, below) as entry:
        temporary = _write_temporary(entry, data, mode)
        try:
            _rename(temporary, entry)
        except BaseException:
            temporary.unlink()
            raise


def add_file(path: Path, data: bytes | memoryview, *, below: Path, mode: int = 0o666) -> bool:
    """Create a file with all of its content at once; return False if there is a file of this name.

    Raises:
        OSError: if it cannot be written.
    """
    with _resolve(path, below) as entry:
        temporary = _write_temporary(entry, data, mode)
        try:
            _rename_to_new(temporary, entry)
        except faults(FileExistsError):
            return False
        finally:
            temporary.unlink()
        return True


@contextlib.contextmanager
def replacing(path: Path, *, below: Path, mode: int = 0o644, must_be_new: bool = False) -> Iterator[int]:
    """Yield a descriptor of a new file, which takes the place of `path` if the block succeeds.

    The descriptor then stays open and belongs to the caller. If the block raises, it is closed and the file removed.

    Raises:
        FileExistsError: at the end of the block, if there is anything at the path that `must_be_new`.
    """
    with _resolve(path, below) as entry:
        temporary = entry.sibling(temporary_path(path))
        descriptor = _open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            yield descriptor
            if must_be_new:
                _rename_to_new(temporary, entry)
            else:
                _rename(temporary, entry)
        except BaseException:
            os.close(descriptor)
            temporary.unlink()
            raise


def temporary_path(path: Path) -> Path:
    """Return a path next to a file, with a name that cannot be guessed: ``.<name>.<random>.tmp``."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")


def move_file(source: Path, target: Path, *, below: Path) -> None:
    """Move a file to another name in the same folder, atomically.

    Raises:
        OSError: if it cannot be moved.
    """
    with _resolve(target, below) as entry:
        _rename(entry.sibling(source), entry)


def write_all(descriptor: int, data: bytes | memoryview) -> int:
    """Write all of the data; return its size."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return len(data)


def clone_file(source: int, target: int) -> bool:
    """Give a new file the content of another one without copying it; return False where that is not possible.

    Some file systems (Btrfs, XFS) let files share blocks until one of them is changed, so a clone costs nothing and
    later changes of the source do not affect it.
    """
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.ioctl(target, _FICLONE, source)
        return True
    return False


def add_name(source: Path, target: Path, *, below: Path) -> None:
    """Give a file a second name, or copy it where that is not possible; nothing that exists is replaced.

    Raises:
        OSError: if it cannot be created; `UnsafeFileError` if the source is not a regular file.
    """
    with _resolve(source, below) as old, _resolve(target, below) as new:
        _check_kind(old.lstat(), source)
        with suppress(OSError):  # a file system without hard links, or a file of another user
            os.link(old.name, new.name, src_dir_fd=old.folder, dst_dir_fd=new.folder, follow_symlinks=False)
            return
    with open_to_read(source, below=below) as file:
        descriptor = create_file(target, below=below)
        try:
            while block := file.read(1 << 20):
                write_all(descriptor, block)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Folders -------------------------------------------------------------------------------------------------------------


def make_link(path: Path, target: Path, *, below: Path) -> None:
    """Create a symbolic link to a file of the user; nothing that exists is replaced.

    Raises:
        OSError: if it cannot be created; `UnsafeFileError` if a folder above it is a link or a file.
    """
    with _resolve(path, below) as entry:
        os.symlink(target, entry.name, dir_fd=entry.folder)


def link_file(path: Path, new: Path, *, below: Path) -> None:
    """Give a file a second name (a hard link) in another folder; do nothing if there is a file of that name.

    Raises:
        OSError: if the file system has no hard links, or a folder above either one is a symbolic link.
    """
    with _resolve(path, below) as source, _resolve(new, below) as target:
        _check_kind(source.lstat(), path)
        with suppress(FileExistsError):
            os.link(
                source.name,
                target.name,
                src_dir_fd=source.folder,
                dst_dir_fd=target.folder,
                follow_symlinks=False,
            )


def link_user_file(source: str, path: Path, *, below: Path) -> None:
    """Give a file of the user a second name (a hard link); see `open_user_file`.

    Raises:
        FileExistsError: if there is anything at the path.
        OSError: if the file system has no hard links, or the file lies on another one or belongs to another user.
    """
    with _resolve(path, below) as entry:
        os.link(os.path.realpath(source), entry.name, dst_dir_fd=entry.folder, follow_symlinks=False)


def make_folder(path: Path, *, below: Path, mode: int = 0o777) -> None:
    """Create a folder, and the folders between it and `below`, if they do not exist.

    Raises:
        OSError: if it cannot be created; `UnsafeFileError` if one of them is a link or a file.
    """
    folder = below
    for part in path.relative_to(below).parts:
        folder /= part
        with _resolve(folder, below) as entry:
            try:
                os.mkdir(entry.name, mode, dir_fd=entry.folder)
            except faults(FileExistsError):
                _check_folder(entry.lstat(), folder)
            except faults(OSError) as error:
                raise _with_path(error, folder) from None


def move_folder(source: Path, target: Path, *, below: Path, target_below: Path | None = None) -> None:
    """Move a folder to a name that is not in use, atomically and within one file system.

    Args:
        source: the folder.
        target: its new path.
        below: see the module; for both paths, unless the target lies somewhere else.
        target_below: the same for a target that lies somewhere else.

    Raises:
        FileExistsError: if there is anything at the target.
        OSError: if it cannot be moved; `UnsafeFileError` if the source or a folder above either one is a link.
    """
    with _resolve(source, below) as old, _resolve(target, target_below or below) as new:
        _check_folder(old.lstat(), source)
        with suppress(FileNotFoundError):
            new.lstat()
            raise FileExistsError(errno.EEXIST, "exists already", str(target))
        try:
            # A folder that appears in the meantime is replaced only if it is empty.
            os.rename(old.name, new.name, src_dir_fd=old.folder, dst_dir_fd=new.folder)
        except faults(OSError) as error:
            raise _with_path(error, source) from None


@contextlib.contextmanager
def make_temporary_folder(parent: Path, *, below: Path) -> Iterator[Path]:
    """Create a folder that only this user can use, for a library that opens files by path; delete it afterwards."""
    import shutil

    path = temporary_path(parent / "folder")
    with _resolve(path, below) as entry:
        os.mkdir(entry.name, 0o700, dir_fd=entry.folder)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# Implementation ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _resolve(path: Path, below: Path) -> Iterator[_DirEntry]:
    """Yield the name of a file and the descriptor of its folder, which was reached from `below` without a link."""
    inner = path.relative_to(below).parts
    if not _HAS_DIR_FD:
        folder = below
        for part in inner[:-1]:
            folder /= part
            _check_folder(os.lstat(folder), folder)
        yield _DirEntry(path, str(path), None)
        return
    current, folder = os.open(below, _FOLDER_FLAGS), below
    try:
        for part in inner[:-1]:
            folder /= part
            outer = current
            try:
                current = os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=outer)
            except faults(OSError) as error:
                _check_folder(os.stat(part, dir_fd=outer, follow_symlinks=False), folder)
                raise _with_path(error, folder) from None
            os.close(outer)
        yield _DirEntry(path, inner[-1], current)
    finally:
        os.close(current)


def _open_or_create(
    path: Path, below: Path, flags: int, mode: int, *, must_exist: bool = False, any_owner: bool = False
) -> int:
    with _resolve(path, below) as entry:
        for _ in range(100):  # the file may appear and disappear between the two attempts
            try:
                descriptor = _open(entry, flags, mode)
            except faults(FileNotFoundError):
                if must_exist:
                    raise
            else:
                try:
                    status = os.fstat(descriptor)
                    _check_kind(status, path) if any_owner else _check_ours(status, entry)
                except BaseException:
                    os.close(descriptor)
                    raise
                return descriptor
            with suppress(FileExistsError):
                return _open(entry, flags | os.O_CREAT | os.O_EXCL, mode)
    raise OSError(errno.EAGAIN, "is created and deleted by another process all the time", str(path))


def _read_whole(entry: _DirEntry, max_bytes: int) -> bytes:
    descriptor = _open(entry, os.O_RDONLY, 0)
    try:
        status = os.fstat(descriptor)
        _check_kind(status, entry.path)
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"is larger than {max_bytes} bytes", str(entry.path))
        data = os.read(descriptor, status.st_size)
        while len(data) < status.st_size and (more := os.read(descriptor, status.st_size - len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


def _open(entry: _DirEntry, flags: int, mode: int) -> int:
    try:
        if not _HAS_DIR_FD and not flags & os.O_EXCL:
            _check_kind(entry.lstat(), entry.path)
        return os.open(entry.name, flags | _SAFE_FLAGS, mode, dir_fd=entry.folder)
    except faults(OSError) as error:
        if not flags & os.O_EXCL:
            with suppress(FileNotFoundError):  # name its kind: the error of the system does not
                _check_kind(entry.lstat(), entry.path)
        raise _with_path(error, entry.path) from None


def _write_temporary(entry: _DirEntry, data: bytes | memoryview, mode: int) -> _DirEntry:
    temporary = entry.sibling(temporary_path(entry.path))
    descriptor = _open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)
    except BaseException:
        temporary.unlink()
        raise
    return temporary


def _rename(source: _DirEntry, target: _DirEntry) -> None:
    try:
        os.replace(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)
    except faults(OSError) as error:
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(target.lstat().st_mode):
                _check_kind(target.lstat(), target.path)
        raise _with_path(error, target.path) from None


def _rename_to_new(source: _DirEntry, target: _DirEntry) -> None:
    """Move a file to a name that is not in use, without a moment at which another file could be overwritten.

    Raises:
        FileExistsError: if the name is in use.
    """
    try:
        os.link(source.name, target.name, src_dir_fd=source.folder, dst_dir_fd=target.folder)
    except faults(FileExistsError) as error:
        raise _with_path(error, target.path) from None
    except faults(OSError):  # a file system without hard links
        _rename(source, target)
    else:
        source.unlink()


def _check_kind(status: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise UnsafeFileError(errno.ELOOP, "is a symbolic link; remove it", str(path))
    if stat.S_ISDIR(status.st_mode):
        raise UnsafeFileError(errno.EISDIR, "is a folder; remove it", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeFileError(errno.EINVAL, "is not a regular file; remove it", str(path))


def _check_ours(status: os.stat_result, entry: _DirEntry) -> None:
    _check_kind(status, entry.path)
    if status.st_nlink > 1:
        raise UnsafeFileError(
            errno.EMLINK, "has a second name (a hard link); replace it with a copy or remove it", str(entry.path)
        )
    folder_status = os.stat(entry.path.parent) if entry.folder is None else os.fstat(entry.folder)
    if not _is_trusted(status, folder_status):
        raise UnsafeFileError(errno.EPERM, "belongs to another user; remove it", str(entry.path))


def _is_trusted(status: os.stat_result, folder_status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid in {os.geteuid(), folder_status.st_uid}


def _check_folder(status: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise UnsafeFileError(errno.ELOOP, "is a symbolic link; remove it", str(path))
    if not stat.S_ISDIR(status.st_mode):
        raise UnsafeFileError(errno.ENOTDIR, "is not a folder; remove it", str(path))


def _with_path(error: OSError, path: Path) -> OSError:
    """Return an error with the whole path: the system was given only its last part."""
    if isinstance(error, UnsafeFileError):
        return error
    return OSError(error.errno, error.strerror, str(path))
