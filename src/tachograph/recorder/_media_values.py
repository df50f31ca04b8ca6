"""Finds media among logged values, without importing anything: a run without media loads no module of it."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["take_media"]

_MAX_DEPTH = 8
_CLASSES = (
    ("tachograph.media", "MediaValue"),
    ("PIL.Image", "Image"),
    ("matplotlib.figure", "FigureBase"),
    ("plotly.basedatatypes", "BaseFigure"),
)
"""Objects that are media, by the module that defines them. An array is a picture only inside of an `Image`."""


def take_media(metrics: dict[Any, Any]) -> dict[str, Any]:
    """Remove media from metrics and return it; names in nested dicts are joined by slashes."""
    classes = tuple(
        loaded_class
        for module, name in _CLASSES
        if isinstance(loaded_class := getattr(sys.modules.get(module), name, None), type)
    )
    media: dict[str, Any] = {}
    if classes:
        _take(metrics, "", classes, media, 0)
    return media


def _take(metrics: dict[Any, Any], prefix: str, classes: tuple[type, ...], media: dict[str, Any], depth: int) -> None:
    for name, value in list(metrics.items()):
        if isinstance(value, classes) or (isinstance(value, (list, tuple)) and value and isinstance(value[0], classes)):
            media[f"{prefix}{name}"] = metrics.pop(name)
        elif type(value) is dict and value and depth < _MAX_DEPTH:
            rest = dict(value)  # the caller's own
            _take(rest, f"{prefix}{name}/", classes, media, depth + 1)
            if len(rest) < len(value) or any(rest[key] is not value[key] for key in rest):
                metrics[name] = rest
                if not rest:
                    del metrics[name]
