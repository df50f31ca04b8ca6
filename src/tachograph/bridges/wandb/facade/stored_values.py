"""Values of W&B's classes as JSON and files of an artifact, with the paths and types that W&B has for them, and back.

A picture in a cell of a table is a file `media/images/….png`, and the cell refers to it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tachograph._base.guard import reraise_from_signal_handler
from tachograph.bridges.wandb.facade.data_types import Audio, Histogram, Html, Image, Media, Plotly, Video
from tachograph.bridges.wandb.facade.media_values import bare_media
from tachograph.bridges.wandb.logged_media import media_cell
from tachograph.journal import RunFolder
from tachograph.records import OMIT, ValueProblem, to_plain

__all__ = ["TYPES", "ValueWriter", "read_value"]

_FOLDERS = {"image": "images", "video": "videos", "audio": "audio", "html": "html", "plotly": "plotly"}
_CLASSES: dict[str, type[Media]] = {
    "image-file": Image,
    "video-file": Video,
    "audio-file": Audio,
    "html-file": Html,
    "plotly-file": Plotly,
}
TYPES = ("table", *_CLASSES, "histogram")
"""The types of objects; the path of an object in an artifact is ``NAME.TYPE.json``."""
_MAX_DEPTH = 8


class ValueWriter:
    """Turns values into JSON.

    Args:
        folder: a folder for the files of media.
        add_file: called with the path in the artifact and the path of each file.
    """

    def __init__(self, folder: Path, add_file: Callable[[str, Path], None]) -> None:
        self._folder = RunFolder(folder)
        self._add_file = add_file
        self.problems: dict[str, str] = {}
        """Why a value was not stored: the first reason for each place, such as a column."""

    def to_json(self, value: Any, where: str, depth: int = 0) -> Any:
        """Return a value as JSON; None, and a problem, if it cannot be stored."""
        name = type(value).__name__
        try:
            value = media_cell(value)
        except Exception as error:  # noqa: BLE001 - whatever is in an object of the real package
            reraise_from_signal_handler(error)
            return self._fail(where, f"{name}: {error}")
        if isinstance(value, Histogram):
            return {
                "_type": "histogram",
                "values": to_plain(value.histogram, where, []),
                "bins": to_plain(value.bins, where, []),
            }
        if isinstance(value, Media):
            return self._fail(where, f"{name}: {value.problem}")
        if isinstance(value, (list, tuple)) and depth < _MAX_DEPTH:
            return [self.to_json(item, where, depth + 1) for item in value]
        media = bare_media(value)
        if media is not None:
            return self._store(media, name, where)
        problems: list[ValueProblem] = []
        plain = to_plain(value, where, problems)
        if problems:
            self._fail(where, problems[0].reason)
        return None if plain is OMIT else plain

    def _store(self, media: Any, name: str, where: str) -> Any:
        from tachograph.media import encode_media

        if media.kind not in _FOLDERS:
            return self._fail(where, f"{name} cannot be stored in an artifact")
        items = [self._item(media.kind, item, where) for item in encode_media(media, self._folder)]
        return items[0] if len(items) == 1 else items

    def _item(self, kind: str, item: dict[str, Any], where: str) -> Any:
        if "problem" in item:
            return self._fail(where, item["problem"])
        fields = {"_type": f"{kind}-file", **self._file(item, _FOLDERS[kind]), "format": item["ext"]}
        masks = {
            name: {
                "_type": "mask",
                **self._file({"ext": "png", **mask}, "images/masks"),
                "class_labels": mask["labels"],
            }
            for name, mask in item.get("masks", {}).items()
        }
        names = ("width", "height", "fps", "caption", "boxes")
        fields |= {name: item[name] for name in names if item.get(name) is not None}
        return {**fields, "masks": masks} if masks else fields

    def _file(self, item: Mapping[str, Any], folder: str) -> dict[str, Any]:
        sha256, ext = item["sha256"], item["ext"]
        path = f"media/{folder}/{sha256[:20]}.{ext}"
        self._add_file(path, self._folder.media / sha256[:2] / f"{sha256}.{ext}")
        return {"path": path, "sha256": sha256, "size": item["bytes"]}

    def _fail(self, where: str, reason: str) -> None:
        self.problems.setdefault(where, reason)


def read_value(value: Any, read_file: Callable[[str], bytes]) -> Any:
    """Return JSON of an artifact with objects of W&B's classes where it refers to media.

    Args:
        value: the JSON.
        read_file: returns the content of a file of the artifact.
    """
    if isinstance(value, list):
        return [read_value(item, read_file) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("_type")
    if kind == "histogram":
        return Histogram(np_histogram=(value["values"], value["bins"]))
    if kind not in _CLASSES:
        return value
    return _CLASSES[kind].from_media(_read_media(kind, value, read_file))


def _read_media(kind: str, fields: Mapping[str, Any], read_file: Callable[[str], bytes]) -> Any:
    from tachograph import media

    data, caption = read_file(fields["path"]), fields.get("caption")
    if kind == "image-file":
        masks = {
            name: {"data": _pixels(read_file(mask["path"])), "labels": mask.get("class_labels") or {}}
            for name, mask in (fields.get("masks") or {}).items()
        }
        return media.Image(data, caption, masks=masks, boxes=fields.get("boxes"))
    if kind == "video-file":
        return media.Video(data, fields.get("fps") or 4, caption)
    if kind == "audio-file":
        return media.Audio(data, caption=caption)
    if kind == "html-file":
        return media.Html(data.decode("utf-8", "replace"), caption)
    return media.Plotly(data.decode())


def _pixels(data: bytes) -> Any:
    import numpy as np
    from PIL import Image as PillowImage

    with PillowImage.open(io.BytesIO(data)) as picture:
        return np.asarray(picture)
