"""Objects of the real package wandb as media of ours.

W&B has written a file for each object by the time its `log` returns, so files are read here and nothing is encoded
twice. The objects are recognised by their classes' names: the package is never imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.bridges.wandb.facade.data_types import Media
from tachograph.bridges.wandb.facade.media_values import boxes_in_pixels, scene_file

if TYPE_CHECKING:
    from tachograph.media import MediaValue

__all__ = ["is_of_wandb", "logged_media", "media_cell", "original_media"]

_MAX_ROWS = 10_000
_MAX_ITEMS = 64
_MAX_HELD_BYTES = 32 << 20


def is_of_wandb(value: Any) -> bool:
    """Return whether a value, or an element of a list, is an object of the real package."""
    if isinstance(value, (list, tuple)):
        return any(is_of_wandb(item) for item in value[:_MAX_ITEMS])
    return type(value).__module__.partition(".")[0] == "wandb"


def logged_media(value: Any) -> list[MediaValue] | None:
    """Return an object of W&B, or a list of such objects, as media; None for other values.

    Raises:
        Exception: any, if an object is not as expected.
    """
    if isinstance(value, (list, tuple)):
        items = [media for each in value if (media := _media_of(each)) is not None]
        return items or None
    media = _media_of(value)
    return None if media is None else [media]


def _media_of(value: Any) -> MediaValue | None:
    """Return one object as media; None if it is none, or of a kind that cannot be recorded."""
    if type(value).__module__.partition(".")[0] != "wandb":
        from tachograph.bridges.wandb.facade.media_values import bare_media

        return bare_media(value)
    from tachograph.media import Audio, Html, Image, Table, Video

    caption = getattr(value, "_caption", None)
    caption = None if caption is None else str(caption)
    match type(value).__name__:
        case "Image":
            return Image(_path(value), caption, masks=_masks(value), boxes=_boxes(value))
        case "Html":
            return Html(_path(value), caption)
        case "Video":
            return Video(_path(value), caption=caption)
        case "Audio":
            return Audio(_path(value), caption=caption)
        case "Object3D":
            return scene_file(_path(value), caption)
        case "Table" | "IncrementalTable":
            rows = [[_text_or_media(cell) for cell in row] for row in value.data[:_MAX_ROWS]]
            return Table(columns=[str(name) for name in value.columns], data=rows)
        case "CustomChart":
            return _media_of(value.table)
        case "Plotly":
            from tachograph.media import Plotly

            return Plotly(_path(value).read_text("utf-8"))
    return None


def original_media(value: Any) -> MediaValue | None:
    """Return an object of the real package as media, with the content of its file unless that is large.

    W&B moves the file when the object is logged with a run of its own, and deletes it at the exit of the process.

    Raises:
        Exception: any, if the object is not as expected.
    """
    media = _media_of(value)
    if media is not None and media.kind in {"image", "audio", "video"} and isinstance(media.data, (str, Path)):
        path = Path(media.data)
        if path.stat().st_size <= _MAX_HELD_BYTES:
            media.data = path.read_bytes()
    return media


def media_cell(cell: Any) -> Any:
    """Return a cell of a table that is an object of W&B or of our facade as media of ours; other cells unchanged."""
    if isinstance(cell, Media):
        return cell if cell.media is None else cell.media
    media = original_media(cell) if hasattr(cell, "_path") else None
    return cell if media is None else media


def _text_or_media(cell: Any) -> Any:
    """Return a cell to record; what no cell can hold is a text, or a list of media, for which the table has a text."""
    if isinstance(cell, (list, tuple)) and is_of_wandb(cell):
        return [_text_or_media(item) for item in cell]
    media = media_cell(cell)
    return f"[{type(cell).__name__}]" if media is cell and is_of_wandb(cell) else media


def _path(value: Any) -> Path:
    if not value._path:
        raise ValueError(f"a {type(value).__name__} without a file")
    return Path(value._path)


def _masks(image: Any) -> dict[str, Any]:
    masks = {}
    for name, mask in (getattr(image, "_masks", None) or {}).items():
        if "mask_data" in mask._val:
            masks[name] = {"data": mask._val["mask_data"], "labels": mask._val.get("class_labels") or {}}
    return masks


def _boxes(image: Any) -> list[dict[str, Any]]:
    groups = {
        name: {"box_data": group._val, "class_labels": getattr(group, "_class_labels", None)}
        for name, group in (getattr(image, "_boxes", None) or {}).items()
    }
    size = (image._width, image._height) if image._width and image._height else None
    return boxes_in_pixels(groups, size)
