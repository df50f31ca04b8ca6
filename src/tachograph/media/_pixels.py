"""Arrays as pictures: which axis is which, and which value is white.

Nothing is guessed from the values, so that the same tensor always looks the same. The library decides the order of the
axes, the dtype decides the range, and the caller may state both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tachograph.media._snapshots import SnapshotError

__all__ = ["Pixels", "class_numbers", "frames_of", "pictures_of"]

MAX_PIXELS = 64_000_000
_CHANNELS = (1, 3, 4)


class Pixels(NamedTuple):
    """One picture, as bytes of height × width or height × width × channels."""

    array: Any
    num_clipped: int


def pictures_of(array: Any, *, is_torch: bool, layout: str | None, value_range: Any) -> list[Pixels]:
    """Return the pictures in an array: one, or all of a batch.

    Raises:
        SnapshotError: if the shape is not one of a picture.
    """
    layout = layout or _usual_layout(array, is_torch=is_torch)
    if len(layout) != array.ndim:
        raise SnapshotError(f"an array of shape {array.shape} has not the layout {layout}")
    batch = array if layout.startswith("N") else array[None]
    axes = layout.removeprefix("N")
    if axes == "CHW":
        batch = batch.transpose(0, 2, 3, 1)
    if axes != "HW" and batch.shape[-1] not in _CHANNELS:
        hint = "; a tensor is CHW and an array of numpy HWC, unless `layout` says otherwise" if array.ndim >= 3 else ""
        raise SnapshotError(f"an array of shape {array.shape} read as {layout} has {batch.shape[-1]} channels{hint}")
    if 0 in batch.shape:
        raise SnapshotError(f"an array of shape {array.shape} is empty")
    if batch.shape[0] * batch.shape[1] * batch.shape[2] > MAX_PIXELS:
        raise SnapshotError(f"an array of shape {array.shape} has more than {MAX_PIXELS // 10**6} megapixels")
    return [_to_bytes(picture, value_range) for picture in batch]


def frames_of(array: Any, *, is_torch: bool, layout: str | None, value_range: Any) -> list[Pixels]:
    """Return the frames of a clip, with three channels or one.

    Raises:
        SnapshotError: if the shape is not one of a clip.
    """
    if array.ndim != 4:
        raise SnapshotError(f"an array of shape {array.shape} is no video: it needs frames, height, width and channels")
    is_channels_first = layout == "TCHW" if layout is not None else is_torch
    return pictures_of(
        array, is_torch=is_torch, layout="NCHW" if is_channels_first else "NHWC", value_range=value_range
    )


def class_numbers(array: Any) -> tuple[Any, int]:
    """Return a mask as integers of height × width, in one byte or two, and how many of its pixels have no class.

    These are the ones below 0, as -1 and -100 usually mark pixels that a loss ignores. They become 0, no class.

    Raises:
        SnapshotError: if it is no mask.
    """
    import numpy as np

    if array.ndim == 3 and 1 in (array.shape[0], array.shape[-1]):
        array = array[0] if array.shape[0] == 1 else array[..., 0]
    if array.ndim != 2 or array.size == 0:
        raise SnapshotError(f"an array of shape {array.shape} is no mask: it needs height and width")
    if array.size > MAX_PIXELS:
        raise SnapshotError(f"a mask of shape {array.shape} has more than {MAX_PIXELS // 10**6} megapixels")
    if array.dtype.kind not in "bui":
        raise SnapshotError(f"a mask of {array.dtype} values is none: it needs the number of a class for each pixel")
    if array.max() > 65_535:
        raise SnapshotError("a mask has class numbers above 65535")
    has_class = array >= 0
    num_unlabeled = int(array.size - np.count_nonzero(has_class))
    numbers = np.where(has_class, array, 0) if num_unlabeled else array
    return np.ascontiguousarray(numbers.astype(np.uint8 if numbers.max() <= 255 else np.uint16)), num_unlabeled


def _usual_layout(array: Any, *, is_torch: bool) -> str:
    layout = {2: "HW", 3: "CHW" if is_torch else "HWC", 4: "NCHW" if is_torch else "NHWC"}.get(array.ndim)
    if layout is None:
        raise SnapshotError(f"an array of shape {array.shape} is no picture")
    return layout


def _to_bytes(picture: Any, value_range: Any) -> Pixels:
    import numpy as np

    if picture.ndim == 3 and picture.shape[-1] == 1:
        picture = picture[..., 0]
    if picture.dtype == np.bool_:
        return Pixels(np.ascontiguousarray(picture).astype(np.uint8) * 255, 0)
    if picture.dtype == np.uint8 and value_range is None:
        return Pixels(np.ascontiguousarray(picture), 0)
    if picture.dtype.kind not in "fiu":
        raise SnapshotError(f"an array of {picture.dtype} values is no picture")
    is_float = picture.dtype.kind == "f"
    values = np.array(picture, dtype=np.float64 if picture.dtype.itemsize > 4 else np.float32)
    is_finite = np.isfinite(values)
    if value_range == "minmax":
        low, high = (values[is_finite].min(), values[is_finite].max()) if is_finite.any() else (0.0, 1.0)
        high = high if high > low else low + 1.0
    else:
        low, high = value_range or ((0.0, 1.0) if is_float else (0.0, 255.0))
    num_clipped = int(values.size - np.count_nonzero((values >= low) & (values <= high)))  # NaN is outside
    np.clip(values, low, high, out=values)
    values -= low
    values *= 255.0 / (high - low)
    values += 0.5
    np.nan_to_num(values, copy=False, nan=0.0)
    return Pixels(values.astype(np.uint8), num_clipped)
