"""Media of W&B's classes as media of ours, copied when an object is created."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.media import MediaValue

__all__ = ["bare_media", "boxes_in_pixels", "clip", "figure", "page", "picture", "scene", "scene_file", "sound"]


_CATEGORIES = {number: str(number) for number in range(1, 15)}
"""The categories of W&B's points with four columns; they have no names."""
_LIBRARIES = frozenset({"PIL", "matplotlib", "plotly", "tachograph"})


def picture(
    data: Any, caption: str | None, boxes: Mapping[str, Any] | None, masks: Mapping[str, Any] | None
) -> MediaValue:
    """Return a picture.

    Raises:
        TypeError, ValueError: if the data cannot be converted.
    """
    from tachograph.media import Image

    original = getattr(data, "media", None)
    if isinstance(original, Image):
        return original
    if isinstance(data, (str, os.PathLike)):
        return Image(Path(data), _text(caption), masks=_masks(masks), boxes=boxes_in_pixels(boxes, None))
    data = _drawing_of(data)
    value_range = None
    if not isinstance(data, bytes) and not hasattr(data, "getbands"):
        data = _copy(data)
        if data.ndim > 2 and not hasattr(data, "detach"):
            data = data.squeeze()
        value_range = _range_of(data)
    return Image(
        data, _text(caption), range=value_range, masks=_masks(masks), boxes=boxes_in_pixels(boxes, _size_of(data))
    )


def bare_media(value: Any) -> MediaValue | None:
    """Return a figure, or the module `matplotlib.pyplot`, that was logged without a class; None for other values."""
    library = type(value).__module__.partition(".")[0]
    if library not in _LIBRARIES and not isinstance(value, ModuleType):
        return None  # without importing anything: most values are numbers
    from tachograph.media import Image, MediaValue, Plotly

    if isinstance(value, MediaValue):
        return value
    if library == "plotly":
        return Plotly(value) if hasattr(value, "to_json") else None
    drawing = _drawing_of(value)
    return Image(drawing) if isinstance(drawing, bytes) or hasattr(drawing, "getbands") else None


def clip(data: Any, fps: float, caption: str | None) -> MediaValue | list[MediaValue]:
    """Return a clip, or several of a batch.

    Raises:
        TypeError, ValueError: if the data cannot be converted.
    """
    from tachograph.media import Video

    if isinstance(data, (str, os.PathLike)):
        return Video(Path(data), fps, _text(caption))
    if hasattr(data, "read"):
        return Video(data.read(), fps, _text(caption))
    frames = _copy(data)
    if frames.ndim not in (4, 5):
        raise ValueError(f"an array of {frames.ndim} dimensions is no video: it needs frames, channels, height, width")
    is_bytes = "uint8" in str(frames.dtype)
    options: dict[str, Any] = {"layout": "TCHW", "range": None if is_bytes else (0, 255)}
    batch = [frames] if frames.ndim == 4 else list(frames)
    clips: list[MediaValue] = [Video(each, fps, _text(caption), **options) for each in batch]
    return clips[0] if len(clips) == 1 else clips


def sound(data: Any, rate: int | None, caption: str | None) -> MediaValue:
    """Return a sound.

    Raises:
        TypeError, ValueError: if the data cannot be converted.
    """
    from tachograph.media import Audio

    if isinstance(data, (str, os.PathLike)):
        return Audio(Path(data), caption=_text(caption))
    if isinstance(data, (list, tuple)):
        import numpy as np

        data = np.asarray(data, dtype=np.float32)
    return Audio(_copy(data), rate, _text(caption))


def scene(data: Any, caption: str | None) -> MediaValue:
    """Return the points of an array, of a list, of a dict with `points` or of a file; any other file as it is.

    Raises:
        TypeError: if the data cannot be converted.
    """
    from tachograph.media import Points

    if isinstance(data, (str, os.PathLike)):
        return scene_file(Path(data), caption)
    if isinstance(data, Mapping):
        data = data.get("points")
    return Points(_copy(data), _text(caption), labels=_CATEGORIES)


def scene_file(path: Path, caption: str | None) -> MediaValue:
    """Return the points of a file that W&B writes for them; any other file, such as a mesh, is stored as it is."""
    from tachograph.media import File, Points

    if path.name.endswith(".pts.json"):
        return Points(path, _text(caption), labels=_CATEGORIES)
    return File(path, caption=_text(caption))


