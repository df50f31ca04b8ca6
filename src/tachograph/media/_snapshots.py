"""Copies of the data of media, made on the thread that logs.

The caller may change its arrays as soon as `log` returns, so this is where they are copied: once, without conversion.
Nothing here waits for a device. A CUDA tensor is cloned on the stream that computes it, which is one launch; the media
thread then copies the clone to pinned memory on a stream of its own and polls an event. Files are only looked at.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from tachograph._base.guard import faults, reraise_from_signal_handler
from tachograph._base.importing import import_on_first_use
from tachograph._base.paths import absolute_path
from tachograph.media._values import (
    Audio,
    ConfusionMatrix,
    File,
    Histogram,
    Html,
    Image,
    MediaValue,
    Plotly,
    Points,
    PRCurve,
    Table,
    Video,
)
from tachograph.records import OMIT, freeze, to_json, to_plain, wait_for_event

__all__ = ["ArrayCopy", "FileAt", "SnapshotError", "memory_bytes", "snapshot", "with_usual_dtype", "wrap_bare"]

MAX_ROWS = 100_000
_MAX_CELL_CHARS = 1_000
_MAX_EVENT_WAITS = 30
_MAX_DEPTH = 16
_PLAIN_CELLS = (str, int, float, bool, type(None))


class SnapshotError(ValueError):
    """The data cannot be stored; the message says why."""


class FileAt(NamedTuple):
    """A file of the user, and its state when it was logged."""

    path: str
    size_bytes: int
    modified_ns: int


class ArrayCopy:
    """A copy of an array or a tensor, which `read` returns as a numpy array."""

    __slots__ = ("_event", "data", "is_torch")

    def __init__(self, data: Any, *, is_torch: bool, event: Any = None) -> None:
        self.data = data
        self.is_torch = is_torch
        self._event = event

    def read(self) -> Any:
        """Return the array. Called by the media thread; waits for the device.

        Raises:
            SnapshotError: if it cannot be read.
        """
        import numpy as np

        data, self.data = self.data, None
        if self._event is not None:
            data = _copy_from_cuda(data, self._event)
        elif self.is_torch and data.device.type != "cpu":
            data = data.cpu()
        if not self.is_torch:
            return with_usual_dtype(np.asarray(data.numpy() if hasattr(data, "numpy") else data))
        if data.layout is not _torch().strided:
            data = data.to_dense()
        if data.dtype in {_torch().bfloat16, *_float8_types()}:
            data = data.float()
        return data.resolve_conj().resolve_neg().numpy()


def with_usual_dtype(array: Any) -> Any:
    """Return an array of numpy; small types of ml_dtypes, as JAX has them, become wider ones of numpy."""
    if array.dtype.type.__module__ != "ml_dtypes":
        return array
    name = array.dtype.name
    return array.astype("int8" if name.startswith("int") else "uint8" if name.startswith("uint") else "float32")


def memory_bytes(value: Any, depth: int = 0) -> int:
    """Return about how many bytes a copy of the data would take; 0 for a file, which is not read now."""
    if depth > _MAX_DEPTH:
        return 0
    if isinstance(value, MediaValue):
        return sum(memory_bytes(part, depth + 1) for part in _data_of(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return len(value)
    if isinstance(value, str):
        return len(value)
    num_bytes = getattr(value, "nbytes", None)  # numpy, torch, jax
    if isinstance(num_bytes, int):
        return num_bytes
    if hasattr(value, "getbands"):
        width, height = value.size
        return int(width * height * max(len(value.getbands()), 1))
    if hasattr(value, "memory_usage"):
        return int(value.memory_usage(index=False).sum())
    if isinstance(value, (list, tuple)):
        if not value or isinstance(value[0], (int, float)):
            return 8 * len(value)
        return sum(memory_bytes(part, depth + 1) for part in value)
    return 64


def _data_of(value: MediaValue) -> list[Any]:
    if isinstance(value, Table):
        if value.dataframe is not None:
            return [value.dataframe]
        if _is_array_of_numbers(value.row_lists):
            return [value.row_lists]
        rows = list(islice(value.rows if value.rows is not None else value.row_lists, MAX_ROWS))
        return [cell for row in rows if hasattr(row, "__iter__") for cell in _cells_of(row)]
    parts = [value.data]
    if isinstance(value, Image):
        parts += [data for data, _ in value.masks.values()]
    if isinstance(value, ConfusionMatrix):
        parts.append(value.y_pred)
    if isinstance(value, PRCurve):
        parts.append(value.scores)
    if isinstance(value, Points) and value.colors is not None:
        parts.append(value.colors)
    return parts


def _cells_of(row: Any) -> Any:
    return row.values() if isinstance(row, Mapping) else row


def wrap_bare(value: Any) -> MediaValue | None:
    """Return a bare picture or figure as media, None for anything else. Imports nothing."""
    if isinstance(value, MediaValue):
        return value
    if is_pil_image(value) or is_matplotlib_figure(value):
        return Image(value)
    if is_plotly_figure(value):
        return Plotly(value)
    return None


def _is_instance(value: Any, module: str, name: str) -> bool:
    loaded_class = getattr(sys.modules.get(module), name, None)
    return isinstance(loaded_class, type) and isinstance(value, loaded_class)


def is_pil_image(value: Any) -> bool:
    """Return whether a value is an image of Pillow."""
    return _is_instance(value, "PIL.Image", "Image")


def is_matplotlib_figure(value: Any) -> bool:
    """Return whether a value is a figure of matplotlib."""
    return _is_instance(value, "matplotlib.figure", "FigureBase")


def is_plotly_figure(value: Any) -> bool:
    """Return whether a value is a figure of plotly."""
    return _is_instance(value, "plotly.basedatatypes", "BaseFigure")


def snapshot(value: MediaValue) -> MediaValue:
    """Return a copy of a media value whose data nobody else can change.

    Raises:
        SnapshotError: if that is not possible; the message says why.
    """
    result = object.__new__(type(value))  # `copy.copy` takes ten times as long
    vars(result).update(vars(value))
    if isinstance(result, Table):
        _copy_table(result)
    elif isinstance(result, Image):
        result.lossless = result.lossless or is_matplotlib_figure(result.data)  # thin lines and small texts
        result.data = _copy_picture(result.data)
        result.masks = {name: (_copy_data(data), labels) for name, (data, labels) in result.masks.items()}
    elif isinstance(result, Html):
        result.data = _look_at(result.data) if result.is_path else result.data
    elif isinstance(result, File):
        result.data = _look_at(result.data)
    elif isinstance(result, Plotly):
        # Its own serialisation is the only copy of a figure that is complete.
        result.data = result.data if isinstance(result.data, str) else _call(result.data.to_json)
    elif isinstance(result, Histogram):
        result.data = None if result.data is None else _copy_data(result.data)
        if result.counts is not None:
            result.counts, result.edges = _copy_data(result.counts), _copy_data(result.edges)
    elif isinstance(result, Points):
        result.data = _look_at(result.data) if isinstance(result.data, str) else _copy_data(result.data)
        result.colors = None if result.colors is None else _copy_data(result.colors)
    elif isinstance(result, (Audio, Video)) and isinstance(result.data, str):
        result.data = _look_at(result.data)
    else:
        result.data = _copy_data(result.data)
        if isinstance(result, ConfusionMatrix):
            result.y_pred = _copy_data(result.y_pred)
        if isinstance(result, PRCurve):
            result.scores = _copy_data(result.scores)
    return result


def _copy_picture(data: Any) -> Any:
    if is_matplotlib_figure(data):
        return _call(_draw_figure, data)
    if is_pil_image(data):
        return _copy_pil(data)
    if isinstance(data, (str, os.PathLike)):
        return _look_at(data)
    return _copy_data(data)


def _copy_pil(image: Any) -> Any:
    """Copy an image; one that was opened and not read yet is taken from its file, later."""
    path = getattr(image, "filename", "")
    is_first_frame = _call(image.tell) == 0  # a file is stored with all of its frames
    if path and is_first_frame and getattr(image, "fp", None) is not None and getattr(image, "tile", None):
        with_path = _look_at_or_none(path)
        if with_path is not None:
            return with_path
    return _call(image.copy)


def _copy_data(data: Any) -> Any:
    """Copy an array, a tensor, bytes or a list; a path is looked at, and texts cannot change."""
    if isinstance(data, str):
        return data
    if isinstance(data, os.PathLike):
        return _look_at(data)
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    if isinstance(data, (list, tuple)):
        if data and hasattr(data[0], "shape"):  # such as a list of frames
            return [_copy_data(part) for part in data]
        return [list(part) if isinstance(part, list) else part for part in data]
    if is_pil_image(data):
        return _copy_pil(data)
    if not hasattr(data, "shape"):
        if hasattr(data, "__array__") or hasattr(data, "tolist"):
            return ArrayCopy(_call(lambda: data.copy() if hasattr(data, "copy") else data), is_torch=False)
        raise SnapshotError(f"values of type {type(data).__module__}.{type(data).__name__} cannot be stored as media")
    return _call(_copy_array, data)


def _copy_array(data: Any) -> ArrayCopy:
    if hasattr(data, "detach") and hasattr(data, "device"):
        tensor = data.detach()
        if tensor.device.type == "cuda":
            return _clone_cuda(tensor)
        return ArrayCopy(tensor.clone(), is_torch=True)
    root = type(data).__module__.partition(".")[0]
    if root in {"jax", "jaxlib", "tensorflow"}:  # cannot change
        return ArrayCopy(data, is_torch=False)
    if hasattr(data, "to_numpy"):  # a series of pandas
        return ArrayCopy(data.to_numpy(copy=True), is_torch=False)
    if not hasattr(data, "copy"):  # another array type; its elements may be on a device
        return ArrayCopy(data.__array__().copy(), is_torch=False)
    return ArrayCopy(data.copy(), is_torch=False)


def _call(function: Any, *arguments: Any) -> Any:
    """Call code of another library.

    Raises:
        SnapshotError: for any exception of it.
    """
    try:
        return function(*arguments)
    except SnapshotError:
        raise
    except Exception as error:  # noqa: BLE001 - third-party code
        reraise_from_signal_handler(error)
        raise SnapshotError(f"{type(error).__name__}: {error}") from None


def _look_at_or_none(path: Any) -> FileAt | None:
    try:
        status = os.stat(path)
        return FileAt(absolute_path(path), status.st_size, status.st_mtime_ns)
    except faults(OSError, ValueError, TypeError):
        return None


def _look_at(path: Any) -> FileAt:
    file = _look_at_or_none(path)
    if file is None:
        raise SnapshotError(f"there is no file {os.fspath(path)!r}")
    return file


def _copy_table(table: Table) -> None:
    """Copy the rows; a cell that is not plain is copied as well."""
    if table.dataframe is not None:
        frame = table.dataframe
        table.dataframe = _call(frame.copy) if hasattr(frame, "copy") else frame
        return
    if table.rows is not None:
        rows = list(islice(table.rows, MAX_ROWS + 1))
        if any(not isinstance(row, Mapping) for row in rows):
            raise SnapshotError("a row of a table is no dict; use columns=[…] and data=[[…]]")
        table.rows = [{str(name): _copy_cell(cell) for name, cell in row.items()} for row in rows]
    else:
        columns = table.columns or []
        if _is_array_of_numbers(table.row_lists):  # may be on a device; the media thread reads it
            table.row_lists = _copy_data(table.row_lists[: MAX_ROWS + 1])
            return
        rows = list(islice(table.row_lists, MAX_ROWS + 1))
        if any(isinstance(row, (str, Mapping)) or not hasattr(row, "__iter__") for row in rows):
            raise SnapshotError("a row of a table is no list, as there are columns; use rows=[{…}] for dicts")
        lists = [list(row) for row in rows]
        if any(len(cells) != len(columns) for cells in lists):
            raise SnapshotError(f"a row of a table does not have {len(columns)} cells, as there are columns")
        table.rows = [dict(zip(columns, map(_copy_cell, cells), strict=True)) for cells in lists]
        table.row_lists = None


def _is_array_of_numbers(value: Any) -> bool:
    """Return whether a value is an array of two dimensions whose elements become numbers as they are."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")  # a tensor has numbers only
    return len(getattr(value, "shape", ())) == 2 and kind in "biufV"


