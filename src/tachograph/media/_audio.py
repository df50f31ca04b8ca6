"""Encodes sounds as 16-bit WAV, with the standard library. Called by the media thread."""

from __future__ import annotations

import io
import wave
from typing import Any, NamedTuple

from tachograph.media._snapshots import SnapshotError

__all__ = ["EncodedSound", "encode_wave", "wave_facts"]

_MAX_CHANNELS = 64


class EncodedSound(NamedTuple):
    """The bytes of a WAV file, its duration, and how many samples were outside the range."""

    data: bytes
    seconds: float
    num_clipped: int


def encode_wave(array: Any, rate: int, *, is_torch: bool, layout: str | None) -> EncodedSound:
    """Encode samples: floats from -1 to 1, or integers of their whole range.

    Raises:
        SnapshotError: if the array is no sound.
    """
    import numpy as np

    if array.ndim == 1:
        array = array[:, None]
    elif array.ndim == 2 and (layout == "CT" if layout is not None else is_torch):
        array = array.T
    if array.ndim != 2 or not 1 <= array.shape[1] <= _MAX_CHANNELS:
        raise SnapshotError(
            f"an array of shape {array.shape} is no sound: numpy is samples × channels and torch channels × samples"
        )
    num_clipped = 0
    if array.dtype.kind == "f":
        is_outside = ~(np.abs(array) <= 1)  # NaN, too
        num_clipped = int(np.count_nonzero(is_outside))
        values = np.round(np.clip(np.nan_to_num(array.astype(np.float32), nan=0.0), -1, 1) * 32_767)
    elif array.dtype == np.uint8:
        values = (array.astype(np.int32) - 128) << 8
    elif array.dtype.kind == "i":
        values = array.astype(np.int64) >> max(8 * array.dtype.itemsize - 16, 0)
        values = values << 8 if array.dtype.itemsize == 1 else values
    else:
        raise SnapshotError(f"an array of {array.dtype} values is no sound")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(array.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(values.astype("<i2").tobytes())
    return EncodedSound(buffer.getvalue(), array.shape[0] / rate, num_clipped)


def wave_facts(data: bytes) -> dict[str, float]:
    """Return the rate and the duration of a WAV file; nothing if it is not understood."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            return {"rate": file.getframerate(), "seconds": file.getnframes() / file.getframerate()}
    except (wave.Error, EOFError, ZeroDivisionError):
        return {}
