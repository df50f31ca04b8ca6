"""Free the space of the media of an ended run: pack the files into one archive, thin pictures, or drop files.

`pack` writes the archive under a temporary name and checks each file against its hash. Under the lock of the run, the
archive gets its name and only then the packed files are deleted: killed at any moment, each file is in the folder or in
the archive. A file whose content does not have its hash stays where it is.

`thin` and `drop` spare every file that a record which stays refers to, and as a rule the first and the newest step of
each name. A `MediaFilter` selects kinds, ages and sizes.
"""

from __future__ import annotations

import contextlib
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tachograph._base.files import make_folder, replacing
from tachograph._base.hashing import hash_blocks, read_blocks
from tachograph.catalog._values import parse_age_s, parse_size_bytes
from tachograph.journal import RunFolder
from tachograph.reader import (
    MediaFileName,
    ThumbnailError,
    file_size,
    has_media,
    list_packed_media,
    locate_media,
    make_thumbnail,
    media_entry,
    media_pack,
    media_path,
    media_size,
    open_media,
    parse_media_entry,
    read_media_records,
    read_table_rows,
    remove_thumbnail,
    scan_media,
    table_cell_files,
)
from tachograph.records import finite_or_none

__all__ = [
    "MediaFilter",
    "Publishing",
    "drop_media",
    "list_loose_media",
    "list_removable_media",
    "pack_media",
    "parse_media_filter",
]

Publishing = Callable[[], contextlib.AbstractContextManager[bool]]
"""Yields whether the run may be changed, and keeps others from recording it meanwhile."""

_DROPPED_KINDS = ("image", "video", "audio", "points", "html", "plotly", "file")
_FILTER_KINDS = (*_DROPPED_KINDS, "table")
_OLD_S = 86_400.0


class MediaFilter(NamedTuple):
    """The media that are removed."""

    kinds: tuple[str, ...] = ()
    """Only these kinds; empty: all except tables."""
    age: str = ""
    """Only if logged longer ago than this, such as ``30d``."""
    size: str = ""
    """Only files larger than this, such as ``10MB``."""
    includes_ends: bool = False
    """Whether the first and the newest step of each name are removed, too."""

    def __str__(self) -> str:
        parts = [
            f"kind={'+'.join(self.kinds)}" if self.kinds else "",
            f"older={self.age}" if self.age else "",
            f"larger={self.size}" if self.size else "",
            "all" if self.includes_ends else "",
        ]
        return ":".join(part for part in parts if part)

    def has_age(self, record: dict[str, Any]) -> bool:
        """Return whether a record is old enough; a record without a time is not."""
        min_age_s = parse_age_s(self.age) if self.age else None
        if min_age_s is None:
            return True
        logged_at = finite_or_none(record.get("time"))
        return logged_at is not None and logged_at < time.time() - min_age_s


def parse_media_filter(text: str) -> MediaFilter:
    """Return the filter of a text such as ``kind=video+audio:older=30d:larger=10MB:all``.

    Raises:
        ValueError: if a part is invalid; the message says which one, and names the valid values.
    """
    media_filter = MediaFilter()
    for part in text.split(":") if text else ():
        name, _, value = part.strip().partition("=")
        if name == "kind" and value:
            kinds = tuple(dict.fromkeys(value.split("+")))
            if unknown_kinds := [kind for kind in kinds if kind not in _FILTER_KINDS]:
                raise ValueError(f"unknown kind {unknown_kinds[0]!r}; expected {', '.join(_FILTER_KINDS)}")
            media_filter = media_filter._replace(kinds=kinds)
        elif name == "older" and value:
            if parse_age_s(value) is None:
                raise ValueError(f"invalid age {value!r}; expected a number with a unit, such as 30d, 12h or 4w")
            media_filter = media_filter._replace(age=value)
        elif name == "larger" and value:
            if parse_size_bytes(value) is None:
                raise ValueError(f"invalid size {value!r}; expected a number of bytes, such as 500kB, 10MB or 2GB")
            media_filter = media_filter._replace(size=value)
        elif part.strip() == "all":
            media_filter = media_filter._replace(includes_ends=True)
        else:
            raise ValueError(f"unknown option {part!r}; expected kind=KIND, older=AGE, larger=SIZE or all")
    return media_filter


class _NotAllowedError(Exception):
    """The run was resumed while its media were packed."""


def list_loose_media(folder: RunFolder) -> list[MediaFileName]:
    """Return the media files of a run that are not packed."""
    if folder.media.is_symlink():
        return []
    names = (
        parse_media_entry(Path(parent, name).relative_to(folder.media).as_posix())
        for parent, _, names in os.walk(folder.media)
        for name in names
    )
    return sorted(name for name in names if name is not None)


