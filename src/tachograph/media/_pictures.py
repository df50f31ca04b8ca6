"""Encodes pictures and clips with Pillow, and clips with PyAV if it is installed. Called by the media thread."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from tachograph.media._snapshots import SnapshotError

__all__ = ["EncodedPicture", "encode_array", "encode_clip", "encode_mask", "encode_pil", "sniff", "thumbnail"]

_QUALITY = 90
_WEBP_METHOD = 1
_SMALL_PX = 256
_MAX_COLOURS = 256
_MAX_WEBP_PX = 16_383
_PNG_MODES = {"1", "L", "LA", "P", "RGB", "RGBA"}
_ARRAY_MODES = {"I", "F", "I;16", "I;16B", "I;16L"}
_MAX_HEADER_BYTES = 16

THUMBNAIL_PX = 320


class EncodedPicture(NamedTuple):
    """The bytes of a picture, and the facts of its item."""

    data: bytes
    ext: str
    width: int
    height: int
    is_lossy: bool


def sniff(header: bytes) -> str | None:
    """Return the extension of a file from its first bytes, or None if the type is none that a browser shows."""
    exts = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpg", b"GIF8": "gif", b"fLaC": "flac", b"OggS": "ogg"}
    for magic, ext in exts.items():
        if header.startswith(magic):
            return ext
    if header[:4] == b"RIFF":
        return {b"WEBP": "webp", b"WAVE": "wav"}.get(header[8:12])
    if header[4:8] == b"ftyp":
        return "mp4"
    if header.startswith(b"\x1a\x45\xdf\xa3"):
        return "webm"
    if header.startswith(b"ID3") or (header[:1] == b"\xff" and header[1:2] in {b"\xfb", b"\xf3", b"\xf2"}):
        return "mp3"
    return None


def is_array_mode(image: Any) -> bool:
    """Return whether an image of Pillow has values of more than a byte, which need a range like an array."""
    return image.mode in _ARRAY_MODES


def encode_array(array: Any, *, lossless: bool = False) -> EncodedPicture:
    """Encode bytes of height × width or height × width × channels."""
    from PIL import Image

    return encode_pil(Image.fromarray(array), lossless=lossless)


def encode_pil(image: Any, *, lossless: bool = False) -> EncodedPicture:
    """Encode an image of Pillow: photographs as WebP, and small ones or ones with few colours exactly, as PNG."""
    if image.mode not in _PNG_MODES:
        image = image.convert("RGBA" if image.mode in {"PA", "La", "RGBa"} else "RGB")
    is_small = max(image.size) <= _SMALL_PX
    if lossless or is_small or image.mode in {"1", "P", "L"} or image.getcolors(_MAX_COLOURS) is not None:
        return _save(image, "png", is_lossy=False, compress_level=1)
    image = image.convert("RGBA") if image.mode == "LA" else image
    if max(image.size) <= _MAX_WEBP_PX and _has_webp():
        return _save(image, "webp", is_lossy=True, quality=_QUALITY, method=_WEBP_METHOD)
    if image.mode == "RGBA":
        return _save(image, "png", is_lossy=False, compress_level=1)
    return _save(image.convert("RGB"), "jpeg", is_lossy=True, quality=_QUALITY)


def encode_mask(array: Any) -> EncodedPicture:
    """Encode the class numbers of the pixels, as a grey PNG."""
    from PIL import Image

    return _save(Image.fromarray(array), "png", is_lossy=False, compress_level=1)


def _save(image: Any, encoding: str, *, is_lossy: bool, **options: Any) -> EncodedPicture:
    buffer = io.BytesIO()
    try:
        image.save(buffer, encoding, **options)
    except Exception as error:  # noqa: BLE001 - an error of the encoder is often an OSError, like one of the disk
        raise SnapshotError(f"a picture of mode {image.mode} and size {image.size}: {error}") from None
    ext = "jpg" if encoding == "jpeg" else encoding
    return EncodedPicture(buffer.getvalue(), ext, image.width, image.height, is_lossy)


def _has_webp() -> bool:
    from PIL import features

    return bool(features.check("webp"))


def size_of_file(data: bytes | str) -> tuple[int, int] | None:
    """Return the width and height of an encoded picture from its header, without decoding it; None if unknown."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as image:
            return int(image.width), int(image.height)
    except Exception:  # noqa: BLE001 - Pillow raises almost anything for a damaged file
        return None


def thumbnail(data: bytes) -> bytes | None:
    """Return a picture with a longest side of 320 pixels, as WebP; None if it is no picture."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            image.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
            small = image if image.mode in {"RGB", "RGBA"} else image.convert("RGBA")
            buffer = io.BytesIO()
            small.save(buffer, "webp" if _has_webp() else "png", quality=_QUALITY)
            return buffer.getvalue()
    except Exception:  # noqa: BLE001 - as above
        return None


# Clips ---------------------------------------------------------------------------------------------------------------


def encode_clip(frames: Sequence[Any], fps: float) -> EncodedPicture:
    """Encode frames of equal size: as mp4 with PyAV, otherwise as an animated WebP.

    Raises:
        SnapshotError: if neither is possible.
    """
    try:
        import av
    except ImportError:
        return _encode_animation(frames, fps)
    try:
        return _encode_mp4(av, frames, fps)
    except Exception as error:  # noqa: BLE001 - a build without this encoder, a size that it rejects
        logging.getLogger("tachograph").debug("PyAV cannot encode a clip: %s", error)
        return _encode_animation(frames, fps)


def _encode_mp4(av: Any, frames: Sequence[Any], fps: float) -> EncodedPicture:
    from fractions import Fraction

    height, width = (size - size % 2 for size in frames[0].shape[:2])  # 4:2:0 needs even sizes
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "20", "preset": "veryfast"}
        stream.codec_context.thread_count = 1
        for array in frames:
            frame = av.VideoFrame.from_ndarray(_rgb(array)[:height, :width], format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return EncodedPicture(buffer.getvalue(), "mp4", width, height, is_lossy=True)


def _encode_animation(frames: Sequence[Any], fps: float) -> EncodedPicture:
    from PIL import Image

    if not _has_webp():
        raise SnapshotError("a video needs PyAV (`pip install av`), or a Pillow with WebP")
    images = [Image.fromarray(_rgb(array)) for array in frames]
    return _save(
        images[0],
        "webp",
        is_lossy=True,
        save_all=True,
        append_images=images[1:],
        duration=max(1, round(1000 / fps)),
        loop=0,
        quality=_QUALITY,
        method=0,
    )


def _rgb(array: Any) -> Any:
    import numpy as np

    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, axis=2)
    return np.ascontiguousarray(array[..., :3])
