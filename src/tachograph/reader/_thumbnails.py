"""Scale pictures down, safely: they may come from anywhere.

Only the decoders of the formats that are shown are used, only the first frame is decoded, and a picture with too many
pixels is rejected before any of them is decoded. Pillow decodes block by block, as it reads the file; the reader raises
once the deadline has passed. The results are stored next to the run in ``.tacho/thumbs``, if the folder is writable.
"""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tachograph._base.files import add_file, make_folder, read_small
from tachograph._base.guard import suppress
from tachograph.journal import RunFolder
from tachograph.reader._media_files import file_size

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["ThumbnailError", "has_thumbnail", "make_thumbnail", "read_thumbnail", "remove_thumbnail"]

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_MAX_PIXELS = 64_000_000
_MAX_FILE_BYTES = 256 << 20
_MAX_THUMBNAIL_BYTES = 4 << 20
_DEADLINE_S = 10.0


class ThumbnailError(Exception):
    """The picture cannot be scaled; the message says why."""


def make_thumbnail(folder: RunFolder, sha256: str, file: BinaryIO, size_px: int) -> bytes:
    """Return a picture as WebP, at most `size_px` wide and high, from the cache if it is there.

    Raises:
        ThumbnailError: if it is not a picture, is too large, or takes too long.
    """
    data = read_thumbnail(folder, sha256, size_px)
    if data is not None:
        return data
    data = _scale(file, size_px)
    path = _path_of(folder, sha256, size_px)
    with suppress(OSError):  # a read-only folder
        make_folder(path.parent, below=folder.path)
        add_file(path, data, below=folder.path)
    return data


def read_thumbnail(folder: RunFolder, sha256: str, size_px: int) -> bytes | None:
    """Return a picture that was scaled down before. It may be all that is left of it."""
    with suppress(OSError):
        data = read_small(_path_of(folder, sha256, size_px), _MAX_THUMBNAIL_BYTES, below=folder.path)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return data
    return None


def has_thumbnail(folder: RunFolder, sha256: str, size_px: int = 320) -> bool:
    """Return whether a picture was scaled down before."""
    return _path_of(folder, sha256, size_px).is_file()


def remove_thumbnail(folder: RunFolder, sha256: str, size_px: int = 320) -> None:
    """Delete a picture that was scaled down."""
    _path_of(folder, sha256, size_px).unlink(missing_ok=True)


def _path_of(folder: RunFolder, sha256: str, size_px: int) -> Path:
    return folder.private / "thumbs" / f"{sha256}-{size_px}.webp"


class _DeadlineReader(io.RawIOBase):
    """Reads a file until a deadline."""

    def __init__(self, file: BinaryIO, deadline_s: float) -> None:
        self._file = file
        self._deadline_s = deadline_s

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self._deadline_s:
            raise TimeoutError
        return self._file.read(-1 if size is None else size)

    def tell(self) -> int:
        return self._file.tell()


def _scale(file: BinaryIO, size_px: int, deadline_s: float = _DEADLINE_S) -> bytes:
    from PIL import Image  # slow to import, and most pages show no pictures

    if file_size(file) > _MAX_FILE_BYTES:
        raise ThumbnailError(f"the file is larger than {_MAX_FILE_BYTES >> 20} MB")
    try:
        with Image.open(_DeadlineReader(file, time.monotonic() + deadline_s), formats=_FORMATS) as image:  # type: ignore[arg-type]
            width, height = image.size
            if width * height > _MAX_PIXELS:
                raise ThumbnailError(f"{width} × {height} pixels are too many to scale it down")
            image.draft("RGB", (2 * size_px, 2 * size_px))  # JPEG decodes at a fraction of the size
            image.load()
            scaled = _as_colours(image)
            scaled.thumbnail((size_px, size_px), reducing_gap=2.0)
            buffer = io.BytesIO()
            scaled.save(buffer, "WEBP", quality=85, method=2)
            return buffer.getvalue()
    except ThumbnailError:
        raise
    except TimeoutError:
        raise ThumbnailError(f"it takes longer than {deadline_s:g} s to decode") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ThumbnailError("it has too many pixels to scale it down") from None
    except Exception as error:  # noqa: BLE001 - decoders raise anything for damaged files
        raise ThumbnailError(f"not a picture that can be decoded ({type(error).__name__})") from None


def _as_colours(image: Image.Image) -> Image.Image:
    """Return a decoded picture with 8 bits per channel."""
    if image.mode.startswith("I"):  # 16 bits of grey
        image = image.point(lambda value: value * (1 / 257)).convert("L")
    if image.mode in {"RGB", "RGBA"}:
        return image
    has_alpha = "A" in image.mode or "transparency" in image.info
    return image.convert("RGBA" if has_alpha else "RGB")
