"""Media: everything that is logged and is no number. See `docs/media.md`."""

from tachograph.media._recorder import MediaRecorder
from tachograph.media._values import (
    Audio,
    ConfusionMatrix,
    File,
    Histogram,
    Html,
    Image,
    Markdown,
    MediaValue,
    Plotly,
    PRCurve,
    Table,
    Text,
    Video,
)

__all__ = [
    "Audio",
    "ConfusionMatrix",
    "File",
    "Histogram",
    "Html",
    "Image",
    "Markdown",
    "MediaRecorder",
    "MediaValue",
    "PRCurve",
    "Plotly",
    "Table",
    "Text",
    "Video",
]
