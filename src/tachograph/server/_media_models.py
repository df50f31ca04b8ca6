"""The JSON models of media and histograms; see `_models` for the rules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tachograph.reader import RecordedHistogram
from tachograph.server._models import Name, Number, Step

__all__ = [
    "BlobQuery",
    "HistogramName",
    "HistogramQuery",
    "HistogramsPage",
    "MediaExportQuery",
    "MediaGap",
    "MediaItemsPage",
    "MediaItemsQuery",
    "MediaMetricPage",
    "MediaMetricQuery",
    "MediaNameView",
    "MediaPage",
    "MediaRecordView",
    "TableRowsPage",
    "TableRowsQuery",
]

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
ItemFields = Annotated[
    dict[str, Any],
    Meta(
        title="MediaItemFields",
        description="The recorded fields of an item, such as `index`, `caption`, `meta`, `sha256`, `width`, `text` or "
        "`rows`. `is_missing` is true if its file is not in the run folder, and `is_thumbnail` if a small version is.",
    ),
]


class MediaGap(msgspec.Struct):
    """Items that were dropped instead of being stored."""

    step: int
    num_dropped: int
    reason: str


class MediaNameView(msgspec.Struct, kw_only=True):
    """The media of one name, without the items."""

    name: str
    kind: str
    """`image`, `video`, `audio`, `points`, `text`, `markdown`, `html`, `plotly`, `table`, `confusion_matrix`,
    `pr_curve`, `file` or another kind."""
    steps: list[int]
    """The steps with items, ascending; thinned out if there are very many."""
    num_steps: int
    num_items: int
    num_dropped: int
    gaps: list[MediaGap]
    """The latest steps at which items were dropped."""


class HistogramName(msgspec.Struct):
    """A histogram that was logged at several steps."""

    name: str
    num_steps: int


class MediaPage(msgspec.Struct, kw_only=True):
    """The names of a run's media and histograms, in order of appearance."""

    version: str
    media: list[MediaNameView]
    histograms: list[HistogramName]
    is_whole: bool
    """Whether all names are listed."""
    indexed_share: float = msgspec.field(name="indexed")
    """How much of the journal has been read, 0 to 1; the page covers that part."""


class MediaItemsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select the media of one name."""

    name: Annotated[Name, Meta(description="Name of the media.")]
    step_min: Annotated[Step | None, Meta(description="First step to include.")] = None
    step_max: Annotated[Step | None, Meta(description="Last step to include.")] = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="Maximum number of items.")] = 200


class MediaRecordView(msgspec.Struct, kw_only=True):
    """The media of one name at one step."""

    step: int
    time: float | None
    kind: str
    items: list[ItemFields]
    num_dropped: int
    reason: str
    """Why items were dropped."""


class MediaItemsPage(msgspec.Struct, kw_only=True):
    """Media of one name, newest first."""

    version: str
    records: list[MediaRecordView]
    is_whole: bool
    """True if `records` has every match; false if older ones were omitted."""


class MediaMetricQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select the media of one name, and a metric."""

    name: Annotated[Name, Meta(description="Name of the media.")]
    metric: Annotated[Name, Meta(description="Name of the metric.")]


class MediaMetricPage(msgspec.Struct, kw_only=True):
    """A metric at the steps that have media of one name."""

    version: str
    steps: list[int]
    """The steps with media, ascending; thinned out if there are very many."""
    values: list[Number | None]
    """For each step, the latest value of the metric that was recorded until then; null if there was none yet."""
    best_step: int | None
    """The first step with the best finite value; null if there is none."""
    is_lower_better: bool
    """Whether the lowest value is best, by the name of the metric; also true if the name does not tell."""


class MediaExportQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select media to download."""

    name: Annotated[Name, Meta(description="Name of the media.")]
    format: Annotated[
        Literal["zip", "png", "webp"],
        Meta(description="All files as an archive, one step as a sheet of pictures, or one prompt as an animation."),
    ] = "zip"
    step: Annotated[Step | None, Meta(description="Step of the sheet; the latest one by default.")] = None
    prompt: Annotated[str | None, Meta(description="Prompt of the animation; the first one by default.")] = None


class TableRowsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select rows of a table."""

    offset: Annotated[int, Meta(ge=0, le=2**31, description="Number of rows to skip.")] = 0
    limit: Annotated[int, Meta(ge=1, le=5_000, description="Maximum number of rows.")] = 1_000


class TableRowsPage(msgspec.Struct, kw_only=True):
    """Rows of a table that is stored in a file."""

    rows: list[dict[str, Any]]
    num_rows: int
    """Number of rows that can be read."""
    is_whole: bool
    """Whether the file could be read to its end."""


class HistogramQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select a histogram."""

    name: Annotated[Name, Meta(description="Name of the histogram.")]
    limit: Annotated[int, Meta(ge=1, le=1_000, description="Maximum number of steps; evenly spaced.")] = 200


class HistogramsPage(msgspec.Struct, kw_only=True):
    """One histogram over steps, oldest first."""

    version: str
    name: str
    histograms: list[RecordedHistogram]
    num_steps: int
    """Number of steps that have it; `histograms` may have fewer of them, evenly spaced."""


class BlobQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Select a form of a file."""

    size: Annotated[Literal[320] | None, Meta(description="Return a picture scaled down to this many pixels.")] = None
    table: Annotated[
        Sha256 | None, Meta(description="Hash of the table file whose cells have the file; for large tables.")
    ] = None
    download: Annotated[bool, Meta(description="Return every kind of file as a download.")] = False