def _copy_cell(cell: Any) -> Any:
    if type(cell) in _PLAIN_CELLS:
        return cell
    media = wrap_bare(cell)
    if isinstance(media, Points):
        return "points cannot be a cell; log them under a name of their own"
    if media is not None:
        try:
            return snapshot(media)
        except SnapshotError as error:
            return str(error)
    if isinstance(cell, (list, tuple)) and cell and wrap_bare(cell[0]) is not None:
        return "a list of media cannot be a cell; use a column for each"
    if hasattr(cell, "shape"):  # may be on a device; the media thread reads it
        return freeze({"cell": cell}).get("cell")
    plain = to_plain(cell, "cell", [])
    if plain is OMIT:
        return str(cell)[:_MAX_CELL_CHARS]
    return to_json(plain) if isinstance(plain, (list, dict)) else plain


def _draw_figure(figure: Any) -> Any:
    """Draw a figure of matplotlib into pixels, on the calling thread.

    Programs clear or close a figure right after they logged it, a copy takes as long as drawing, and matplotlib must
    not be used from two threads. So the pixels are made here, and only they are encoded later.
    """
    import_on_first_use("numpy", "matplotlib.backends.backend_agg")
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    root = figure.figure if figure.figure is not None else figure
    canvas = root.canvas
    try:
        agg = FigureCanvasAgg(root)
        agg.draw()
        return ArrayCopy(np.array(agg.buffer_rgba()), is_torch=False)
    finally:
        root.set_canvas(canvas)


