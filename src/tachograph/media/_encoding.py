"""Media as files now, on the calling thread: for artifacts, whose files must exist when a call returns."""

from __future__ import annotations

import copy
from typing import Any

from tachograph.journal import RunFolder
from tachograph.media._snapshots import SnapshotError, snapshot
from tachograph.media._values import Image, MediaValue

__all__ = ["encode_media"]


def encode_media(value: MediaValue, folder: RunFolder) -> list[dict[str, Any]]:
    """Store the files of media in a folder; return the items, as in a `media` record. Pictures keep their exact pixels.

    An item that cannot be built has a `problem` instead of a file.

    Raises:
        OSError: if a file cannot be written.
    """
    from tachograph.media._items import ItemBuilder
    from tachograph.media._store import MediaStore

    if isinstance(value, Image):
        value = copy.copy(value)
        value.lossless = True
    try:
        return ItemBuilder(MediaStore(lambda: folder)).build(snapshot(value))
    except SnapshotError as error:
        return [{"problem": str(error)}]
