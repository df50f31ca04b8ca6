"""Media as files for others: a zip of one name, a contact sheet of one step, an animation of one prompt over steps.

Pictures are decoded by `_thumbnails`, with its limits. Names inside of an archive are made of steps and numbers; texts
of the run, such as captions, are in its table of contents.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tachograph._base.hashing import read_blocks
from tachograph.reader._media import MediaItem
from tachograph.reader._media_files import file_size
from tachograph.reader._thumbnails import ThumbnailError, make_thumbnail, read_thumbnail
from tachograph.records import mark_non_finite

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["MediaExportError", "animate_pictures", "contact_sheet", "zip_media"]

_MAX_ZIP_FILES = 50_000
_MAX_SHEET_ITEMS = 100
_MAX_FRAMES = 300
_CELL_PX, _GAP_PX, _LINE_PX = 320, 12, 14
_FRAME_MS = 250
_MAX_CAPTION = 52


class MediaExportError(Exception):
    """There is nothing to export; the message says why."""


class _Chunks(io.RawIOBase):
    """Collects written bytes."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        chunk = bytes(data)  # type: ignore[call-overload]
        self._chunks.append(chunk)
        return len(chunk)

    def take(self) -> bytes:
        data = b"".join(self._chunks)
        self._chunks.clear()
        return data


def zip_media(items: Iterable[MediaItem]) -> Iterator[bytes]:
    """Yield an archive of the files of some items in pieces, and a table of contents, `items.jsonl`.

    The table has a line for each item, also for one without a file.
    """
    chunks = _Chunks()
    contents: list[str] = []
    names: set[str] = set()
    with zipfile.ZipFile(chunks, "w", zipfile.ZIP_STORED) as archive:
        for item in items:
            file = item.open() if len(names) < _MAX_ZIP_FILES else None
            name = None
            if file is not None:
                with file:
                    name = _entry_name(item, names)
                    entry = zipfile.ZipInfo(name)
                    entry.file_size = file_size(file)
                    with archive.open(entry, "w") as copy:
                        for block in read_blocks(file):
                            copy.write(block)
                            yield chunks.take()
            line = {"file": name, "name": item.name, "kind": item.kind, "step": item.step, **item.fields}
            problem = item.problem or ("left out: too many files" if len(names) >= _MAX_ZIP_FILES else None)
            contents.append(json.dumps(mark_non_finite(line | ({"problem": problem} if problem else {}))))
        archive.writestr(zipfile.ZipInfo("items.jsonl"), "".join(f"{line}\n" for line in contents))
        yield chunks.take()
    yield chunks.take()


def _entry_name(item: MediaItem, names: set[str]) -> str:
    """Return a name for the file of an item that no other one has."""
    stem = f"step-{item.step:09d}-{item.index:03d}"
    extension = item.fields["ext"]
    name, number = f"{stem}.{extension}", 2
    while name in names:  # the step was logged twice, as after a resume
        name, number = f"{stem}-{number}.{extension}", number + 1
    names.add(name)
    return name


def contact_sheet(items: Iterable[MediaItem]) -> bytes:
    """Return pictures with their captions as one PNG.

    Raises:
        MediaExportError: if there is no picture.
    """
    from PIL import Image, ImageDraw

    pictures = [item for item in items if item.kind == "image"][:_MAX_SHEET_ITEMS]
    if not pictures:
        raise MediaExportError("no pictures at this step")
    num_columns = min(len(pictures), 4 if len(pictures) <= 16 else 8)
    num_rows = -(-len(pictures) // num_columns)
    row_px = _CELL_PX + 2 * _LINE_PX + _GAP_PX
    size = (num_columns * (_CELL_PX + _GAP_PX) + _GAP_PX, num_rows * row_px + _GAP_PX)
    with Image.new("RGB", size, "white") as sheet:
        draw = ImageDraw.Draw(sheet)
        reasons: list[str] = []
        for number, item in enumerate(pictures):
            left = _GAP_PX + number % num_columns * (_CELL_PX + _GAP_PX)
            top = _GAP_PX + number // num_columns * row_px
            picture = _picture_of(item)
            if isinstance(picture, str):
                reasons.append(picture)
                draw.rectangle((left, top, left + _CELL_PX - 1, top + _CELL_PX - 1), outline="#bbbbbb")
                draw.text((left + 8, top + 8), _printable(picture), fill="#666666")
            else:
                with picture:
                    place = (left + (_CELL_PX - picture.width) // 2, top + (_CELL_PX - picture.height) // 2)
                    sheet.paste(picture, place)
            draw.text((left, top + _CELL_PX + 2), _printable(item.caption or ""), fill="black")
            facts = ", ".join(f"{key} {value}" for key, value in item.meta.items() if key != "prompt_id")
            label = f"{item.index}, step {item.step}{', ' if facts else ''}{facts}"
            draw.text((left, top + _CELL_PX + 2 + _LINE_PX), _printable(label), fill="#666666")
        if len(reasons) == len(pictures):
            raise MediaExportError(f"none of the pictures can be shown: {reasons[0]}")
        buffer = io.BytesIO()
        sheet.save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()


def animate_pictures(items: Iterable[MediaItem]) -> bytes:
    """Return pictures in their order as an animated WebP; of very many, some are left out evenly.

    Raises:
        MediaExportError: if there are fewer than two pictures.
    """
    from PIL import Image

    chosen = [item for item in items if item.kind == "image"]
    if len(chosen) > _MAX_FRAMES:
        chosen = [chosen[number * (len(chosen) - 1) // (_MAX_FRAMES - 1)] for number in range(_MAX_FRAMES)]
    pictures = [picture for item in chosen if not isinstance(picture := _picture_of(item), str)]
    if len(pictures) < 2:
        raise MediaExportError("an animation needs this picture at two steps at least")
    size = (max(picture.width for picture in pictures), max(picture.height for picture in pictures))
    frames = []
    for picture in pictures:
        with picture:
            frame = Image.new("RGB", size, "white")
            frame.paste(picture, ((size[0] - picture.width) // 2, (size[1] - picture.height) // 2))
        frames.append(frame)
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "WEBP", save_all=True, append_images=frames[1:], duration=_FRAME_MS, loop=0, quality=80, method=2
    )
    return buffer.getvalue()


def _picture_of(item: MediaItem) -> Image.Image | str:
    """Return a picture scaled down, or the reason why there is none."""
    from PIL import Image

    sha256 = item.fields.get("sha256")
    file = item.open()
    try:
        if file is None:
            data = read_thumbnail(item.folder, sha256, _CELL_PX) if isinstance(sha256, str) and item.problem else None
        else:
            with file:
                data = make_thumbnail(item.folder, str(sha256), file, _CELL_PX)
    except ThumbnailError as error:
        return str(error)
    if data is None:
        return item.problem or "no picture"
    with Image.open(io.BytesIO(data), formats=["WEBP"]) as image:
        if image.mode == "RGB":
            return image.copy()
        opaque = Image.new("RGB", image.size, "white")
        opaque.paste(image, mask=image.convert("RGBA").getchannel("A"))
        return opaque


def _printable(text: str) -> str:
    """Return a text on one line that fits below a picture, with characters that every font has."""
    line = re.sub(r"[^\x20-\x7e\xa0-\xff]", "?", " ".join(text.split()))
    return line if len(line) <= _MAX_CAPTION else f"{line[: _MAX_CAPTION - 3]}..."
