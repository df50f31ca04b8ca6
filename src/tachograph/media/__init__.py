"""Media: everything that is logged and is no number. See `docs/media.md`."""

from tachograph.media._encoding import encode_media
from tachograph.media._imported import ImportedFile, MediaImport
from tachograph.media._recorder import MediaRecorder
from tachograph.media._values import (
    Audio,
    ConfusionMatrix,
    ExponentCounts,
    File,
    Histogram,
    Html,
    Image,
    Markdown,
    MediaValue,
    Plotly,
    Points,
    PRCurve,
    Table,
    Text,
    Video,
)

__all__ = [
    "Audio",
    "ConfusionMatrix",
    "ExponentCounts",
    "File",
    "Histogram",
    "Html",
    "Image",
    "ImportedFile",
    "Markdown",
    "MediaImport",
    "MediaRecorder",
    "MediaValue",
    "PRCurve",
    "Plotly",
    "Points",
    "Table",
    "Text",
    "Video",
    "encode_media",
]
