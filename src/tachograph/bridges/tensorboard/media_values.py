"""Data of the calls of a `SummaryWriter` as media, for the facade and for the real writer under `tacho run`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.media import MediaValue

__all__ = ["clips", "figures", "pictures", "points", "sound"]


def pictures(
    images: Any, layout: str, boxes: Any = None, labels: Iterable[str] | None = None
) -> MediaValue | list[MediaValue]:
    """Return a picture, or the pictures of a batch. Floats are from 0 to 1, bytes from 0 to 255.

    Args:
        images: an array or a tensor.
        layout: the order of its axes, such as `CHW`.
        boxes: the corners of boxes in pixels: left, top, right and bottom.
        labels: the labels of the boxes.

    Raises:
        TypeError, ValueError: if the data cannot be converted.
    """
    from tachograph.media import Image

    names = itertools.chain(labels or (), itertools.repeat(None))
    corners = [] if boxes is None else boxes.tolist()
    box_fields = [
        {
            "x": left,
            "y": top,
            "width": right - left,
            "height": bottom - top,
            **({"label": name} if name else {}),
        }
        for (left, top, right, bottom), name in zip(corners, names, strict=False)
    ]
    return Image(images, layout=layout.upper(), range=_range_of(images), boxes=box_fields)


def figures(figure: Any) -> list[MediaValue]:
    """Return one or several figures of matplotlib as pictures.

    Raises:
        TypeError: if one cannot be converted.
    """
    from tachograph.media import Image

    return [Image(each) for each in (figure if isinstance(figure, list) else [figure])]


def clips(videos: Any, fps: float) -> list[MediaValue]:
    """Return clips: an array of clips × frames × channels × height × width.

    Raises:
        TypeError, ValueError: if the data cannot be converted.
    """
    from tachograph.media import Video

    value_range = _range_of(videos)
    return [Video(clip, float(fps), layout="TCHW", range=value_range) for clip in videos]


def sound(samples: Any, rate: int) -> MediaValue:
    """Return a sound: samples from -1 to 1.

    Raises:
        TypeError, ValueError: if the data cannot be converted.
    """
    from tachograph.media import Audio

    return Audio(samples.reshape(-1), int(rate))


def points(vertices: Any, colors: Any = None) -> list[MediaValue]:
    """Return the vertices of meshes as points: arrays of meshes × vertices × 3, colours from 0 to 255.

    Raises:
        TypeError, ValueError: if the data cannot be converted.
    """
    from tachograph.media import Points

    if len(vertices.shape) != 3:
        raise ValueError(f"vertices have the shape {tuple(vertices.shape)}; expected meshes × vertices × 3")
    if colors is None:
        return [Points(cloud) for cloud in vertices]
    return [Points(cloud, colors=each) for cloud, each in zip(vertices, colors, strict=True)]


def _range_of(array: Any) -> tuple[float, float] | None:
    """Return the values that are black and white: as in TensorBoard, all numbers but bytes are from 0 to 1."""
    return None if str(array.dtype).endswith(("uint8", "bool")) else (0.0, 1.0)
