"""The data types of W&B: tables, histograms, and types that are only counted."""

from __future__ import annotations

from tachograph.bridges.wandb.facade.data_types import (
    Audio,
    Classes,
    Graph,
    Histogram,
    Html,
    Image,
    JoinedTable,
    Media,
    Molecule,
    Object3D,
    Plotly,
    Table,
    Video,
)

__all__ = [
    "Audio",
    "Classes",
    "Graph",
    "Histogram",
    "Html",
    "Image",
    "JoinedTable",
    "Media",
    "Molecule",
    "Object3D",
    "Plotly",
    "Table",
    "Video",
]
