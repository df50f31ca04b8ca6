"""The public classes: values other than numbers that a training loop logs.

A constructor checks its options and keeps references. It copies nothing, reads no pixels and imports nothing, so it
costs what any small object costs; `Run.log` copies the data (`_snapshots.py`) and the media thread does the rest.
Mistakes in the options raise here. Faults of the data, such as a shape that is no picture, never raise: they are
recorded with the item.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "Audio",
    "ConfusionMatrix",
    "ExponentCounts",
    "File",
    "Histogram",
    "Html",
    "Image",
    "Markdown",
    "MediaValue",
    "PRCurve",
    "Plotly",
    "Points",
    "Table",
    "Text",
    "Video",
]

MAX_BINS = 512
IMAGE_LAYOUTS = ("HW", "HWC", "CHW", "NHWC", "NCHW")
VIDEO_LAYOUTS = ("THWC", "TCHW")
AUDIO_LAYOUTS = ("T", "TC", "CT")
_META_TYPES = (str, int, float, bool)


class MediaValue:
    """The base class of everything that `Run.log` stores as media."""

    kind: ClassVar[str] = ""
    """The kind in the journal."""
    data: Any = None
    caption: str | Sequence[str] | None = None
    meta: Mapping[str, Any]
    is_linked: bool = False
    """Whether a file is stored without copying it, if the file system allows that: another program made it."""
    index: int | None = None
    """The position of the item; by default, its position in the call."""
    joined_step: int | None = None
    """A step whose records of one name are numbered on, so that none hides another one."""

    def __init__(self, data: Any, caption: str | Sequence[str] | None, meta: Mapping[str, Any]) -> None:
        if caption is not None and not isinstance(caption, str):
            is_list = isinstance(caption, Sequence) and all(isinstance(text, str) for text in caption)
            if not is_list:
                raise TypeError(f"caption: expected a string, got {type(caption).__name__}")
        for name, value in meta.items():
            if not isinstance(value, _META_TYPES) and not hasattr(value, "item") and value is not None:
                raise TypeError(
                    f"{type(self).__name__}({name}=…): further keywords describe the item and must be numbers, strings "
                    f"or bools, got {type(value).__name__}"
                )
        self.data = data
        self.caption = caption
        self.meta = {name: value for name, value in meta.items() if value is not None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.data).__name__}, caption={self.caption!r})"


class Image(MediaValue):
    """A picture, or a batch of pictures, for `Run.log`.

    Args:
        data: a numpy array, a tensor, a PIL image, a matplotlib figure, the path of a file, or the bytes of one. Arrays
            of numpy are height × width × channels and tensors of torch are channels × height × width; two dimensions
            are a grey picture, four are a batch. There are 1, 3 or 4 channels.
        caption: a text for people, such as the prompt; a list of texts for a batch.
        range: the values that are black and white in an array of floats: ``(low, high)``, by default (0, 1), or
            ``"minmax"``. Values outside are clipped, and the record counts them. Integers are 0 to 255.
        layout: the order of the axes if it is not the usual one: `HWC`, `CHW`, `NHWC` or `NCHW`.
        masks: class numbers of each pixel, by name: ``{"prediction": mask}``, or with the names of the classes
            ``{"prediction": {"data": mask, "labels": {1: "fox"}}}``. 0 and numbers below it are no class.
        boxes: boxes in pixels: ``[{"x": 8, "y": 4, "width": 32, "height": 20, "label": "fox", "score": 0.9}]``.
        lossless: store the exact pixels, as PNG.
        meta: anything else that describes the picture, such as ``seed=42``; `prompt_id` names the same prompt at
            different steps and in different runs.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for an unknown layout, range or box.

    Example:
        >>> run.log({"samples": [tacho.Image(picture, caption=prompt, seed=42)]}, step=step)
    """

    kind = "image"

    def __init__(
        self,
        data: Any,
        caption: str | Sequence[str] | None = None,
        *,
        range: tuple[float, float] | str | None = None,  # noqa: A002 - the word for it
        layout: str | None = None,
        masks: Mapping[str, Any] | None = None,
        boxes: Sequence[Mapping[str, Any]] | None = None,
        lossless: bool = False,
        **meta: Any,
    ) -> None:
        if data is None or isinstance(data, (bool, int, float, complex, Mapping, list, tuple, set)):
            raise TypeError(
                f"Image: expected an array, a tensor, a PIL image, a path or bytes, got {type(data).__name__}"
            )
        super().__init__(data, caption, meta)
        self.range = _check_range(range)
        self.layout = _check_choice("layout", layout, IMAGE_LAYOUTS)
        self.masks = _check_masks(masks)
        self.boxes = _check_boxes(boxes)
        self.lossless = _check_type("lossless", lossless, bool)


class Video(MediaValue):
    """A clip, for `Run.log`: mp4 if PyAV is installed, otherwise an animated WebP.

    Args:
        data: an array of frames × height × width × channels, a tensor of frames × channels × height × width, the path
            of a file, or the bytes of one. A file is stored as it is.
        fps: frames per second.
        caption: a text for people.
        range: as for `Image`.
        layout: `THWC` or `TCHW`, if it is not the usual one.
        meta: anything else that describes the clip, such as ``seed=42``.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for a value out of range.

    Example:
        >>> run.log({"rollout": tacho.Video(frames, fps=16)}, step=step)
    """

    kind = "video"

    def __init__(
        self,
        data: Any,
        fps: float = 8,
        caption: str | None = None,
        *,
        range: tuple[float, float] | str | None = None,  # noqa: A002
        layout: str | None = None,
        **meta: Any,
    ) -> None:
        _check_data("Video", data, "an array of frames, a path or bytes")
        super().__init__(data, caption, meta)
        self.fps = _check_positive("fps", fps, 1000)
        self.range = _check_range(range)
        self.layout = _check_choice("layout", layout, VIDEO_LAYOUTS)


class Audio(MediaValue):
    """A sound, for `Run.log`, stored as 16-bit WAV.

    Args:
        data: samples between -1 and 1 (or integers), the path of a file, or the bytes of one. Arrays of numpy are
            samples × channels and tensors of torch are channels × samples; one dimension is mono. A file is stored as
            it is.
        rate: samples per second; required for samples.
        caption: a text for people.
        layout: `TC` (samples × channels) or `CT`, if it is not the usual one.
        meta: anything else that describes the sound, such as ``speaker="p225"``.

    Raises:
        TypeError: for an argument of the wrong type, and if samples have no rate.
        ValueError: for a value out of range.

    Example:
        >>> run.log({"voice": tacho.Audio(waveform, rate=24_000)}, step=step)
    """

    kind = "audio"

    def __init__(
        self,
        data: Any,
        rate: int | None = None,
        caption: str | None = None,
        *,
        layout: str | None = None,
        **meta: Any,
    ) -> None:
        _check_data("Audio", data, "an array of samples, a path or bytes")
        if rate is None and not isinstance(data, (str, bytes, os.PathLike)):
            raise TypeError("Audio: samples need a rate, such as rate=24_000")
        super().__init__(data, caption, meta)
        self.rate = None if rate is None else int(_check_positive("rate", rate, 10_000_000))
        self.layout = _check_choice("layout", layout, AUDIO_LAYOUTS)


class Points(MediaValue):
    """A cloud of points in space, for `Run.log`; the dashboard turns and zooms it.

    At most 300,000 points are stored: more are thinned evenly, and the record counts them. So it does with points that
    are left out because they are NaN or infinite.

    Args:
        data: an array, a tensor or a list of N × 3 numbers (x, y and z), N × 4 (x, y, z and a value), or N × 6 (x, y,
            z, and red, green and blue from 0 to 255); or the path or the bytes of a file with one: `.npy`, or JSON. The
            z axis points up.
        caption: a text for people.
        colors: a colour for each point, N × 3: integers from 0 to 255, or floats from 0 to 1.
        labels: the names of categories by their numbers, ``{1: "car", 2: "tree"}``, or a list of names from 0 on. With
            labels, a fourth column is a category; without them, it is a number on a scale of colours.
        meta: anything else that describes the points, such as ``seed=42``.

    Raises:
        TypeError: for an argument of the wrong type.

    Example:
        >>> run.log({"scan": tacho.Points(xyz, colors=rgb, caption="frame 12")}, step=step)
    """

    kind = "points"

    def __init__(
        self,
        data: Any,
        caption: str | None = None,
        *,
        colors: Any = None,
        labels: Mapping[Any, str] | Sequence[str] | None = None,
        **meta: Any,
    ) -> None:
        _check_data("Points", data, "an array, a tensor or a list of rows, a path or bytes")
        if colors is not None and (isinstance(colors, (str, bytes)) or not hasattr(colors, "__len__")):
            raise TypeError(f"colors: expected an array or a list of colours, got {type(colors).__name__}")
        super().__init__(data, caption, meta)
        self.colors = colors
        self.labels = _check_label_names(labels)


class Text(MediaValue):
    """A text, for `Run.log`; shown as it is. Secrets in it are masked.

    Example:
        >>> run.log({"sample": tacho.Text(model.generate(prompt), caption=prompt)}, step=step)
    """

    kind = "text"

    def __init__(self, text: str, caption: str | None = None, **meta: Any) -> None:
        super().__init__(_check_type("text", text, str), caption, meta)


class Markdown(MediaValue):
    """A text in Markdown, for `Run.log`. Secrets in it are masked.

    Example:
        >>> run.log({"note": tacho.Markdown("**frozen** until step 500")}, step=step)
    """

    kind = "markdown"

    def __init__(self, text: str, caption: str | None = None, **meta: Any) -> None:
        super().__init__(_check_type("text", text, str), caption, meta)


class Html(MediaValue):
    """A page of HTML, for `Run.log`; the dashboard shows it in a sandbox, without network.

    Args:
        data: the HTML; or a file: a `pathlib.Path`, or a string without ``<`` that ends in ``.html`` or ``.htm``.
        caption: a text for people.
        meta: anything else that describes the page.

    Example:
        >>> run.log({"report": tacho.Html(Path("report.html"))}, step=step)
    """

    kind = "html"

    def __init__(self, data: str | os.PathLike[str], caption: str | None = None, **meta: Any) -> None:
        if not isinstance(data, (str, os.PathLike)):
            raise TypeError(f"Html: expected HTML or a path, got {type(data).__name__}")
        if isinstance(data, str):
            self.is_path = "<" not in data and data.lower().endswith((".html", ".htm"))
        else:
            self.is_path = True
        super().__init__(data, caption, meta)


class Plotly(MediaValue):
    """A plotly figure; `Run.log` recognises bare ones."""

    kind = "plotly"

    def __init__(self, figure: Any, caption: str | None = None, **meta: Any) -> None:
        if not hasattr(figure, "to_json") and not isinstance(figure, str):
            raise TypeError(f"Plotly: expected a figure, got {type(figure).__name__}")
        super().__init__(figure, caption, meta)


class Table(MediaValue):
    """Rows with the same columns, for `Run.log`. Each call stores its own rows only.

    Args:
        rows: the rows as dicts; a cell is a number, a string, a bool, None or an `Image`.
        columns: the names of the columns, for `data`.
        data: the rows as lists, in the order of `columns`; or an array or a dataframe with as many columns.
        dataframe: a dataframe of pandas, or anything with `to_dict(orient="records")`.
        caption: a text for people.
        meta: anything else that describes the table.

    Raises:
        TypeError: for an argument of the wrong type, or if there are no rows or several sources of them.
        ValueError: if two columns have the same name.

    Example:
        >>> run.log({"eval": tacho.Table(rows=[{"prompt": p, "answer": a, "picture": tacho.Image(x)}])}, step=step)
    """

    kind = "table"

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]] | None = None,
        *,
        columns: Sequence[str] | None = None,
        data: Any = None,
        dataframe: Any = None,
        caption: str | None = None,
        **meta: Any,
    ) -> None:
        if sum(source is not None for source in (rows, data, dataframe)) != 1:
            raise TypeError("Table: pass rows=[{…}], or columns=[…] and data=[[…]], or dataframe=…")
        if (data is not None) != (columns is not None):
            raise TypeError("Table: data and columns belong together")
        for name, values in (("rows", rows), ("columns", columns), ("data", data)):
            if values is not None and (isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__iter__")):
                raise TypeError(f"Table: {name}: expected a list, got {type(values).__name__}")
        if dataframe is not None and not (hasattr(dataframe, "to_dict") and hasattr(dataframe, "columns")):
            raise TypeError(f"Table: dataframe: expected a dataframe, got {type(dataframe).__name__}")
        shape, dtype = getattr(data, "shape", None), getattr(data, "dtype", None)
        if shape is not None and len(shape) != 2 and getattr(dtype, "kind", "") not in {"O", "V"}:
            raise TypeError(f"Table: data: expected rows of cells, got an array of shape {tuple(shape)}")
        super().__init__(None, caption, meta)
        self.rows = _as_collection(rows)
        self.columns = None if columns is None else [str(column) for column in columns]
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            repeated_name = next(name for name in self.columns if self.columns.count(name) > 1)
            raise ValueError(f"Table: columns: {repeated_name!r} appears twice; each column needs a name of its own")
        is_dataframe = hasattr(data, "to_dict") and hasattr(data, "columns")
        self.row_lists: Any = None if is_dataframe else _as_collection(data)
        self.dataframe = data if is_dataframe else dataframe


class Histogram(MediaValue):
    """The distribution of values, for `Run.log`. NaN and infinite values are counted beside the bins.

    Args:
        values: numbers of any shape: an array, a tensor or a list.
        bins: the number of bins, at most 512.
        counts: how many values are in each bin, instead of `values`.
        edges: the edges of the bins of `counts`; one more than there are counts.

    Raises:
        TypeError: if there are neither values nor counts with edges, or both.
        ValueError: if the lengths do not match, or for too many bins.

    Example:
        >>> run.log({"reward": tacho.Histogram(rewards)}, step=step)
    """

    kind = "histogram"

    def __init__(self, values: Any = None, bins: int = 64, *, counts: Any = None, edges: Any = None) -> None:
        if (values is None) == (counts is None) or (counts is None) != (edges is None):
            raise TypeError("Histogram: pass values, or counts and edges")
        if isinstance(values, (str, bytes, Mapping)):
            raise TypeError(f"Histogram: expected numbers, got {type(values).__name__}")
        num_bins = _as_number(bins)
        if not isinstance(num_bins, int) or not 1 <= num_bins <= MAX_BINS:
            raise ValueError(f"Histogram: bins must be an integer from 1 to {MAX_BINS}, got {bins!r:.80}")
        if counts is not None and (len(edges) != len(counts) + 1 or not 1 <= len(counts) <= MAX_BINS):
            raise ValueError(
                f"Histogram: {len(counts)} counts and {len(edges)} edges; there must be 1 to {MAX_BINS} counts and one "
                "edge more"
            )
        super().__init__(values, None, {})
        self.bins = num_bins
        self.counts = counts
        self.edges = edges


class ExponentCounts(MediaValue):
    """Histograms of many tensors that were counted on a device; for `watch`, not for users.

    Args:
        counts: a row for each tensor, and a column for each value of the sign and the exponent of a float32 number,
            its nine highest bits.
        names: the name of each row.
        facts: further fields of each row's histogram.
    """

    kind = "exponent_counts"

    def __init__(self, counts: Any, names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(counts, None, {})
        self.names = names
        self.facts = facts


class ConfusionMatrix(MediaValue):
    """How often each class was predicted as each other one, for `Run.log`.

    Args:
        y_true: the class of each sample: an index into `labels`, or a label.
        y_pred: the predicted class of each sample.
        labels: the names of the classes.
        caption: a text for people.
        meta: anything else that describes the matrix.

    Raises:
        TypeError: for an argument of the wrong type.

    Example:
        >>> run.log({"cm": tacho.ConfusionMatrix(y_true, y_pred, labels=["cat", "dog"])}, step=step)
    """

    kind = "confusion_matrix"

    def __init__(
        self, y_true: Any, y_pred: Any, labels: Sequence[str] | None = None, caption: str | None = None, **meta: Any
    ) -> None:
        _check_samples("y_true", y_true)
        _check_samples("y_pred", y_pred)
        super().__init__(y_true, caption, meta)
        self.y_pred = y_pred
        self.labels = _check_labels(labels)


class PRCurve(MediaValue):
    """Precision over recall, for `Run.log`.

    Args:
        y_true: the class of each sample, as an index; for two classes, 0 or 1.
        scores: the score of each sample, or a column of scores per class.
        labels: the names of the classes.
        caption: a text for people.
        meta: anything else that describes the curve.

    Raises:
        TypeError: for an argument of the wrong type.

    Example:
        >>> run.log({"pr": tacho.PRCurve(y_true, probabilities, labels=["cat", "dog"])}, step=step)
    """

    kind = "pr_curve"

    def __init__(
        self, y_true: Any, scores: Any, labels: Sequence[str] | None = None, caption: str | None = None, **meta: Any
    ) -> None:
        _check_samples("y_true", y_true)
        _check_samples("scores", scores)
        super().__init__(y_true, caption, meta)
        self.scores = scores
        self.labels = _check_labels(labels)


class File(MediaValue):
    """Any file, for `Run.log`; see also `Run.log_file`.

    Args:
        path: the file.
        name: the name to show, by default its own.
        keep: store a copy in the run's folder; otherwise a link to it if it is small, and its path, size and hash.
        caption: a text for people.
        meta: anything else that describes the file.

    Raises:
        TypeError: for an argument of the wrong type.

    Example:
        >>> run.log({"report": tacho.File("out/report.pdf")}, step=step)
    """

    kind = "file"

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        keep: bool = True,
        caption: str | None = None,
        **meta: Any,
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"File: expected a path, got {type(path).__name__}")
        super().__init__(path, caption, meta)
        self.name = None if name is None else _check_type("name", name, str)
        self.keep = _check_type("keep", keep, bool)


# Checks of options ---------------------------------------------------------------------------------------------------


def _check_data(what: str, data: Any, expectation: str) -> None:
    if data is None or isinstance(data, (bool, int, float, complex, Mapping, set)):
        raise TypeError(f"{what}: expected {expectation}, got {type(data).__name__}")


def _check_samples(name: str, values: Any) -> None:
    if values is None or isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__len__"):
        raise TypeError(f"{name}: expected a list or an array, got {type(values).__name__}")


def _check_type(name: str, value: Any, expected_type: type) -> Any:
    if not isinstance(value, expected_type):
        raise TypeError(f"{name}: expected {expected_type.__name__}, got {type(value).__name__}")
    return value


def _check_choice(name: str, value: Any, choices: Sequence[str]) -> str | None:
    if value is not None and value not in choices:
        raise ValueError(f"{name}={value!r:.80}: expected one of {', '.join(choices)}")
    return None if value is None else str(value)


def _check_positive(name: str, value: Any, largest: float) -> float:
    number: float | None = _as_number(value)
    if number is None:
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    if not 0 < number <= largest:
        raise ValueError(f"{name}={value!r}: expected a positive number up to {largest:g}")
    return number


def _as_number(value: Any) -> Any:
    """Return a number of Python, numpy or another library as one of Python; None for anything else."""
    if hasattr(value, "__array_interface__") and value.shape == ():  # of numpy: reading it waits for no device
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _check_range(value: Any) -> tuple[float, float] | str | None:
    if value is None or (isinstance(value, str) and value == "minmax"):
        return value
    if isinstance(value, (tuple, list)) and len(value) == 2:
        low, high = map(_as_number, value)
        if low is not None and high is not None and low < high:
            return float(low), float(high)
    raise ValueError(f'range={value!r:.80}: expected (low, high) with low < high, or "minmax"')


def _check_labels(labels: Any) -> list[str] | None:
    if labels is None:
        return None
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Sequence):
        raise TypeError(f"labels: expected a list of names, got {type(labels).__name__}")
    return [str(label) for label in labels]


def _check_masks(masks: Any) -> dict[str, tuple[Any, dict[str, str]]]:
    """Return the data and the labels of each mask."""
    if masks is None:
        return {}
    if not isinstance(masks, Mapping):
        raise TypeError(f"masks: expected a dict of masks by name, got {type(masks).__name__}")
    checked_masks: dict[str, tuple[Any, dict[str, str]]] = {}
    for name, mask in masks.items():
        data: Any = mask
        labels: Any = {}
        if isinstance(mask, Mapping):
            if "data" not in mask or not set(mask) <= {"data", "labels"}:
                raise ValueError(f"masks[{name!r}]: expected an array, or a dict of data and labels")
            data, labels = mask["data"], mask.get("labels") or {}
        if not hasattr(data, "shape") and not hasattr(data, "getbands"):
            raise TypeError(f"masks[{name!r}]: expected an array, got {type(data).__name__}")
        checked_masks[str(name)] = (data, _check_label_names(labels))
    return checked_masks


def _check_label_names(labels: Any) -> dict[str, str]:
    """Return the names of categories by their numbers."""
    if not isinstance(labels, Mapping):
        labels = dict(enumerate(_check_labels(labels) or ()))
    return {str(number): str(label) for number, label in labels.items()}


def _as_collection(rows: Any) -> Any:
    """Return rows as something that can be iterated over more than once."""
    return rows if rows is None or hasattr(rows, "__len__") else list(rows)


_BOX_FIELDS = ("x", "y", "width", "height")


def _check_boxes(boxes: Any) -> list[dict[str, Any]]:
    if boxes is None:
        return []
    if isinstance(boxes, (str, bytes, Mapping)) or not hasattr(boxes, "__iter__"):
        raise TypeError(f"boxes: expected a list of dicts, got {type(boxes).__name__}")
    checked_boxes = []
    for box in boxes:
        if not isinstance(box, Mapping):
            raise TypeError(f"boxes: expected a list of dicts, got an entry of type {type(box).__name__}")
        unknown = set(box) - {*_BOX_FIELDS, "label", "score"}
        absent = set(_BOX_FIELDS) - set(box)
        if unknown or absent:
            problem = f"unknown fields {sorted(map(str, unknown))}" if unknown else f"no {', '.join(sorted(absent))}"
            raise ValueError(f"boxes: a box has {problem}; it needs x, y, width and height, in pixels")
        checked_boxes.append(dict(box))
    return checked_boxes
