"""The `rank` record: how long one rank took for a window of iterations, in few bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import msgspec

from tachograph.records._values import finite_or_none

__all__ = ["PhaseTime", "RankWindow", "WindowTimes", "merge_windows", "window_times"]

_QUANTITIES = ("own", "wait", "data", "forward", "backward", "optimizer")
_MS = 1e3
_MAX_MS = 1e300


class PhaseTime(NamedTuple):
    """The time that one part of an iteration takes."""

    median_s: float
    mad_s: float
    """The median of the absolute differences from the median."""


class RankWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The iterations of one rank in one window.

    Windows end at multiples of their length, so that the windows of all ranks cover the same iterations. A time is None
    if it was not measured.
    """

    last_iteration: int
    """The number of its last iteration, counted from 0 over all attempts."""
    num_iterations: int
    """Iterations that count: without those next to a validation or a checkpoint."""
    own: PhaseTime
    """Work that does not depend on other ranks. Without a `wait`, the whole iteration."""
    wait: PhaseTime | None = None
    """The rest of the iteration: the time in which the rank may have waited for others."""
    data: PhaseTime | None = None
    forward: PhaseTime | None = None
    backward: PhaseTime | None = None
    optimizer: PhaseTime | None = None
    longest_own_s: float | None = None
    longest_iteration: int | None = None
    """The iteration with the longest own time."""
    collective: int | None = None
    """The number of collectives called so far, if `wait` is the time inside of them."""
    time: float | None = None
    """When it ended, in Unix seconds."""
    num_windows: int = 1
    """How many windows were merged into this one."""

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of the record, without `event` and `time`. Times are in ms, to four significant digits."""
        times_ms: list[float | None] = []
        for name in _QUANTITIES:
            phase: PhaseTime | None = getattr(self, name)
            if phase is None:
                times_ms += [None, None]
            else:
                times_ms += [float(f"{phase.median_s * _MS:.4g}"), float(f"{phase.mad_s * _MS:.2g}")]
        fields: dict[str, Any] = {"last": self.last_iteration, "n": self.num_iterations, "ms": times_ms}
        if self.longest_own_s is not None:
            fields["max"] = [float(f"{self.longest_own_s * _MS:.4g}"), self.longest_iteration]
        if self.collective is not None:
            fields["seq"] = self.collective
        if self.num_windows > 1:
            fields["windows"] = self.num_windows
        return fields

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> RankWindow | None:
        """Parse a record, whatever wrote it; return None if it has no usable times."""
        times_ms, last, count = record.get("ms"), record.get("last"), record.get("n")
        if not (isinstance(times_ms, list) and isinstance(last, int) and isinstance(count, int)):
            return None
        times_s = [value / _MS if _is_time(value) else None for value in times_ms]
        times_s += [None] * (2 * len(_QUANTITIES) - len(times_s))
        phases = {
            name: PhaseTime(median_s, times_s[2 * index + 1] or 0.0)
            for index, name in enumerate(_QUANTITIES)
            if (median_s := times_s[2 * index]) is not None
        }
        if "own" not in phases or last < 0 or count < 1:
            return None
        longest_ms, longest_iteration = None, None
        match record.get("max"):
            case [value, int(iteration)] if (longest_ms := finite_or_none(value)) is not None:
                longest_iteration = iteration
        collective, num_windows = record.get("seq"), record.get("windows")
        return cls(
            last_iteration=last,
            num_iterations=count,
            longest_own_s=longest_ms / _MS if longest_ms is not None else None,
            longest_iteration=longest_iteration,
            collective=collective if isinstance(collective, int) else None,
            time=finite_or_none(record.get("time")),
            num_windows=num_windows if isinstance(num_windows, int) and num_windows > 1 else 1,
            own=phases["own"],
            wait=phases.get("wait"),
            data=phases.get("data"),
            forward=phases.get("forward"),
            backward=phases.get("backward"),
            optimizer=phases.get("optimizer"),
        )


def merge_windows(windows: Sequence[RankWindow]) -> RankWindow:
    """Return one window for consecutive windows of a rank, all of which measured the same quantities.

    The median is the mean of the medians, weighted by iterations, which has about the same error as the median of all
    iterations. The same holds for the deviation, which says how much iterations differ within a window.
    """
    last = windows[-1]
    num_iterations = sum(window.num_iterations for window in windows)
    phases: dict[str, Any] = {}
    for name in _QUANTITIES:
        times: list[PhaseTime | None] = [getattr(window, name) for window in windows]
        weighted = [(time, window.num_iterations) for time, window in zip(times, windows, strict=True) if time]
        if len(weighted) == len(windows):
            phases[name] = PhaseTime(
                sum(time.median_s * weight for time, weight in weighted) / num_iterations,
                sum(time.mad_s * weight for time, weight in weighted) / num_iterations,
            )
    longest = max(windows, key=lambda window: -1.0 if window.longest_own_s is None else window.longest_own_s)
    return RankWindow(
        last_iteration=last.last_iteration,
        num_iterations=num_iterations,
        longest_own_s=longest.longest_own_s,
        longest_iteration=longest.longest_iteration,
        collective=last.collective,
        time=last.time,
        num_windows=sum(window.num_windows for window in windows),
        **phases,
    )


class WindowTimes(NamedTuple):
    """The fields of a window that say how fast a rank is."""

    last_iteration: int
    own_s: float
    wait_s: float | None


def window_times(record: dict[str, Any]) -> WindowTimes | None:
    """Return a few fields of what `RankWindow.from_record` returns, several times faster."""
    times_ms, last, count = record.get("ms"), record.get("last"), record.get("n")
    if not (isinstance(times_ms, list) and isinstance(last, int) and isinstance(count, int)):
        return None
    own_ms = times_ms[0] if times_ms else None
    if not _is_time(own_ms) or last < 0 or count < 1:
        return None
    wait_ms = times_ms[2] if len(times_ms) > 2 else None
    return WindowTimes(last, own_ms / _MS, wait_ms / _MS if _is_time(wait_ms) else None)


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and 0 <= value <= _MAX_MS
