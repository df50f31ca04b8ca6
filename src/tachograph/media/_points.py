"""Encodes clouds of points as `.npy` files of float32 rows. Called by the media thread.

Readers need no library for them: after a short header with the shape come the rows, without compression. A row has the
position, then the value if there is one, then the colour, from 0 to 255, if there is one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tachograph.media._snapshots import SnapshotError

__all__ = ["MAX_POINTS", "EncodedPoints", "encode_points", "parse_rows"]

MAX_POINTS = 300_000
_NPY_MAGIC = b"\x93NUMPY"
_MAX_REASON_CHARS = 300
_POSITION = ("x", "y", "z")
_COLOUR = ("red", "green", "blue")
_COLUMNS = {3: _POSITION, 4: (*_POSITION, "value"), 6: (*_POSITION, *_COLOUR)}


class EncodedPoints(NamedTuple):
    """The bytes of a file, and the fields of the item that describe it."""

    data: bytes
    fields: dict[str, Any]


def encode_points(array: Any, colors: Any = None, labels: Mapping[str, str] | None = None) -> EncodedPoints:
    """Encode points, without the ones that are not finite, and evenly thinned if there are too many.

    Args:
        array: N × 3 (x, y, z), N × 4 (and a value) or N × 6 (and red, green and blue from 0 to 255).
        colors: N × 3, integers from 0 to 255 or floats from 0 to 1.
        labels: the names of categories; the value is one then. Without a value, they have no effect.

    Raises:
        SnapshotError: if the array has another shape or no numbers, or if colors do not match it.
    """
    import numpy as np

    if array.shape == (0,):
        array = array.reshape(0, 3)  # an empty list
    columns = _columns_of(array)
    rows = _as_float32(array)
    if colors is not None:
        if "red" in columns:
            raise SnapshotError("colors were passed twice: as an argument, and in the columns 4 to 6")
        rows = np.concatenate([rows, _colour_columns(colors, len(rows))], axis=1)
        columns = (*columns, *_COLOUR)
    is_finite = np.isfinite(rows).all(axis=1)
    num_finite = int(np.count_nonzero(is_finite))
    if num_finite < len(rows):
        rows = rows[is_finite]
    num_clipped = _clip_colours(rows[:, -3:]) if "red" in columns else 0
    if num_finite > MAX_POINTS:
        rows = rows[np.arange(MAX_POINTS) * num_finite // MAX_POINTS]
    fields: dict[str, Any] = {"num_points": len(rows), "columns": list(columns)}
    if len(rows):
        fields["bounds"] = [_short_numbers(edge(rows[:, :3], axis=0)) for edge in (np.min, np.max)]
    counts = {"nonfinite": len(array) - num_finite, "clipped": num_clipped}
    fields |= {name: count for name, count in counts.items() if count}
    fields |= {"sampled_from": num_finite} if num_finite > MAX_POINTS else {}
    fields |= {"labels": dict(labels)} if labels and "value" in columns else {}
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(rows, "<f4"), version=(1, 0), allow_pickle=False)
    return EncodedPoints(buffer.getvalue(), fields)


def _columns_of(array: Any) -> tuple[str, ...]:
    """Return the names of the columns of an array.

    Raises:
        SnapshotError: if it is no cloud of points.
    """
    columns = _COLUMNS.get(array.shape[1]) if array.ndim == 2 else None
    if columns is None:
        raise SnapshotError(
            f"an array of shape {array.shape} is no cloud of points: it must be N × 3 (x, y, z), N × 4 (and a value) "
            "or N × 6 (and red, green, blue)"
        )
    if array.dtype.kind not in "fiub":
        raise SnapshotError(f"an array of {array.dtype} values is no cloud of points")
    return columns


def _clip_colours(columns: Any) -> int:
    """Round colours to integers from 0 to 255, in place; return how many were outside."""
    import numpy as np

    num_clipped = int(np.count_nonzero((columns < 0) | (columns > 255)))
    columns[:] = np.round(np.clip(columns, 0, 255))
    return num_clipped


def _as_float32(array: Any) -> Any:
    import numpy as np

    with np.errstate(over="ignore"):  # what is too large is infinite then, and left out
        return array.astype(np.float32)


def _colour_columns(colors: Any, num_points: int) -> Any:
    """Return colours as columns from 0 to 255.

    Raises:
        SnapshotError: if there is not one colour for each point.
    """
    if colors.shape == (0,):
        colors = colors.reshape(0, 3)
    if colors.shape != (num_points, 3) or colors.dtype.kind not in "fiub":
        raise SnapshotError(
            f"colors have the shape {colors.shape} and the type {colors.dtype}: they must be {num_points} × 3 numbers, "
            "one colour for each point"
        )
    columns = _as_float32(colors)
    return columns if colors.dtype.kind in "iu" else columns * 255


def _short_numbers(values: Any) -> list[float]:
    """Return float32 numbers with their significant digits only."""
    return [float(f"{value:.7g}") for value in values.tolist()]


def parse_rows(data: bytes) -> Any:
    """Return the rows of a file: `.npy`, or JSON, which is a list of rows or an object whose `points` are one.

    Raises:
        SnapshotError: if it has none.
    """
    import numpy as np

    try:
        if data.startswith(_NPY_MAGIC):
            return _parse_npy(data)
        content = json.loads(data)  # accepts NaN and Infinity, which Python writes
        return np.asarray(content["points"] if isinstance(content, dict) else content)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS]
        raise SnapshotError(f"a file that is no .npy file and no JSON list of points: {reason}") from None


def _parse_npy(data: bytes) -> Any:
    """Return the array of a file, whose size is checked before memory is allocated for it."""
    import numpy as np

    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if is_fortran else "C")