def pack_media(folder: RunFolder, *, publishing: Publishing, without: frozenset[MediaFileName] = frozenset()) -> int:
    """Pack all media files into the archive of the run, beside the ones that it has.

    Args:
        folder: the run.
        publishing: called when the archive is complete.
        without: files that do not get into the archive; outside of it they stay.

    Returns:
        How many files outside of the archive were packed.

    Raises:
        OSError: if a file cannot be read or written. Then nothing was changed.
    """
    loose = [file for file in list_loose_media(folder) if file not in without]
    packed = {file for entry in list_packed_media(folder) if (file := parse_media_entry(entry)) is not None}
    if not loose and not packed & without:
        return 0
    target = media_pack(folder)
    for leftover in folder.path.glob(f".{target.name}.*.tmp"):  # of a process that was killed
        if leftover.stat().st_mtime < time.time() - _OLD_S:
            leftover.unlink(missing_ok=True)
    with contextlib.ExitStack() as publication:
        try:
            with replacing(target, below=folder.path) as descriptor:
                with open(descriptor, "r+b", closefd=False) as archive:
                    written = set(_write_archive(folder, sorted({*loose, *packed} - without), archive))
                os.fsync(descriptor)
                if not publication.enter_context(publishing()):
                    raise _NotAllowedError
        except _NotAllowedError:
            return 0
        os.close(descriptor)
        packed_files = [file for file in loose if file in written]
        for file in packed_files:
            media_path(folder, *file).unlink(missing_ok=True)
        _remove_empty_folders(folder)
    return len(packed_files)


def _write_archive(folder: RunFolder, files: list[MediaFileName], archive: BinaryIO) -> Iterator[MediaFileName]:
    """Write files without compressing them; yield the ones whose content has their hash."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as pack:
        for file in files:
            source = open_media(folder, *file)
            if source is None:
                continue
            with source:
                if hash_blocks(read_blocks(source)).sha256 != file.sha256:
                    continue
                entry = zipfile.ZipInfo(media_entry(*file))
                entry.file_size = file_size(source)
                with pack.open(entry, "w") as copy:
                    for block in read_blocks(source):
                        copy.write(block)
            yield file


def _remove_empty_folders(folder: RunFolder) -> None:
    for path in [*folder.media.glob("[0-9a-f][0-9a-f]"), folder.media]:
        with contextlib.suppress(OSError):  # not empty, or not there
            path.rmdir()


def list_removable_media(
    folder: RunFolder, *, is_thinned: bool, media_filter: MediaFilter | None = None
) -> list[MediaFileName]:
    """Return the files that `thin` (only pictures) or `drop` remove, and that are there."""
    selection = media_filter or MediaFilter()
    kinds = {"image"} if is_thinned else set(selection.kinds or _DROPPED_KINDS)
    min_bytes = parse_size_bytes(selection.size) or 0
    index = scan_media(folder.journal)
    steps_of = {name: entry.steps for name, entry in index.names().items()}
    removable: dict[MediaFileName, None] = {}
    needed: set[MediaFileName] = set()
    for record in read_media_records(folder.journal, index.locations()):
        location = locate_media(record, 0, 0)
        steps = steps_of.get(location.name, [])
        files = [MediaFileName(*file) for file in location.files]
        if location.kind == "table":
            files += [cell for file in files for cell in _files_of_table(folder, file)]
        is_end = location.step in steps[:1] + steps[-1:]
        is_selected = location.kind in kinds and selection.has_age(record)
        if is_selected and (selection.includes_ends or not is_end):
            removable.update(dict.fromkeys(files))
        else:
            needed.update(files)
    return [
        file
        for file in removable
        if file not in needed and has_media(folder, *file) and (media_size(folder, *file) or 0) >= min_bytes
    ]


def _files_of_table(folder: RunFolder, table: MediaFileName) -> Iterator[MediaFileName]:
    file = open_media(folder, *table) if table.extension.endswith("gz") else None
    if file is not None:
        with file:
            yield from (MediaFileName(*cell) for cell in table_cell_files(read_table_rows(file)[0]))


def drop_media(
    folder: RunFolder, *, is_thinned: bool, publishing: Publishing, media_filter: MediaFilter | None = None
) -> tuple[int, int]:
    """Remove files; `is_thinned` keeps small versions of pictures and the files of which there cannot be one.

    Returns:
        The bytes and the number of the files that were removed.

    Raises:
        OSError: if a file cannot be read or written.
    """
    files = list_removable_media(folder, is_thinned=is_thinned, media_filter=media_filter)
    if is_thinned:
        files = [file for file in files if _has_thumbnail(folder, file)]
    sizes = {file: media_size(folder, *file) or 0 for file in files}
    with publishing() as is_allowed:
        if not is_allowed:
            return 0, 0
        for file in files:
            media_path(folder, *file).unlink(missing_ok=True)
            if not is_thinned:
                remove_thumbnail(folder, file.sha256)
        _remove_empty_folders(folder)
    pack_again = any(media_entry(*file) in list_packed_media(folder) for file in files)
    if pack_again:
        pack_media(folder, publishing=publishing, without=frozenset(files))
    return sum(sizes.values()), len(files)


def _has_thumbnail(folder: RunFolder, file: MediaFileName) -> bool:
    """Make the thumbnail of a picture; return False if there cannot be one, or if it cannot be stored."""
    source = open_media(folder, *file)
    if source is None:
        return False
    with source, contextlib.suppress(ThumbnailError):
        make_folder(folder.private / "thumbs", below=folder.path)
        make_thumbnail(folder, file.sha256, source, 320)
    return (folder.private / "thumbs" / f"{file.sha256}-320.webp").is_file()