def page(data: Any, *, is_text: bool, caption: str | None) -> MediaValue:
    """Return a page.

    Raises:
        TypeError: if the data cannot be converted.
    """
    from tachograph.media import Html

    if hasattr(data, "read"):
        if hasattr(data, "seek"):
            data.seek(0)
        data = data.read()
    is_path = isinstance(data, os.PathLike) or (isinstance(data, str) and not is_text and os.path.isfile(data))
    return Html(Path(data) if is_path else data, _text(caption))


def figure(data: Any) -> MediaValue:
    """Return a figure of Plotly, or of another library as a picture.

    Raises:
        TypeError: if it is none.
    """
    from tachograph.media import Plotly

    return bare_media(data) or Plotly(data)


# Parts of a picture --------------------------------------------------------------------------------------------------


def _drawing_of(data: Any) -> Any:
    """Return a figure of matplotlib as the bytes of a PNG: the script may clear it afterwards. Other data unchanged."""
    if isinstance(data, ModuleType) and hasattr(data, "gcf"):
        data = data.gcf()
    elif type(data).__module__.startswith("matplotlib.") and hasattr(data, "get_figure"):
        data = data.get_figure() or data
    if not hasattr(data, "savefig"):
        return data
    content = io.BytesIO()
    data.savefig(content, format="png")
    return content.getvalue()


def _copy(data: Any) -> Any:
    if hasattr(data, "detach"):
        return data.detach().clone()
    import numpy as np

    array = np.array(data.numpy() if hasattr(data, "numpy") else data)
    if array.dtype == object or array.ndim == 0:
        raise TypeError(f"expected an array, got {type(data).__name__}")
    return array


def _range_of(array: Any) -> tuple[float, float] | None:
    """Return the values that are black and white; None for the usual ones."""
    if "float" not in str(array.dtype) or not all(array.shape) or getattr(array, "is_cuda", False):
        return None
    smallest, largest = float(array.min()), float(array.max())
    if largest > 1:
        return (0.0, 255.0)
    return (-1.0, 1.0) if smallest < 0 else None


def _size_of(data: Any) -> tuple[int, int] | None:
    """Return width and height, if they are known."""
    if hasattr(data, "getbands"):
        return int(data.size[0]), int(data.size[1])
    if isinstance(data, bytes) or data.ndim < 2:
        return None
    height, width = data.shape[-2:] if hasattr(data, "detach") or data.ndim == 2 else data.shape[:2]
    return int(width), int(height)


def _masks(masks: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not masks:
        return None
    return {
        str(name): {"data": _copy(mask["mask_data"]), "labels": mask.get("class_labels") or {}}
        for name, mask in masks.items()
        if isinstance(mask, Mapping) and "mask_data" in mask
    }


def boxes_in_pixels(groups: Mapping[str, Any] | None, size: tuple[int, int] | None) -> list[dict[str, Any]]:
    """Return boxes in pixels. Those in shares of the picture are left out if its size is unknown."""
    boxes = []
    for group in (groups or {}).values():
        labels = group.get("class_labels") or {}
        for box in group.get("box_data") or ():
            position, is_pixels = box.get("position") or {}, box.get("domain") == "pixel"
            if not is_pixels and size is None:
                continue
            scale_x, scale_y = (1.0, 1.0) if is_pixels or size is None else size
            if "middle" in position:
                width, height = float(position["width"]), float(position["height"])
                x, y = float(position["middle"][0]) - width / 2, float(position["middle"][1]) - height / 2
            else:
                x, y = float(position["minX"]), float(position["minY"])
                width, height = float(position["maxX"]) - x, float(position["maxY"]) - y
            fields: dict[str, Any] = {
                "x": x * scale_x,
                "y": y * scale_y,
                "width": width * scale_x,
                "height": height * scale_y,
            }
            label = box.get("box_caption") or labels.get(box.get("class_id"))
            scores = [value for value in (box.get("scores") or {}).values() if isinstance(value, (int, float))]
            fields |= {"label": str(label)} if label is not None else {}
            boxes.append({**fields, "score": float(scores[0])} if scores else fields)
    return boxes


def _text(caption: Any) -> str | None:
    return None if caption is None else str(caption)
