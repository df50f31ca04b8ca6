"""The data types of W&B, over those of `tachograph.media`. Some are only counted, such as molecules."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tachograph._base.guard import reraise_from_signal_handler
from tachograph.bridges.drop_in import histogram
from tachograph.bridges.wandb.facade.media_values import clip, figure, page, picture, scene, sound

if TYPE_CHECKING:
    from tachograph.media import MediaValue

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

_MAX_BINS = 512


class Media:
    """Data other than numbers.

    Attributes:
        media: what is recorded; None for a kind that is not recorded, and for data that cannot be.
        problem: why data cannot be recorded.
    """

    media: MediaValue | list[MediaValue] | None = None
    problem = "this kind of data is not recorded"

    def __init__(self, data_or_path: Any = None, *_arguments: Any, caption: str | None = None, **_options: Any) -> None:
        self.caption = caption

    @classmethod
    def from_media(cls, media: MediaValue) -> Media:
        """Return an object with media of ours."""
        value = cls.__new__(cls)
        value.caption = media.caption if isinstance(media.caption, str) else None
        value.media = media
        return value

    def _read(self, build: Callable[[], MediaValue | list[MediaValue]]) -> None:
        """Copy the data now: as with W&B, the script may change them afterwards. Never raises."""
        try:
            self.media = build()
        except Exception as error:  # noqa: BLE001 - telemetry must not stop a training run
            reraise_from_signal_handler(error)
            self.problem = f"cannot be recorded: {error}"


class Image(Media):
    """A picture: an array, a tensor, a PIL image, a figure of matplotlib or a path; see `tachograph.Image`.

    Versions of W&B differ in how they read floats. Here, values from 0 to 1 are black to white, so are values from -1
    to 1 if some are negative, and values from 0 to 255 if some are larger than 1. Values on a GPU are from 0 to 1.
    """

    mode: str | None = None

    def __init__(
        self,
        data_or_path: Any = None,
        mode: str | None = None,
        caption: str | None = None,
        grouping: int | None = None,
        classes: Any = None,
        boxes: Mapping[str, Any] | None = None,
        masks: Mapping[str, Any] | None = None,
        file_type: str | None = None,
        **_options: Any,
    ) -> None:
        super().__init__(caption=caption)
        self.mode = mode
        self._read(lambda: picture(data_or_path, caption, boxes, masks))

    @property
    def image(self) -> Any:
        """The picture as an image of Pillow; None if it cannot be read."""
        from PIL import Image as PillowImage

        from tachograph.journal import RunFolder
        from tachograph.media import MediaValue, encode_media

        if not isinstance(self.media, MediaValue):
            return None
        with tempfile.TemporaryDirectory() as folder:
            item = encode_media(self.media, run_folder := RunFolder(folder))[0]
            if "problem" in item:
                return None
            with PillowImage.open(run_folder.media / item["sha256"][:2] / f"{item['sha256']}.{item['ext']}") as picture:
                picture.load()
                return picture.copy()


class Video(Media):
    """A clip: an array of frames × channels × height × width, or a path."""

    def __init__(
        self,
        data_or_path: Any = None,
        caption: str | None = None,
        fps: int | None = None,
        format: str | None = None,  # noqa: A002 - the name of the original
        **_options: Any,
    ) -> None:
        super().__init__(caption=caption)
        self._read(lambda: clip(data_or_path, fps or 4, caption))


class Audio(Media):
    """A sound: samples with their rate, or a path."""

    def __init__(
        self, data_or_path: Any = None, sample_rate: int | None = None, caption: str | None = None, **_options: Any
    ) -> None:
        super().__init__(caption=caption)
        self._read(lambda: sound(data_or_path, sample_rate, caption))


class Html(Media):
    """A page: a text, a path or an open file."""

    def __init__(
        self, data: Any = None, inject: bool = True, data_is_not_path: bool = False, caption: str | None = None
    ) -> None:
        super().__init__(caption=caption)
        self._read(lambda: page(data, is_text=data_is_not_path, caption=caption))


class Object3D(Media):
    """A cloud of points: an array or a list of N × 3, N × 4 (and a category) or N × 6 (and colours), or a dict of them.

    Boxes and vectors beside points are not recorded. A file, such as a mesh, is stored as it is.
    """

    def __init__(self, data_or_path: Any = None, caption: str | None = None, **_options: Any) -> None:
        super().__init__(caption=caption)
        self._read(lambda: scene(data_or_path, caption))

    @classmethod
    def from_file(cls, data_or_path: Any, file_type: str | None = None) -> Object3D:
        """Return the object in a file."""
        return cls(data_or_path)

    @classmethod
    def from_numpy(cls, data: Any) -> Object3D:
        """Return the points of an array."""
        return cls(data)

    @classmethod
    def from_point_cloud(
        cls, points: Any, boxes: Any = (), vectors: Any = None, point_cloud_type: str = "lidar/beta"
    ) -> Object3D:
        """Return points; boxes and vectors are not recorded."""
        return cls({"type": point_cloud_type, "points": points})


class Molecule(Media):
    """A molecule; not recorded."""


class Plotly(Media):
    """A figure of Plotly."""

    def __init__(self, val: Any = None, **_options: Any) -> None:
        super().__init__()
        self._read(lambda: figure(val))


class Graph(Media):
    """The graph of a model; not recorded."""


class JoinedTable(Media):
    """Two tables; not recorded."""


class Classes(Media):
    """The classes of a picture; not recorded."""


class Histogram:
    """A distribution: of values, or counted already.

    Args:
        sequence: the values.
        np_histogram: counts and edges, as `numpy.histogram` returns them; instead of values.
        num_bins: the number of bins.

    Raises:
        ValueError: if there are too many bins, or as many edges as counts.
    """

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        self.num_not_finite = 0
        if np_histogram is not None:
            counts, edges = np_histogram[0], np_histogram[1]
            self.histogram, self.bins = list(counts), list(edges)
            if len(self.bins) != len(self.histogram) + 1:
                raise ValueError("np_histogram must have one more edge than counts")
        else:
            values = [] if sequence is None else sequence
            self.histogram, self.bins, self.num_not_finite = histogram(values, min(num_bins, _MAX_BINS))
        if len(self.histogram) > _MAX_BINS:
            raise ValueError(f"a histogram has at most {_MAX_BINS} bins, got {len(self.histogram)}")


class Table:
    """Rows with named columns.

    Args:
        columns: the names of the columns.
        data: the rows; or a dataframe, or an array.
        rows: another name of `data`.
        dataframe: a dataframe with columns and rows.
        options: other arguments of W&B, which have no effect.
    """

    def __init__(
        self,
        columns: Iterable[Any] | None = None,
        data: Any = None,
        rows: Any = None,
        dataframe: Any = None,
        **options: Any,
    ) -> None:
        if dataframe is None and hasattr(data, "columns") and hasattr(data, "itertuples"):
            data, dataframe = None, data
        self.columns = ["Input", "Output", "Expected"] if columns is None else list(columns)
        self.data: list[list[Any]] = []
        self.num_recorded: dict[tuple[str, str], int] = {}
        """How many rows each run has recorded, by its id and the name of the table."""
        table_rows = rows if data is None else data
        if dataframe is not None:
            self.columns = [str(column) for column in dataframe.columns]
            table_rows = dataframe.itertuples(index=False, name=None)
        for row in [] if table_rows is None else table_rows:
            self.add_data(*row)

    def add_data(self, *data: Any) -> None:
        """Add a row.

        Raises:
            ValueError: if it has not one value per column.
        """
        if len(data) != len(self.columns):
            raise ValueError(f"this table has {len(self.columns)} columns {self.columns}, got {len(data)} values")
        self.data.append(list(data))

    def add_row(self, *row: Any) -> None:
        """Add a row."""
        self.add_data(*row)

    def add_column(self, name: str, data: Iterable[Any], optional: bool = False) -> None:
        """Add a column with one value per row.

        Raises:
            ValueError: if the number of values differs from the number of rows.
        """
        values = list(data)
        if self.data and len(values) != len(self.data):
            raise ValueError(f"column {name!r} has {len(values)} values for {len(self.data)} rows")
        if not self.data:
            self.data = [[None] * len(self.columns) for _ in values]
        self.columns.append(name)
        for row, value in zip(self.data, values, strict=True):
            row.append(value)

    def get_column(self, name: str, convert_to: str | None = None) -> Any:
        """Return the values of a column, as a list or, with ``convert_to="numpy"``, as an array."""
        values = [row[self.columns.index(name)] for row in self.data]
        if convert_to != "numpy":
            return values
        import numpy as np

        return np.array(values)

    def get_index(self) -> list[int]:
        """Return the numbers of the rows."""
        return list(range(len(self.data)))

    def get_dataframe(self) -> Any:
        """Return the table as a dataframe."""
        import pandas as pd

        return pd.DataFrame.from_records(self.data, columns=self.columns)

    def iterrows(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the number and the values of each row."""
        yield from enumerate(self.data)
