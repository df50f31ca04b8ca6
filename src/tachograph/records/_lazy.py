"""Values that the writer thread reads later, above all scalars on a GPU.

Reading a CUDA tensor waits for all work queued before it, so the training thread never reads one. It copies the scalar
into the next free slot of a small buffer on the same device, which is one launch on the stream that computes the
scalar, and continues. The writer copies a whole buffer to the host, once for all slots filled so far, when it needs the
first value of it. Work on a stream is executed in order, so that copy sees every slot that was filled before it.

A thread that captures a CUDA graph fails if any other thread makes certain calls meanwhile, such as querying an event.
`_allow_capture_elsewhere` exempts the calling thread from this.

A slot is never reused before its value has reached the host: a buffer returns to the pool when all its slots have been
filled and read. Each thread has buffers of its own, so filling a slot needs no lock.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tachograph._base.guard import faults, suppress

__all__ = ["GraphCaptureError", "LazyValue", "copy_to_host", "has_device_scalars", "wait_for_event"]

MAX_WAIT_S = 2.0
"""How long the writer waits for a device. After that the value is dropped and the writer continues."""

_NUM_SLOTS = 256
_MAX_STREAMS = 64
_MAX_POOLED = 16
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.0005, 0.02


class GraphCaptureError(RuntimeError):
    """A tensor was logged while a CUDA graph was being captured: a copy would become part of the graph."""


class LazyValue:
    """A value that the writer computes by calling `compute`, because computing it may take time."""

    __slots__ = ("compute",)

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute


class _DeviceScalar(LazyValue):
    """The copy of a floating-point scalar in a slot on its device."""

    __slots__ = ("_copies", "_index")

    def __init__(self, copies: _ScalarCopies, index: int) -> None:
        self._copies = copies
        self._index = index

    def compute(self) -> float:
        """Return the value; wait for the device if necessary."""
        return self._copies.read(self._index)


class _Slots:
    """A buffer on a device, with a view of each element that was used so far."""

    def __init__(self, device: Any) -> None:
        torch: Any = sys.modules["torch"]
        # An inference tensor could not be written to later, outside of inference mode.
        with torch.inference_mode(mode=False):
            self.buffer = torch.empty(_NUM_SLOTS, dtype=torch.float64, device=device)
        self._views: list[Any] = []

    def fill(self, index: int, value: Any) -> None:
        """Copy a scalar into a slot; slots are filled in order."""
        if index == len(self._views):
            self._views.append(self.buffer[index])
        self._views[index].copy_(value)


class _ScalarCopies:
    """The scalars that one thread copies into one buffer, on one stream."""

    def __init__(self, slots: _Slots, stream: int, pool: list[_Slots]) -> None:
        self._slots: _Slots | None = slots
        self._stream = stream
        self._pool = pool
        self._host: list[float] = []
        self._gives_up_until_s = 0.0
        self.num_filled = 0

    @property
    def is_full(self) -> bool:
        return self.num_filled == _NUM_SLOTS

    def add(self, value: Any) -> _DeviceScalar:
        """Start to copy a scalar, on the training thread."""
        assert self._slots is not None  # noqa: S101 - given back only when full
        index = self.num_filled
        self._slots.fill(index, value)
        self.num_filled = index + 1  # last: the writer fetches only slots whose copy was launched
        return _DeviceScalar(self, index)

    def read(self, index: int) -> float:
        """Return a value, on the writer thread.

        Raises:
            TimeoutError: if the device does not reach the copy within `MAX_WAIT_S`.
        """
        if index >= len(self._host):
            if time.monotonic() < self._gives_up_until_s:
                raise TimeoutError(_TOO_LATE)
            try:
                self._fetch()
            except faults(TimeoutError):
                self._gives_up_until_s = time.monotonic() + MAX_WAIT_S  # do not wait once for every value
                raise
        return self._host[index]

    def _fetch(self) -> None:
        """Copy all filled slots to the host."""
        slots, num_filled = self._slots, self.num_filled
        assert slots is not None  # noqa: S101 - given back only when all values are on the host
        _allow_capture_elsewhere()
        torch: Any = sys.modules["torch"]
        cuda, device = torch.cuda, slots.buffer.device
        stream = cuda.ExternalStream(self._stream, device) if self._stream else cuda.default_stream(device)
        with cuda.stream(stream):
            if not _poll(lambda: not cuda.is_current_stream_capturing()):  # a copy would become part of the graph
                raise TimeoutError(_TOO_LATE)
            host = torch.empty(num_filled, dtype=torch.float64, pin_memory=True)
            host.copy_(slots.buffer[:num_filled], non_blocking=True)
            event = cuda.Event()
            event.record(stream)
        if not wait_for_event(event):
            raise TimeoutError(_TOO_LATE)
        self._host = host.tolist()
        if num_filled == _NUM_SLOTS:
            self._slots = None
            if len(self._pool) < _MAX_POOLED:
                self._pool.append(slots)


_TOO_LATE = f"the copy from the device did not finish within {MAX_WAIT_S:g} s"

_copies: dict[tuple[int, int, int], _ScalarCopies] = {}
"""The copies in progress, by device, stream and thread."""

_pools: dict[tuple[int, int], list[_Slots]] = {}
"""Buffers whose values have all reached the host, by device and stream."""


def has_device_scalars() -> bool:
    """Return whether this process has ever copied a scalar on a device."""
    return bool(_pools)


def copy_to_host(value: Any) -> Any:
    """Start a copy of a detached one-element tensor to the host, and return the value that the writer can read.

    Raises:
        GraphCaptureError: if a CUDA graph is being captured.
    """
    torch: Any = sys.modules["torch"]
    device = value.device
    if device.type != "cuda":
        return value.clone()
    if torch.cuda.is_current_stream_capturing():
        raise GraphCaptureError("a tensor cannot be logged while a CUDA graph is captured; log it after the replay")
    if not value.is_floating_point():
        return _copy_any(torch, value)
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    key = (device.index, stream, threading.get_ident())
    copies = _copies.get(key)
    if copies is None or copies.is_full:
        pool = _pools.setdefault((device.index, stream), [])
        if len(_copies) >= _MAX_STREAMS:
            _copies.clear()  # values that are not read yet keep their buffers
        copies = _copies[key] = _ScalarCopies(pool.pop() if pool else _Slots(device), stream, pool)
    return copies.add(value if value.dim() == 0 else value.reshape(()))


def _copy_any(torch: Any, value: Any) -> LazyValue:
    """Copy an integer or complex scalar, which a slot could not hold exactly."""
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    host.copy_(value, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def compute() -> Any:
        if not wait_for_event(event):
            raise TimeoutError(_TOO_LATE)
        return host.item()

    return LazyValue(compute)


def wait_for_event(event: Any) -> bool:
    """Poll an event until the device reaches it, or return False after `MAX_WAIT_S`. Synchronising would stall it."""
    _allow_capture_elsewhere()
    return _poll(event.query)


def _allow_capture_elsewhere() -> None:
    """Let this thread use the device while another thread captures a CUDA graph."""
    if getattr(_thread, "is_relaxed", False):
        return
    _thread.is_relaxed = True
    import ctypes

    with suppress(OSError, AttributeError):  # no driver of NVIDIA, or one without this function
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_CAPTURE_MODE_RELAXED)))


_thread = threading.local()
_CAPTURE_MODE_RELAXED = 2


def _poll(is_done: Callable[[], bool]) -> bool:
    # Each poll takes the interpreter lock from the training thread, so pauses get longer.
    deadline_s = time.monotonic() + MAX_WAIT_S
    pause_s = _FIRST_PAUSE_S
    while not is_done():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
    return True
