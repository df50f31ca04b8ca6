"""The place of W&B's data types."""

from __future__ import annotations

from tachograph.bridges.wandb.facade.data_types import Histogram, Html, Image, Table, Video

__all__ = ["Histogram", "Html", "Image", "Table", "Video"]