# CUDA ----------------------------------------------------------------------------------------------------------------


def _torch() -> Any:
    return sys.modules["torch"]


def _float8_types() -> list[Any]:
    torch = _torch()
    return [getattr(torch, name) for name in dir(torch) if name.startswith("float8_")]


def _clone_cuda(tensor: Any) -> ArrayCopy:
    """Clone a tensor on the current stream, and mark the point on it at which the clone is complete."""
    torch = _torch()
    with torch.cuda.device(tensor.device):
        if torch.cuda.is_current_stream_capturing():
            raise SnapshotError("a tensor cannot be logged while a CUDA graph is captured; log it after the replay")
        clone = tensor.clone()
        event = torch.cuda.Event()
        event.record()
    return ArrayCopy(clone, is_torch=True, event=event)


_streams = threading.local()


def _copy_from_cuda(tensor: Any, event: Any) -> Any:
    """Copy a clone to pinned memory on a stream of our own, on the media thread."""
    torch = _torch()
    if not any(wait_for_event(event) for _ in range(_MAX_EVENT_WAITS)):  # a step may take long
        raise SnapshotError("the device did not compute the tensor in time")
    streams = _streams.__dict__.setdefault("by_device", {})
    stream = streams.get(tensor.device.index)
    if stream is None:
        stream = streams[tensor.device.index] = torch.cuda.Stream(tensor.device)
    with torch.cuda.stream(stream):
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        tensor.record_stream(stream)
        copy_event = torch.cuda.Event()
        copy_event.record(stream)
    if not wait_for_event(copy_event):
        raise SnapshotError("the copy from the device did not finish in time")
    return host
